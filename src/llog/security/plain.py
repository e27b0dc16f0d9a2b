"""SASL PLAIN (RFC 4616): the client sends user and password. Only for connections with TLS."""

from __future__ import annotations

from typing import Final, NamedTuple

from llog.security.scram import AuthenticationFailed

PLAIN_MESSAGE_BYTES_MAX: Final = 4_096


class PlainMessage(NamedTuple):
    user: str
    password: bytes

    def __repr__(self) -> str:
        return f"PlainMessage({self.user!r})"


def parse_plain(message: bytes) -> PlainMessage:
    """`AuthenticationFailed` unless the message is complete and asks to act as its own user."""
    if len(message) > PLAIN_MESSAGE_BYTES_MAX:
        raise AuthenticationFailed("the message is too long")
    parts = bytes(message).split(b"\x00")
    if len(parts) != 3:
        raise AuthenticationFailed("the message must hold two zero bytes")
    authorized, user, password = parts
    if not user or not password:
        raise AuthenticationFailed("user or password is empty")
    if authorized and authorized != user:
        raise AuthenticationFailed("the client asks to act as another user")
    try:
        return PlainMessage(user.decode(), password)
    except UnicodeDecodeError:
        raise AuthenticationFailed("the user's name is not UTF-8") from None
