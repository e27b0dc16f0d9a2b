# Written by `make kafka-schemas` from messages.txt; do not edit.
"""SaslAuthenticate, API key 36, versions 0-2, flexible from 2."""

from __future__ import annotations

from msgspec import Struct

from llog.kafka.codec.runtime import Buffer


class SaslAuthenticateRequest(Struct, frozen=True, gc=False):
    auth_bytes: Buffer = b""


class SaslAuthenticateResponse(Struct, frozen=True, gc=False):
    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: Buffer = b""
    session_lifetime_ms: int = 0  # 1-2
