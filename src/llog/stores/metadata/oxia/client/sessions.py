"""A session on one shard, which owns ephemeral records.

This process must not trust a session that the server has dropped. The server counts the timeout from the last heartbeat
it received; the client counts from SENDING the last answered heartbeat, which is earlier. So `lost` becomes true here
no later than on the server, also if the event loop was blocked, because the property reads the clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import grpc

from llog.limits import METADATA_SESSION_TIMEOUT_MS_MAX, METADATA_SESSION_TIMEOUT_MS_MIN, OXIA_CLOSE_TIMEOUT_MS
from llog.stores.metadata.oxia.client.discovery import ShardDirectory, retry_delay_seconds
from llog.stores.metadata.oxia.client.errors import InvalidRequest, OxiaError, Unavailable
from llog.stores.metadata.oxia.client.failures import FailureKind, failure_of
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.reads import Attempts
from llog.stores.metadata.oxia.client.rpc import OxiaLink, OxiaOptions

_log = logging.getLogger(__name__)

# Two heartbeats may fail before the timeout.
_HEARTBEATS_PER_TIMEOUT = 4


def check_session_timeout(timeout_ms: int) -> None:
    if not METADATA_SESSION_TIMEOUT_MS_MIN <= timeout_ms <= METADATA_SESSION_TIMEOUT_MS_MAX:
        raise InvalidRequest(
            f"session timeout {timeout_ms} ms: {METADATA_SESSION_TIMEOUT_MS_MIN} to"
            f" {METADATA_SESSION_TIMEOUT_MS_MAX} are accepted"
        )


class ShardSession:
    """`open_shard_session` creates it; a task keeps it alive until `close` or loss."""

    def __init__(
        self,
        shard: int,
        session_id: int,
        timeout_ms: int,
        asked_at: float,
        directory: ShardDirectory,
        on_lost: Callable[[], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self.shard, self.id = shard, session_id
        self._timeout_seconds = timeout_ms / 1_000
        self._alive_at = asked_at
        """Monotonic time at which the last answered heartbeat was sent."""
        self._directory, self._on_lost, self._clock = directory, on_lost, clock
        self._gone = False
        self._closed = False
        self._task = asyncio.create_task(self._keep_alive(), name=f"oxia session {session_id} on shard {shard}")

    @property
    def lost(self) -> bool:
        return self._gone or (not self._closed and self._clock() - self._alive_at >= self._timeout_seconds)

    async def _keep_alive(self) -> None:
        interval = self._timeout_seconds / _HEARTBEATS_PER_TIMEOUT
        attempt = 0
        while True:
            await asyncio.sleep(interval if attempt == 0 else min(interval, retry_delay_seconds(attempt)))
            left = self._alive_at + self._timeout_seconds - self._clock()
            if left <= 0:
                self._lose("not heard by the server for the timeout")
                return
            sent_at = self._clock()
            try:
                await self._heartbeat(min(left, interval))
                self._alive_at, attempt = sent_at, 0
            except grpc.aio.AioRpcError as error:
                attempt += 1
                failure = failure_of(error)
                if failure.kind is FailureKind.SESSION_NOT_FOUND:
                    self._lose("the server does not know it any more")
                    return
                _log.info("oxia session %d on shard %d: %s", self.id, self.shard, failure)
            except Unavailable as error:
                attempt += 1
                _log.info("oxia session %d on shard %d: %s", self.id, self.shard, error)

    async def _heartbeat(self, seconds: float) -> None:
        link = await self._directory.link(self.shard, asyncio.get_running_loop().time() + seconds)
        request = pb.SessionHeartbeat(shard=self.shard, session_id=self.id)
        try:
            await link.keep_alive(request, timeout=seconds, metadata=link.metadata)
        except grpc.aio.AioRpcError as error:
            self._directory.suspect(link, self.shard, failure_of(error))
            raise

    def mark_lost(self, reason: str) -> None:
        """A write failed because the session does not exist."""
        if not self._gone and not self._closed:
            self._task.cancel()
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        self._gone = True
        _log.warning("oxia session %d on shard %d is lost: %s", self.id, self.shard, reason)
        if self._on_lost is not None:
            self._on_lost()

    async def close(self) -> None:
        """End the session and delete its records. Does not raise: otherwise it ends at its timeout."""
        if self._closed or self._gone:
            return
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        seconds = OXIA_CLOSE_TIMEOUT_MS / 1_000
        try:
            link = await self._directory.link(self.shard, asyncio.get_running_loop().time() + seconds)
            request = pb.CloseSessionRequest(shard=self.shard, session_id=self.id)
            await link.close_session(request, timeout=seconds, metadata=link.metadata)
        except (grpc.aio.AioRpcError, OxiaError) as error:
            _log.info("oxia session %d on shard %d ends by its timeout: %s", self.id, self.shard, error)


async def open_shard_session(
    shard: int,
    timeout_ms: int,
    options: OxiaOptions,
    directory: ShardDirectory,
    on_lost: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ShardSession:
    """Repeated after a lost answer, because an unused session is harmless."""
    check_session_timeout(timeout_ms)
    request = pb.CreateSessionRequest(shard=shard, session_timeout_ms=timeout_ms, client_identity=options.identity)

    async def call(link: OxiaLink, seconds: float) -> tuple[int, float]:
        asked_at = clock()
        answer = await link.create_session(request, timeout=seconds, metadata=link.metadata)
        return answer.session_id, asked_at

    session_id, asked_at = await Attempts(options, directory).run(shard, f"open a session on shard {shard}", call)
    return ShardSession(shard, session_id, timeout_ms, asked_at, directory, on_lost, clock)
