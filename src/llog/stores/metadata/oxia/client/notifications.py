"""Notifications of one shard, resumed after a break.

The server numbers its batches and starts after any given number, so a broken stream is resumed without a gap. It drops
old batches silently (after an hour by default). After a break that may have been that long, and in any other doubt,
`Gap` asks to read everything again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import grpc

from llog.limits import OXIA_CONNECT_TIMEOUT_MS, OXIA_KEEPALIVE_INTERVAL_MS, OXIA_KEEPALIVE_TIMEOUT_MS, OXIA_STALL_MS
from llog.stores.metadata.oxia.client.discovery import ShardDirectory, retry_delay_seconds
from llog.stores.metadata.oxia.client.errors import OxiaError, ReadTimeout
from llog.stores.metadata.oxia.client.failures import FINAL, FailureKind, RpcFailure, failure_of
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.reads import read_error
from llog.stores.metadata.oxia.client.rpc import OxiaLink, OxiaOptions

# Servers keep notifications for an hour by default; a longer break becomes a `Gap`.
OXIA_NOTIFICATIONS_RESUME_MS_MAX: Final = 60_000

_log = logging.getLogger(__name__)


class Changed(NamedTuple):
    key: str
    version_id: int


class Deleted(NamedTuple):
    key: str


class Gap(NamedTuple):
    """Changes may have been missed."""

    reason: str


Event = Changed | Deleted | Gap


class ShardNotifications:
    """Calls `on_event` for every change of a shard after `started()` has returned."""

    def __init__(
        self,
        shard: int,
        options: OxiaOptions,
        directory: ShardDirectory,
        on_event: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shard, self._options, self._directory = shard, options, directory
        self._on_event, self._clock = on_event, clock
        self._offset: int | None = None
        """The last batch seen."""
        self._heard_at = 0.0
        """Last time at which the stream was known to work."""
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call: grpc.aio.Call | None = None
        self._task = asyncio.create_task(self._follow(), name=f"oxia notifications of shard {shard}")

    async def started(self) -> None:
        """Returns once the server has fixed the start of the stream."""
        try:
            async with asyncio.timeout(self._options.request_timeout_ms / 1_000):
                await asyncio.shield(self._attached)
        except TimeoutError:
            raise ReadTimeout(f"notifications of shard {self._shard}: not attached in time") from None

    async def _follow(self) -> None:
        attempt = 0
        while True:
            before = self._offset
            failure = await self._follow_one()
            if failure.kind in FINAL:
                self._give_up(read_error(failure, f"notifications of shard {self._shard}"))
                return
            _log.info("oxia notifications of shard %d: %s", self._shard, failure)
            attempt = 0 if self._offset != before else attempt + 1
            await asyncio.sleep(retry_delay_seconds(attempt))
            if self._offset is not None and self._clock() - self._heard_at > OXIA_NOTIFICATIONS_RESUME_MS_MAX / 1_000:
                self._offset = None
                self._on_event(Gap("the connection was broken for too long"))

    async def _follow_one(self) -> RpcFailure:
        loop = asyncio.get_running_loop()
        try:
            link = await self._directory.link(self._shard, loop.time() + self._options.request_timeout_ms / 1_000)
        except OxiaError as error:
            return RpcFailure(FailureKind.NOT_CONNECTED, str(error))
        if not await link.connected(OXIA_CONNECT_TIMEOUT_MS / 1_000):
            self._directory.suspect(link, self._shard)
            return RpcFailure(FailureKind.NOT_CONNECTED, link.address)
        began_at = self._clock()
        request = pb.NotificationsRequest(shard=self._shard, start_offset_exclusive=self._offset)
        call = self._call = link.notifications(request, metadata=link.metadata)
        forget = self._directory.listen(lambda: self._leave_if_deposed(link, call))
        try:
            async for batch in call:
                self._take(batch)
            return RpcFailure(FailureKind.CONNECTION_LOST, "the server ended the stream")
        except grpc.aio.AioRpcError as error:
            failure = failure_of(error)
            self._directory.suspect(link, self._shard, failure)
            return failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return RpcFailure(FailureKind.NOT_LEADER, "another server leads the shard now")
        finally:
            self._note_life(began_at)
            forget()
            call.cancel()

    def _note_life(self, began_at: float) -> None:
        """A resumed stream is silent until something changes. If it was not refused at once it works, except for the
        time that keep-alive pings take to notice a failure."""
        ended_at = self._clock()
        if ended_at - began_at >= OXIA_STALL_MS / 1_000:
            unnoticed = (OXIA_KEEPALIVE_INTERVAL_MS + OXIA_KEEPALIVE_TIMEOUT_MS) / 1_000
            self._heard_at = max(self._heard_at, ended_at - unnoticed)

    def _leave_if_deposed(self, link: OxiaLink, call: grpc.aio.Call) -> None:
        current = self._directory.current
        leader = current.leaders.get(self._shard) if current else None
        if leader and leader != link.address:
            call.cancel()

    def _take(self, batch: pb.NotificationBatch) -> None:
        self._heard_at = self._clock()
        first = self._offset is None
        self._offset = batch.offset
        if first:
            # It only carries the start position; earlier changes do not matter.
            if not self._attached.done():
                self._attached.set_result(None)
            return
        for entry in batch.notifications:
            value = entry.value
            if value.type == pb.KEY_DELETED:
                self._on_event(Deleted(entry.key))
            elif value.type == pb.KEY_RANGE_DELETED:
                self._on_event(Gap("a whole range was deleted"))
            else:
                self._on_event(Changed(entry.key, value.version_id))

    def _give_up(self, error: OxiaError) -> None:
        if self._attached.done():
            self._on_event(Gap(str(error)))
        else:
            self._attached.set_exception(error)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self._attached.done():
            self._attached.cancel()
