# Written by `make kafka-schemas` from messages.txt; do not edit.
"""RequestHeader and ResponseHeader."""

from __future__ import annotations

from msgspec import Struct


class RequestHeader(Struct, frozen=True, gc=False):
    request_api_key: int = 0
    request_api_version: int = 0
    correlation_id: int = 0
    client_id: str | None = ""


class ResponseHeader(Struct, frozen=True, gc=False):
    correlation_id: int = 0
