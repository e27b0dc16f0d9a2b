# Written by `make kafka-schemas` from messages.txt; do not edit.
"""AlterUserScramCredentials, API key 51, versions 0, flexible from 0."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer


class ScramCredentialDeletion(Struct, frozen=True, gc=False):
    name: str = ""
    mechanism: int = 0


class ScramCredentialUpsertion(Struct, frozen=True, gc=False):
    name: str = ""
    mechanism: int = 0
    iterations: int = 0
    salt: Buffer = b""
    salted_password: Buffer = b""


class AlterUserScramCredentialsRequest(Struct, frozen=True, gc=False):
    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class AlterUserScramCredentialsResult(Struct, frozen=True, gc=False):
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""


class AlterUserScramCredentialsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    results: list[AlterUserScramCredentialsResult] = []
