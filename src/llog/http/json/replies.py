"""Answers as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from litestar import Response

HTTP_RETRY_AFTER_SECONDS: Final = 1


JSON: Final = "application/json"
RETRY_AFTER: Final[Mapping[str, str]] = {"retry-after": str(HTTP_RETRY_AFTER_SECONDS)}
ENCODER: Final = msgspec.json.Encoder()


class BytesReply(Response[bytes]):
    """The framework sends them as they are, also out of a buffer that is not its own."""

    def render(self, content: Any, *_: Any, **__: Any) -> bytes:
        return bytes(content)


def json_reply(content: object, status: int = 200, *, headers: Mapping[str, str] | None = None) -> BytesReply:
    return bytes_reply(ENCODER.encode(content), status, headers=headers)


def bytes_reply(
    content: bytes | memoryview,
    status: int = 200,
    *,
    media_type: str = JSON,
    headers: Mapping[str, str] | None = None,
) -> BytesReply:
    told = {"content-type": media_type} | dict(headers or {})  # as it is: Litestar adds a second charset to a text's
    return BytesReply(cast(bytes, content), status_code=status, media_type=media_type, headers=told)
