# Written by `make kafka-schemas` from messages.txt; do not edit.
"""SaslHandshake, API key 17, versions 0-1, none is flexible."""

from __future__ import annotations

from msgspec import Struct


class SaslHandshakeRequest(Struct, frozen=True, gc=False):
    mechanism: str = ""


class SaslHandshakeResponse(Struct, frozen=True, gc=False):
    error_code: int = 0
    mechanisms: list[str] = []
