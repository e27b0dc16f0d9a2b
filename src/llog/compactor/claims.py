"""The session of this process with the metadata store, and the claims under it.

A claim saves work and guards nothing (R12): work under a lost claim fails at publishing. When the session is lost other
services take over, so the work under way is stopped, and the next claim opens a new session. A service without claims
ends its session after a while, because its heartbeats are writes.

A claim names its process, not only the service, because two services may share a name by mistake. A process that
crashed and restarted waits until its old claims end with their session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

from llog.compactor.metrics import (
    CLAIM_ACQUIRED,
    CLAIM_ELSEWHERE,
    CLAIM_RELEASE_FAILED,
    CLAIM_RELEASED,
    SESSION_CLOSED,
    SESSION_LOST,
    SESSION_OPENED,
    CompactorMetrics,
)
from llog.errors import MetadataStoreError, MetadataUncertain, SessionLost, VersionConflict
from llog.formats.values import CompactorClaim, decode_value, encode_value
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.runtime.log_choice import claim, release
from llog.stores.metadata.port import ABSENT, Record, Session

# How long a session without claims is kept: claims often follow each other.
COMPACTOR_SESSION_IDLE_MS: Final = 60_000

T = TypeVar("T")
_log = logging.getLogger("llog.compactor")


class Claims:
    def __init__(
        self, context: LogContext, metrics: CompactorMetrics, *, compactor_id: str, session_timeout_ms: int
    ) -> None:
        self.compactor_id = compactor_id
        self.owner = f"{compactor_id}/{context.random_bits(64):016x}"
        """Names this process in its claims: another process may run under the same compactor id."""
        self._context, self._metrics, self._timeout_ms = context, metrics, session_timeout_ms
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._at_work: set[asyncio.Task[Any]] = set()
        self._logs: set[Log] = set()
        """Logs whose claim this process holds or is about to take."""
        self._taking_chores = 0
        self._used_at_ms = 0
        self._chores: set[str] = set()
        self._written: dict[str, CompactorClaim] = {}
        """The claims on chores that this session tried to write, whether or not the store is known to hold them."""
        self._closed = False

    @property
    def in_session(self) -> bool:
        return self._session is not None

    # -- the session --------------------------------------------------------------------------------------------------
    async def session(self) -> Session:
        """The current session; opens one if needed."""
        async with self._opening:
            if self._closed:
                raise SessionLost("claim", self.compactor_id, "the service stops")
            if self._session is not None and self._session.lost:
                self._lose(self._session)
            if self._session is None:
                lost: list[Session] = []  # the callback may run before `open_session` returns
                session = await self._context.metadata.open_session(
                    timeout_ms=self._timeout_ms, on_lost=lambda: self._lose(*lost)
                )
                lost.append(session)
                self._session = session
                self._metrics.claim_event(SESSION_OPENED)
            return self._session

    def _lose(self, session: Session | None = None) -> None:
        if session is None or session is not self._session:
            return
        self._session = None
        self._logs.clear()
        self._forget_chores()
        self._metrics.claim_event(SESSION_LOST)
        _log.warning("the metadata session is lost: %d tasks stop, their claims are gone", len(self._at_work))
        for task in self._at_work:
            task.cancel()

    async def guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work under a claim. Raises `SessionLost` when the session is lost meanwhile."""
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise SessionLost("work", self.compactor_id, "the session its claim is bound to is gone") from None
        finally:
            self._at_work.discard(task)

    async def close(self) -> None:
        """Release all claims at once: they vanish with their session."""
        self._closed = True
        async with self._opening:
            session, self._session = self._session, None
        self._forget_chores()
        if session is not None:
            await session.close()

    async def close_unused(self) -> None:
        """End a session without claims, because keeping it alive costs writes. The next claim opens another."""
        async with self._opening:
            session, now_ms = self._session, self._context.now_ms()
            in_use = self._logs or self._chores or self._taking_chores or self._at_work
            if session is None or in_use or 0 <= now_ms - self._used_at_ms < COMPACTOR_SESSION_IDLE_MS:
                return
            self._session = None
        self._forget_chores()
        await session.close()
        self._metrics.claim_event(SESSION_CLOSED)

    # -- logs ---------------------------------------------------------------------------------------------------------
    async def take(self, log: Log, incarnation: int) -> bool:
        self._logs.add(log)
        taken = False
        try:
            session = await self.session()
            taken = await claim(self._context, log, session, compactor_id=self.owner, incarnation=incarnation)
        finally:
            self._used_at_ms = self._context.now_ms()
            if not taken:
                self._logs.discard(log)
        self._metrics.claim_event(CLAIM_ACQUIRED if taken else CLAIM_ELSEWHERE)
        return taken

    async def give(self, log: Log) -> None:
        """A claim that cannot be released now ends with the session, or with the next visit of this process."""
        try:
            await self._release(log, release(self._context, log, compactor_id=self.owner))
        finally:
            self._used_at_ms = self._context.now_ms()
            self._logs.discard(log)

    async def _release(self, claimed: Log | str, deletion: Awaitable[object]) -> None:
        try:
            await deletion
            self._metrics.claim_event(CLAIM_RELEASED)
        except MetadataStoreError as error:
            self._metrics.claim_event(CLAIM_RELEASE_FAILED)
            _log.warning("the claim on %s could not be released: %s", claimed, error)

    # -- chores of the cluster ----------------------------------------------------------------------------------------
    async def take_chore(self, chore: str) -> bool:
        """Claim a chore until it is released or the session ends, so that it stays with one service."""
        self._taking_chores += 1
        try:
            return await self._take_chore(chore)
        finally:
            self._taking_chores -= 1
            self._used_at_ms = self._context.now_ms()

    async def _take_chore(self, chore: str) -> bool:
        session = await self.session()
        if chore in self._chores:
            return True
        key = self._context.keys.chore_claim(chore)
        # Every attempt writes the same value: one that got no answer, or could not be released, is recognised.
        new = CompactorClaim(compactor_id=self.owner, claimed_at_ms=self._context.now_ms())
        own = self._written.setdefault(chore, new)
        try:
            await self._context.metadata.put(key, encode_value(own), expected=ABSENT, session=session)
            taken = True
        except (VersionConflict, MetadataUncertain):
            # A claim of an earlier session of this process does not count: it is about to vanish.
            record = await self._context.metadata.get(key, strict=True)
            taken = record is not None and _claim_in(record) == own
        self._metrics.claim_event(CLAIM_ACQUIRED if taken else CLAIM_ELSEWHERE)
        if taken and session is self._session:
            self._chores.add(chore)
        return taken

    async def do_chore(self, chore: str, work: Coroutine[Any, Any, T]) -> T:
        """Do a claimed chore. A failure releases the claim, because another service may succeed."""
        try:
            return await self.guarded(work)
        except Exception:
            await self.give_chore(chore)
            raise

    async def give_chore(self, chore: str) -> None:
        if chore in self._chores:
            self._chores.discard(chore)
            await self._release(chore, self._delete_claim(chore))

    async def _delete_claim(self, chore: str) -> None:
        key = self._context.keys.chore_claim(chore)
        record = await self._context.metadata.get(key, strict=True)
        if record is not None and _claim_in(record).compactor_id == self.owner:
            await self._context.metadata.delete(key, expected=record.version)
        self._written.pop(chore, None)

    def _forget_chores(self) -> None:
        self._chores.clear()
        self._written.clear()


def _claim_in(record: Record) -> CompactorClaim:
    return decode_value(CompactorClaim, record.value, record.key.path)
