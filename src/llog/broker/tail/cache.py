"""The tail cache: the newest appends of every log, encoded, and where each log ends.

Why it exists: most consumers want what was just appended. A hit touches neither metadata nor objects, and so does a
look at an end that is known. It may only ever be an optimisation: what is not here is read from the stores, and with
no room at all (`max_bytes` 0) only ends are kept.

What must stay true
- A statement of the cache counts only while it is young: `fresh_ms` after the append was committed, or after a control
  record was read that confirms it (`confirm`). So records of an earlier life of a topic, records below a log's start
  and an old end are seen for `fresh_ms` at most after they stopped being true. What is older is `TailMiss` with
  `unconfirmed` set: read the control record and look again.
- Of a log that is compacted by key, what was rewritten is not told from here (`see`): records of it may be gone.
- A batch whose life is not known is dropped, not guessed: it counts by its own age until a control record shows the
  life that the log was known to be in before the append; then nothing else can have happened.
- Bounded by bytes over all logs (oldest append first) and by the number of logs whose end is known.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from llog.broker.tail.shelf import CachedBatch, Shelf
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.limits import TAIL_FRESH_MS_DEFAULT
from llog.log.keys import Log
from llog.log.read.view import LogView

# Logs whose end is remembered; beyond that, those that nobody touched longest are forgotten.
TAIL_CACHE_LOGS_MAX: Final = 100_000


LONG_AGO: Final = float("-inf")


def monotonic_ms() -> float:
    """The machine's clock that never goes back; the same in all its processes."""
    return time.monotonic() * 1_000


class Committed(Protocol):
    """What landed: one group, or the part of it that is new. Bodies as uploaded, without offsets."""

    @property
    def log(self) -> Log: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def encoding(self) -> str: ...
    @property
    def body(self) -> Sequence[Buffer]: ...
    @property
    def epoch(self) -> int: ...


class TailMetrics(Protocol):
    def tail_cache_event(self, kind: str, count: int = 1) -> None:
        """`hit`, `miss`, `empty` or `evicted`."""

    def set_tail_cache(self, byte_length: int, logs: int) -> None: ...


class TailHit(NamedTuple):
    batches: tuple[CachedBatch, ...]
    """In a row; the first holds the offset asked for."""
    next_offset: int
    high_watermark: int


class TailEmpty(NamedTuple):
    """The offset is the log's end."""

    high_watermark: int


class TailMiss(NamedTuple):
    unconfirmed: bool = False
    """There is something, but it is too old to count without a look at the control record."""


TailAnswer = TailHit | TailEmpty | TailMiss


class Tail:
    """What is known of one log."""

    __slots__ = (
        "compaction_version",
        "confirmed_at_ms",
        "control_next_offset",
        "end_at_ms",
        "incarnation",
        "life_since_ms",
        "log_start_offset",
        "next_offset",
        "unbound",
        "version",
    )

    def __init__(self) -> None:
        self.incarnation: int | None = None
        self.life_since_ms = LONG_AGO
        """When it was seen in that life for the first time."""
        self.version = -1
        """Of the newest control record that was seen."""
        self.control_next_offset = 0
        """What that one says; appends of this process move `next_offset` alone."""
        self.log_start_offset = 0
        self.next_offset = 0
        self.confirmed_at_ms = LONG_AGO
        """When the read began that showed this life and this start."""
        self.end_at_ms = LONG_AGO
        """When `next_offset` was the end."""
        self.unbound = False
        """Are there batches whose life is not known?"""
        self.compaction_version: int | None = None
        """Of the compaction record that was seen last; None for a log that is not compacted by key."""


class TailCache:
    def __init__(
        self,
        max_bytes: int,
        *,
        fresh_ms: float = TAIL_FRESH_MS_DEFAULT,
        clock: Callable[[], float] = monotonic_ms,
        metrics: TailMetrics | None = None,
    ) -> None:
        self.fresh_ms, self.clock = fresh_ms, clock
        self.on_moved: Callable[[Log], None] = lambda _log: None
        """Told of every log whose end moved, or of which something else became known."""
        self._metrics = metrics
        self._shelf = Shelf(max_bytes)
        self._tails: OrderedDict[Log, Tail] = OrderedDict()

    @property
    def byte_length(self) -> int:
        return self._shelf.byte_length

    def start(self) -> None:
        """Nothing to do here; a cache that is shared between processes begins to listen."""

    async def close(self) -> None:
        """Nothing to do here either."""

    # -- what became known -------------------------------------------------------------------------------------------
    def add(
        self,
        batch: Committed,
        *,
        incarnation: int | None = None,
        epoch: int | None = None,
        created_at_ms: int | None = None,
        committed_at_ms: float | None = None,
    ) -> None:
        """An append was committed (just now, unless told). Bare payloads are kept only with `created_at_ms`, the
        instant of their blob, which readers see as their timestamp."""
        now = self.clock() if committed_at_ms is None else committed_at_ms
        tail = self._tail(batch.log)
        if incarnation is not None and not self._is_life(batch.log, tail, incarnation, now):
            return
        if self._has_room(batch) and (batch.encoding != BYTES_BATCH or created_at_ms is not None):
            item = CachedBatch(
                batch.start_offset,
                batch.end_offset,
                batch.body,
                encoding=batch.encoding,
                epoch=batch.epoch if epoch is None else epoch,
                incarnation=incarnation,
                committed_at_ms=now,
                created_at_ms=created_at_ms or 0,
            )
            self._keep(batch.log, tail, item)
        self._move_end(batch.log, tail, batch.end_offset + 1, now)

    def note_end(self, log: Log, next_offset: int) -> None:
        """The log ended there just now, says somebody who knows."""
        self._move_end(log, self._tail(log), next_offset, self.clock())

    def confirm(
        self, log: Log, *, incarnation: int, version: int, log_start_offset: int, next_offset: int, as_of_ms: float
    ) -> None:
        """A control record, read at `as_of_ms` (when the read began)."""
        tail = self._tail(log)
        if version < tail.version:
            return  # from the past
        moved = (tail.incarnation, tail.log_start_offset) != (incarnation, log_start_offset)
        # An end that was told later than this read, of a life not known until now, is still the newest word.
        told_later = tail.next_offset if tail.incarnation is None and tail.end_at_ms > as_of_ms else 0
        if not self._is_life(log, tail, incarnation, as_of_ms):
            return
        tail.version, tail.control_next_offset = version, next_offset
        tail.log_start_offset = max(tail.log_start_offset, log_start_offset)
        tail.confirmed_at_ms = max(tail.confirmed_at_ms, as_of_ms)
        self._bind(log, tail, incarnation, as_of_ms)
        self._move_end(log, tail, max(next_offset, told_later), as_of_ms, told=moved)

    def confirm_again(self, log: Log, version: int, as_of_ms: float) -> bool:
        """The control record is still the one of this version, and the log is not compacted by key. False: another
        was seen last, or none."""
        tail = self._tails.get(log)
        if tail is None or tail.version != version or tail.incarnation is None:
            return False
        tail.compaction_version = None
        tail.confirmed_at_ms = max(tail.confirmed_at_ms, as_of_ms)
        self._bind(log, tail, tail.incarnation, as_of_ms)
        if tail.next_offset == tail.control_next_offset:
            tail.end_at_ms = max(tail.end_at_ms, as_of_ms)
        return True

    def see(self, log: Log, seen: LogView, as_of_ms: float, *, by_key: bool) -> None:
        """`confirm`, and what compaction says of the log, which matters where it is compacted by key."""
        control = seen.control
        self.confirm(
            log,
            incarnation=control.incarnation,
            version=seen.version,
            log_start_offset=control.log_start_offset,
            next_offset=control.sequence_counter,
            as_of_ms=as_of_ms,
        )
        tail = self._tail(log)
        tail.compaction_version = max(seen.compaction_version, tail.compaction_version or 0) if by_key else None
        if by_key and tail.incarnation == control.incarnation:
            self._shelf.drop_below(log, seen.cursor)
            self._tell_size()

    def forget(self, log: Log) -> None:
        if self._tails.pop(log, None) is not None:
            self._shelf.drop(log)
            self.on_moved(log)
            self._tell_size()

    def discard(self, log: Log, batch: CachedBatch) -> None:
        """It turned out to be unreadable."""
        self._shelf.remove(log, batch)

    # -- what is known -----------------------------------------------------------------------------------------------
    def lookup(self, log: Log, offset: int, max_bytes: int, *, at_ms: float | None = None) -> TailAnswer:
        """Whole appends from `offset` on: at least one, no more than it takes to fill `max_bytes`.

        `at_ms`: when the question came up. What was young then counts, and what became known since, however long the
        one who asks waited for its turn: a busy process must not throw away what it has because it is busy.
        """
        tail = self._tails.get(log)
        if tail is None or offset < tail.log_start_offset or offset > tail.next_offset:
            return TailMiss()
        self._tails.move_to_end(log)
        now = self.clock() if at_ms is None else at_ms
        if offset == tail.next_offset:
            return TailEmpty(offset - 1) if now - tail.end_at_ms <= self.fresh_ms else TailMiss(unconfirmed=True)
        found: list[CachedBatch] = []
        size = 0
        for item in self._shelf.run(log, offset):
            if not self._counts(tail, item, now):
                break
            found.append(item)
            size += item.byte_length
            if size >= max_bytes:
                break
        else:
            if not found:
                return TailMiss()
        if not found:
            return TailMiss(unconfirmed=True)
        return TailHit(tuple(found), found[-1].end_offset + 1, tail.next_offset - 1)

    def next_start(self, log: Log, offset: int) -> int | None:
        """How far who misses `offset` has to read before the cache may go on."""
        return self._shelf.next_start(log, offset)

    def known(self, log: Log) -> Tail | None:
        return self._tails.get(log)

    def is_confirmed(self, log: Log, at_ms: float) -> bool:
        """Is what is known of the log's life and start young enough to count?"""
        tail = self._tails.get(log)
        return tail is not None and at_ms - tail.confirmed_at_ms <= self.fresh_ms

    def _counts(self, tail: Tail, item: CachedBatch, now: float) -> bool:
        if now - item.committed_at_ms <= self.fresh_ms:
            return True
        return item.incarnation == tail.incarnation is not None and now - tail.confirmed_at_ms <= self.fresh_ms

    # -- inside --------------------------------------------------------------------------------------------------
    def _tail(self, log: Log) -> Tail:
        tail = self._tails.get(log)
        if tail is None:
            tail = self._tails[log] = Tail()
            if len(self._tails) > TAIL_CACHE_LOGS_MAX:
                oldest, _ = self._tails.popitem(last=False)
                self._shelf.drop(oldest)
        self._tails.move_to_end(log)
        return tail

    def _is_life(self, log: Log, tail: Tail, incarnation: int, at_ms: float) -> bool:
        """False: that life is over. Another one than was known ends what was known."""
        if tail.incarnation is not None and incarnation < tail.incarnation:
            return False
        if tail.incarnation != incarnation:
            for item in self._shelf.items(log):
                if item.incarnation != incarnation and (item.incarnation is not None or item.life_floor is not None):
                    self._shelf.remove(log, item)
            tail.incarnation, tail.life_since_ms = incarnation, at_ms
            tail.log_start_offset = tail.next_offset = tail.control_next_offset = 0
            tail.confirmed_at_ms = tail.end_at_ms = LONG_AGO
        return True

    def _bind(self, log: Log, tail: Tail, incarnation: int, as_of_ms: float) -> None:
        """Batches committed before the read: of this life if the log was in it before them, else nobody can tell."""
        if not tail.unbound:
            return
        tail.unbound = False
        for item in self._shelf.unbound(log):
            if item.committed_at_ms > as_of_ms:
                tail.unbound = True
            elif item.life_floor == incarnation:
                item.incarnation = incarnation
            else:
                self._shelf.remove(log, item)

    def _keep(self, log: Log, tail: Tail, item: CachedBatch) -> None:
        for other in self._shelf.overlapping(log, item.start_offset, item.end_offset):
            if other.incarnation is not None and other.incarnation == item.incarnation:
                return  # the same append again
            if other.committed_at_ms > item.committed_at_ms:
                return
            self._shelf.remove(log, other)
        if item.incarnation is None:
            item.life_floor = tail.incarnation if tail.life_since_ms <= item.committed_at_ms else None
            tail.unbound = True
        evicted = self._shelf.put(log, item)
        if evicted and self._metrics is not None:
            self._metrics.tail_cache_event("evicted", evicted)
        self._tell_size()

    def _move_end(self, log: Log, tail: Tail, next_offset: int, at_ms: float, *, told: bool = False) -> None:
        if next_offset >= tail.next_offset:
            tail.end_at_ms = max(tail.end_at_ms, at_ms)
            told = told or next_offset > tail.next_offset
            tail.next_offset = next_offset
        if told:
            self.on_moved(log)

    def _has_room(self, batch: Committed) -> bool:
        return self._shelf.max_bytes > 0 and total_length(batch.body) <= self._shelf.max_bytes

    def _tell_size(self) -> None:
        if self._metrics is not None:
            self._metrics.set_tail_cache(self._shelf.byte_length, self._shelf.log_count())
