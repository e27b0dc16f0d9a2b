"""This process's copy of users and ACLs, read again within seconds of every change.

One record counts the changes; it is read every `VIEW_POLL_MS`, and everything else only when it has moved, or after
`VIEW_REREAD_MS` in case a process died between its change and the count. The count is read first: a change that is made
while the rest is read moves it again. While the store does not answer, the view stays in force, for `VIEW_AGE_MS_MAX`;
after that nobody but super users may do anything, because a permission may have been withdrawn long ago.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from llog.errors import FormatError, LlogError, UnsupportedFormat
from llog.formats.values import decode_value
from llog.log.context import LogContext
from llog.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from llog.security.records import AclRecord, HttpToken, ScramCredential, SecurityState, UserRecord
from llog.security.scram import ITERATIONS_DEFAULT, SALT_BYTES, fake_credential

VIEW_POLL_MS: Final = 1_000
VIEW_REREAD_MS: Final = 60_000
VIEW_AGE_MS_MAX: Final = 300_000
VIEW_TROUBLE_MS: Final = 10_000
"""From this age on, /health says that the view is old."""

_log: Final = logging.getLogger("llog.security")


@dataclass(frozen=True, slots=True)
class SecurityView:
    users: Mapping[str, UserRecord] = field(default_factory=dict)
    acls: tuple[Acl, ...] = ()
    changes: int = 0
    salt_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    tokens: Mapping[bytes, tuple[str, HttpToken]] = field(default_factory=dict, repr=False)
    """User and token by digest."""
    usual: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By mechanism: the iterations and the length of salts that most users have, so that fake ones look alike."""

    @classmethod
    def of(cls, users: Mapping[str, UserRecord], acls: tuple[Acl, ...], changes: int, salt_key: bytes) -> SecurityView:
        seen: dict[str, Counter[tuple[int, int]]] = {}
        for user in users.values():
            for mechanism, one in user.scram.items():
                seen.setdefault(mechanism, Counter())[one.iterations, len(one.salt)] += 1
        tokens = {token.digest: (name, token) for name, user in users.items() for token in user.tokens}
        usual = {mechanism: counted.most_common(1)[0][0] for mechanism, counted in seen.items()}
        return cls(users, acls, changes, salt_key, tokens, usual)

    def credential(self, user: str, mechanism: str) -> tuple[ScramCredential, bool]:
        """What verifies the user's password, and whether it is real."""
        known = self.users.get(user)
        real = None if known is None else known.scram.get(mechanism)
        iterations, salt_bytes = self.usual.get(mechanism, (ITERATIONS_DEFAULT, SALT_BYTES))
        fake = fake_credential(self.salt_key, user, mechanism, iterations=iterations, salt_bytes=salt_bytes)
        return (fake, False) if real is None else (real, True)


async def read_view(context: LogContext) -> SecurityView:
    """Users and ACLs as of now. Raises errors of the store."""
    state = await read_state(context)
    users: dict[str, UserRecord] = {}
    async for record in context.metadata.scan_all(context.keys.users(), strict=True):
        parsed = context.keys.parse(record.key.path)
        if parsed is not None and parsed.kind == "user":
            try:
                users[parsed.name] = decode_value(UserRecord, record.value, record.key.path)
            except FormatError as error:
                _log.error("a user cannot be read and is left out", extra={"llog": {"error": str(error)}})
    acls: list[Acl] = []
    async for record in context.metadata.scan_all(context.keys.acls(), strict=True):
        acl = acl_of(decode_value(AclRecord, record.value, record.key.path))
        if acl is None:
            raise UnsupportedFormat(record.key.path, "an ACL of a later release, which this release cannot enforce")
        acls.append(acl)
    if state is None:
        return SecurityView.of(users, tuple(acls), 0, secrets.token_bytes(32))
    return SecurityView.of(users, tuple(acls), state.changes, state.salt_key)


def acl_of(record: AclRecord) -> Acl | None:
    """None for codes that this release does not know."""
    try:
        return Acl(
            record.principal,
            record.host,
            ResourceType(record.resource_type),
            record.name,
            PatternType(record.pattern),
            Operation(record.operation),
            Permission(record.permission),
        )
    except ValueError:
        return None


async def read_state(context: LogContext) -> SecurityState | None:
    key = context.keys.security_state()
    record = await context.metadata.get(key, strict=True)
    return None if record is None else decode_value(SecurityState, record.value, key.path)


class SecurityFeed:
    """Keeps a view current. `now_ms` is a monotonic clock."""

    def __init__(
        self, context: LogContext, now_ms: Callable[[], float], on_view: Callable[[SecurityView | None], None]
    ) -> None:
        """`on_view` gets every new view; None: the last one is too old to be in force."""
        self._context, self._now_ms, self._on_view = context, now_ms, on_view
        self._changes = -1
        self._read_ms = self._whole_ms = float("-inf")
        self._failure = ""
        self._is_expired = False
        self._reading = asyncio.Lock()

    def trouble(self) -> str:
        """For the health page; empty while the view is current."""
        age_ms = self._now_ms() - self._read_ms
        if age_ms < VIEW_TROUBLE_MS:
            return ""
        state = "so nobody but super users has access" if self._is_expired else "the last ones stay in force"
        return f"users and ACLs could not be read for {age_ms / 1_000:.0f} s, {state}: {self._failure}"

    async def refresh(self, *, whole: bool = True) -> None:
        """Look for changes; `whole`: read everything, whatever the count says. Raises errors of the store."""
        async with self._reading:
            asked_ms = self._now_ms()
            whole = whole or self._is_expired or asked_ms - self._whole_ms >= VIEW_REREAD_MS
            if not whole:
                state = await read_state(self._context)
                whole = (0 if state is None else state.changes) != self._changes
            if whole:
                view = await read_view(self._context)
                self._changes, self._whole_ms, self._is_expired = view.changes, asked_ms, False
                self._on_view(view)
            self._read_ms = asked_ms

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._context.sleep(VIEW_POLL_MS / 1_000)
            try:
                await self.refresh(whole=False)
            except LlogError as error:
                self._failed(error)
            else:
                self._failure = ""

    def _failed(self, error: LlogError) -> None:
        if not self._failure:
            _log.warning("users and ACLs cannot be read", extra={"llog": {"error": str(error)}})
        self._failure = str(error)
        if not self._is_expired and self._now_ms() - self._read_ms > VIEW_AGE_MS_MAX:
            self._is_expired = True
            self._on_view(None)
            _log.error("users and ACLs are too old to be in force", extra={"llog": {"error": str(error)}})
