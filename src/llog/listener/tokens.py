"""Bearer tokens: one for reading, one for writing.

A token opens its own kind of access only. Where no token is set, that kind is open: only on a loopback address or with
`LLOG_INSECURE=1` (`llog.settings.listening`). Tokens are compared in constant time and never leave this module:
logs name the holder of a token by its kind.
"""

from __future__ import annotations

import hmac
from typing import Final, NamedTuple

from llog.audit_log import ANONYMOUS
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


class SentToken(NamedTuple):
    """What the token of a request proves."""

    is_sent: bool
    kinds: frozenset[str] = frozenset()
    """The kinds of access whose token it is."""

    @property
    def holder(self) -> str:
        """For logs: `write-token`, `read-token`, or `anonymous` without a known token."""
        kind = next((kind for kind in (Access.WRITE, Access.READ) if kind in self.kinds), None)
        return ANONYMOUS if kind is None else f"{kind}-token"


class Tokens:
    def __init__(self, settings: Settings) -> None:
        self._tokens = {
            Access.READ: _encoded(settings.http_read_token),
            Access.WRITE: _encoded(settings.http_write_token),
        }

    def sent(self, authorization: bytes | None) -> SentToken:
        """The token in the header of a request."""
        given = bearer_token(authorization)
        if given is None:
            return SentToken(False)
        # Both are always compared, so that the time taken reveals nothing.
        matches = {kind: hmac.compare_digest(given, token or b"") for kind, token in self._tokens.items()}
        return SentToken(True, frozenset(kind for kind in matches if matches[kind] and self._tokens[kind] is not None))

    def check(self, access: str, sent: SentToken) -> None:
        """`RequestUnauthenticated` for no token or an unknown one, `RequestForbidden` for the token of the other
        kind."""
        if access == Access.OPEN:
            return
        kinds = [Access.READ, Access.WRITE] if access == Access.EITHER else [access]
        if any(self._tokens[kind] is None for kind in kinds) or not sent.kinds.isdisjoint(kinds):
            return
        if not sent.is_sent:
            raise RequestUnauthenticated("no token was sent: send the header Authorization: Bearer <token>")
        if sent.kinds:
            raise RequestForbidden(f"the token sent is for the other kind of access: send the token for {access}")
        raise RequestUnauthenticated("the token is unknown: send the token that the broker was started with")


def _encoded(token: str | None) -> bytes | None:
    return None if token is None else token.encode()


def bearer_token(authorization: bytes | None) -> bytes | None:
    """The token in the header of a request; None if it has none."""
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()
