"""What the connections of one listener share: handlers, memory, the scratch buffer, counts and log lines.

While frames wait for room, frames that hold some and do not arrive are given up sooner than `FRAME_STALL_MS_MAX`: every
`CONTENDED_MS`, those that made hardly any progress since the last look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from llog.broker.produce.pool import MemoryPool
from llog.kafka.net.frames import scratch_buffer
from llog.kafka.net.memory import FRAME_BYTES_MAX, FRAME_POOL_FRACTION, FRONT_END_BYTES_MAX, SMALL_FRAME_BYTES_MAX

if TYPE_CHECKING:
    from llog.kafka.dispatch import Dispatcher
    from llog.kafka.net.request_log import KafkaRequestLog
    from llog.kafka.sasl import Authentication

CONTENDED_MS: Final = 2_000


class Arriving(Protocol):
    def give_up_if_stalled(self) -> None:
        """Called every `CONTENDED_MS` while others wait for room."""


class ConnectionContext:
    def __init__(
        self,
        dispatcher: Dispatcher,
        pool: MemoryPool,
        log: KafkaRequestLog,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        front_end_bytes_max: int = FRONT_END_BYTES_MAX,
        authentication: Authentication | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`pool`: the broker's, for records."""
        self.dispatcher, self.log, self.now = dispatcher, log, now
        self.authentication = authentication
        self.records, self.front_end = pool, MemoryPool(front_end_bytes_max)
        self.produce_bytes_max = min(frame_bytes_max, int(pool.limit_bytes * FRAME_POOL_FRACTION))
        self.small_bytes_max = min(frame_bytes_max, SMALL_FRAME_BYTES_MAX)
        self.scratch = scratch_buffer()
        self.arriving: set[Arriving] = set()
        """Connections with a frame that has not arrived completely."""
        self._looking: asyncio.TimerHandle | None = None

    @property
    def is_tight(self) -> bool:
        """Memory is short."""
        return self.records.under_pressure or self.front_end.under_pressure

    def watch_stalled(self) -> None:
        """A frame waits for room."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(CONTENDED_MS / 1_000, self._look)

    def _look(self) -> None:
        self._looking = None
        if not (self.records.room or self.front_end.room):
            return
        for connection in list(self.arriving):
            connection.give_up_if_stalled()
        self.watch_stalled()

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
