"""What a broker has of security: the view of users and ACLs, and the authorizer if authorization is on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from llog.log.context import LogContext
from llog.security.acl import USER_PREFIX
from llog.security.authorizer import Authorizer
from llog.security.view import SecurityFeed, SecurityView

if TYPE_CHECKING:
    from llog.settings import Settings

REFUSALS: Final = "authorization_refusals"
"""Name of the count of refused resources."""


class Security:
    """One per broker, on its event loop. `is_used` is False where neither authorization nor SASL is on: then nothing is
    read, and everything is allowed."""

    def __init__(
        self,
        settings: Settings,
        context: LogContext,
        now_ms: Callable[[], float],
        count: Callable[[str, int], None] = lambda _name, _value: None,
    ) -> None:
        """`now_ms` is a monotonic clock."""
        self.is_used = settings.authorization or bool(settings.kafka_sasl_mechanisms)
        self.authorizer: Authorizer | None = None
        if settings.authorization:
            self.authorizer = Authorizer(settings.super_users, now_ms, lambda refused: count(REFUSALS, refused))
        self._context = context
        self._view: SecurityView | None = SecurityView()
        self._feed = SecurityFeed(context, now_ms, self._use)

    def _use(self, view: SecurityView | None) -> None:
        self._view = view
        if self.authorizer is not None:
            self.authorizer.use(view)

    @property
    def view(self) -> SecurityView | None:
        """None: too old to be in force."""
        return self._view

    async def start(self) -> list[asyncio.Task[None]]:
        """Read users and ACLs, and keep them current in the tasks that are returned. Raises errors of the store."""
        if not self.is_used:
            return []
        await self._feed.refresh()
        return [asyncio.create_task(self._feed.run(), name="llog-security")]

    async def changed(self) -> None:
        """This process changed a user or an ACL: see it at once. Raises errors of the store."""
        if self.is_used:
            await self._feed.refresh()

    def trouble(self) -> str:
        """For the health page."""
        return self._feed.trouble() if self.is_used else ""

    def principal_of_token(self, token: bytes) -> str | None:
        """The user that an HTTP token belongs to. The digest is looked up, so the time says nothing of other tokens."""
        if self._view is None:
            return None
        known = self._view.tokens.get(hashlib.sha256(token).digest())
        if known is None:
            return None
        user, held = known
        if held.expires_at_ms is not None and held.expires_at_ms <= self._context.now_ms():
            return None
        return USER_PREFIX + user
