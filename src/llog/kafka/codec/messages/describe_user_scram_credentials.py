# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeUserScramCredentials, API key 50, versions 0, flexible from 0."""

from __future__ import annotations

from msgspec import Struct


class UserName(Struct, frozen=True, gc=False):
    name: str = ""


class DescribeUserScramCredentialsRequest(Struct, frozen=True, gc=False):
    users: list[UserName] | None = []


class CredentialInfo(Struct, frozen=True, gc=False):
    mechanism: int = 0
    iterations: int = 0


class DescribeUserScramCredentialsResult(Struct, frozen=True, gc=False):
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
