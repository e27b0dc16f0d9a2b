"""Bearer tokens: one for reading, one for writing.

A token opens its own kind of access only. Where no token is set, that kind is open: only on a loopback address or with
`LLOG_INSECURE=1` (`llog.settings.listening`). Tokens are compared in constant time and never leave this module.
"""

from __future__ import annotations

import hmac
from typing import Final

from llog.errors import RequestForbidden, RequestUnauthenticated
from llog.settings import Settings

_BEARER: Final = b"bearer "


class Access:
    """What a route asks of its caller; `KEY` is its name in a route's `opt`."""

    KEY: Final = "llog_access"
    OPEN: Final = "open"
    READ: Final = "read"
    WRITE: Final = "write"
    EITHER: Final = "either"


class Tokens:
    def __init__(self, settings: Settings) -> None:
        self._tokens = {
            Access.READ: _encoded(settings.http_read_token),
            Access.WRITE: _encoded(settings.http_write_token),
        }

    def check(self, access: str, authorization: bytes | None) -> None:
        """`RequestUnauthenticated` for no token or an unknown one, `RequestForbidden` for the token of the other
        kind."""
        if access == Access.OPEN:
            return
        kinds = [Access.READ, Access.WRITE] if access == Access.EITHER else [access]
        if any(self._tokens[kind] is None for kind in kinds):
            return
        given = _token(authorization)
        if given is None:
            raise RequestUnauthenticated("no token was sent: send the header Authorization: Bearer <token>")
        # Both are always compared, so that the time taken reveals nothing.
        matches = {kind: hmac.compare_digest(given, token or b"") for kind, token in self._tokens.items()}
        if any(matches[kind] for kind in kinds):
            return
        if any(matches[kind] and self._tokens[kind] is not None for kind in matches):
            raise RequestForbidden(f"the token sent is for the other kind of access: send the token for {access}")
        raise RequestUnauthenticated("the token is unknown: send the token that the broker was started with")


def _encoded(token: str | None) -> bytes | None:
    return None if token is None else token.encode()


def _token(authorization: bytes | None) -> bytes | None:
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()
