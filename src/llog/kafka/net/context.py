"""What the connections of one listener share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llog.broker.produce.pool import MemoryPool
from llog.kafka.dispatch import Dispatcher
from llog.kafka.net.frames import FRAME_BYTES_MAX, scratch_buffer


@dataclass(eq=False, slots=True)
class ConnectionContext:
    dispatcher: Dispatcher
    pool: MemoryPool
    frame_bytes_max: int = FRAME_BYTES_MAX
    now: Callable[[], float] = time.perf_counter
    scratch: memoryview = field(default_factory=scratch_buffer)

    def refused(self, reason: str) -> None:
        """Count a frame or a connection that was refused."""
