"""The frame that a connection is receiving: its size, the room that it has, the pace at which it arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llog.errors import InvalidField
from llog.kafka.net.context import ConnectionContext
from llog.kafka.net.memory import FRAME_PART_BYTES, PRODUCE_KEY, SMALL_FRAME_FACTOR, FrameShare
from llog.limits import KIB
from llog.listener.connection import SendPace

FRAME_STALL_MS_MAX: Final = 30_000
"""The grace of a frame's pace: how long its client may send nothing of it."""
FRAME_BYTES_PER_MS_MIN: Final = 8
"""A frame that comes slower than this for FRAME_STALL_MS_MAX is given up."""
ROOM_WAIT_MS_MAX: Final = 60_000
"""How long a frame waits for memory; its client has given up by then."""
CONTENDED_BYTES_MIN: Final = 16 * KIB
"""What a frame must gain between two looks at it while others wait for room, to be kept."""


class Arrival:
    """One for each connection, used for one frame after the other."""

    __slots__ = (
        "_context",
        "_missing",
        "_missing_before",
        "_now_ms",
        "_on_room",
        "_pace",
        "_stalled",
        "client",
        "limit_bytes",
        "share",
    )

    def __init__(
        self,
        context: ConnectionContext,
        *,
        now_ms: Callable[[], float],
        missing: Callable[[], int],
        on_room: Callable[[], None],
        stalled: Callable[[], None],
    ) -> None:
        """`missing()`: bytes of the frame that have not arrived. `stalled()` gives the connection up."""
        self._context, self._now_ms, self._missing = context, now_ms, missing
        self._on_room, self._stalled = on_room, stalled
        self.client = ""
        self.limit_bytes: int | None = None
        """Of frames of a client that has not authenticated."""
        self.share: FrameShare | None = None
        """None between frames."""
        self._pace: SendPace | None = None
        """Of a frame that did not arrive at once."""
        self._missing_before: int | None = None

    def admit(self, size: int, key: int, arrived_bytes: int) -> int:
        """For `FrameReader`. `InvalidField` for a frame that is too large, `RequestOverload` when too many wait."""
        if self.share is None:
            self.share = self._begin(size, key, arrived_bytes)
        wanted = size if arrived_bytes == size else min(size, max(FRAME_PART_BYTES, 2 * arrived_bytes))
        if self.share.reserve(wanted):
            return wanted
        if self._pace is not None:
            self._pace.rest(self._now_ms(), size - arrived_bytes)
        self._context.watch_stalled()
        return 0

    def _begin(self, size: int, key: int, arrived_bytes: int) -> FrameShare:
        context = self._context
        limit_bytes = context.produce_bytes_max if key == PRODUCE_KEY else context.small_bytes_max
        if self.limit_bytes is not None:
            limit_bytes = min(limit_bytes, self.limit_bytes)
        if size > limit_bytes:
            raise InvalidField("frame", f"its size is {size} of at most {limit_bytes} bytes")
        if key == PRODUCE_KEY:
            share = FrameShare(context.records, 1, self._granted)
        else:
            share = FrameShare(context.front_end, SMALL_FRAME_FACTOR, self._granted)
        if arrived_bytes < size:
            share.arrive_slowly(self.client)
            now_ms = self._now_ms()
            self._pace = SendPace(FRAME_STALL_MS_MAX, FRAME_BYTES_PER_MS_MIN, now_ms)
            self._pace.wait(now_ms, size - arrived_bytes)
            self._missing_before = None
            context.arriving.add(self)
        return share

    def _granted(self) -> None:
        if self._pace is not None and (missing := self._missing()):
            self._pace.wait(self._now_ms(), missing)
        self._on_room()

    def complete(self) -> FrameShare:
        """The frame has arrived: its share, which its request holds now."""
        share = self.share
        assert share is not None
        share.arrived()
        self._forget()
        return share

    def give_up(self) -> None:
        """The frame will not arrive."""
        if self.share is not None:
            self.share.give()
            self._forget()

    def end(self) -> None:
        """The connection is lost. Lets go of it, so that reference counts free its memory and no collection has to."""
        self.give_up()
        self._missing, self._now_ms = _nothing, _nothing
        self._on_room, self._stalled = _do_nothing, _do_nothing

    def _forget(self) -> None:
        self.share = None
        if self._pace is not None:
            self._pace = None
            self._context.arriving.discard(self)

    @property
    def waits_for_room(self) -> bool:
        return self.share is not None and self.share.waits

    def patience_ms(self) -> float:
        """How long to wait for what the frame waits for; ≤ 0: the client was too slow."""
        if self._pace is None or self.waits_for_room:
            return ROOM_WAIT_MS_MAX
        return self._pace.check(self._now_ms(), self._missing())

    def give_up_if_stalled(self) -> None:
        """Called every now and then while others wait for room."""
        if self.waits_for_room:
            self._missing_before = None
            return
        missing, before = self._missing(), self._missing_before
        if before is not None and before - missing < min(CONTENDED_BYTES_MIN, before):
            self._stalled()
        self._missing_before = missing


def _nothing() -> int:
    return 0


def _do_nothing() -> None: ...
