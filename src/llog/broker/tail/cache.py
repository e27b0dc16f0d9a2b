"""The tail cache: the newest appends of every log, encoded, and the end of each log.

Most consumers want what was just appended: a hit reads neither metadata nor objects, and neither does a wait at a known
end. The cache is only an optimisation; everything else is read from the stores. With a limit of 0 bytes it keeps ends
only.

- A fact in the cache counts for `fresh_ms` after the append was committed, or after the read of a control record that
  confirms it (`confirm`). So a consumer may see records of an earlier incarnation, records below the log's start or an
  old end for at most `fresh_ms` after they became wrong. An older fact is a `TailMiss` with `unconfirmed`: the caller
  reads the control record and asks again.
- For a log that is compacted by key, records below the compaction cursor are dropped (`see`): some may be removed.
- A batch of unknown incarnation counts by its own age, until a control record shows the incarnation that the log had
  before the append; then the batch belongs to it. Otherwise it is dropped.
- Limited in bytes over all logs (the oldest append is evicted first) and in the number of logs with a known end.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from llog.broker.tail.batches import BatchCache
from llog.broker.tail.cached_batch import CachedBatch
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.log.append.known import KnownLogs
from llog.log.keys import Log
from llog.log.read.view import LogView

# Logs with a known end; beyond that, the least recently used are forgotten.
TAIL_CACHE_LOGS_MAX: Final = 100_000
# How long cached state counts without reading the control record, unless LLOG_TAIL_REFRESH_MS is given.
TAIL_FRESH_MS_DEFAULT: Final = 100

LONG_AGO: Final = float("-inf")


def monotonic_ms() -> float:
    """The machine's monotonic clock, which all its processes share."""
    return time.monotonic() * 1_000


class CommittedAppend(Protocol):
    """A record group that was committed, or the new part of it. The body is as uploaded, without offsets."""

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
    @property
    def payload_bytes(self) -> int: ...


class TailMetrics(Protocol):
    def tail_cache_event(self, kind: str, count: int = 1) -> None:
        """`hit`, `miss`, `empty` or `evicted`."""

    def set_tail_cache(self, byte_length: int, logs: int) -> None: ...


class TailHit(NamedTuple):
    batches: tuple[CachedBatch, ...]
    """Without a gap; the first holds the wanted offset."""
    next_offset: int
    high_watermark: int


class TailEmpty(NamedTuple):
    """The wanted offset is the log's end."""

    high_watermark: int


class TailMiss(NamedTuple):
    unconfirmed: bool = False
    """The cache holds an answer that is too old; the control record must confirm it."""


TailAnswer = TailHit | TailEmpty | TailMiss


class Tail:
    """The known state of one log."""

    __slots__ = (
        "compaction_version",
        "confirmed_at_ms",
        "control_next_offset",
        "end_at_ms",
        "has_unknown_incarnation",
        "incarnation",
        "incarnation_since_ms",
        "log_start_offset",
        "next_offset",
        "version",
    )

    def __init__(self) -> None:
        self.incarnation: int | None = None
        self.incarnation_since_ms = LONG_AGO
        """When that incarnation was first seen."""
        self.version = -1
        """Version of the newest control record."""
        self.control_next_offset = 0
        """The end in that record; appends of this process advance only `next_offset`."""
        self.log_start_offset = 0
        self.next_offset = 0
        self.confirmed_at_ms = LONG_AGO
        """When the read began that confirmed incarnation and start."""
        self.end_at_ms = LONG_AGO
        """When `next_offset` was known to be the end."""
        self.has_unknown_incarnation = False
        """Whether a cached batch has no known incarnation."""
        self.compaction_version: int | None = None
        """Version of the newest compaction record; None for a log that is not compacted by key."""


class TailCache:
    def __init__(
        self,
        bytes_max: int,
        *,
        fresh_ms: float = TAIL_FRESH_MS_DEFAULT,
        clock: Callable[[], float] = monotonic_ms,
        metrics: TailMetrics | None = None,
    ) -> None:
        self.fresh_ms, self.clock = fresh_ms, clock
        self.on_moved: Callable[[Log], None] | None = None
        """Called with every log that has a moved end or another change of state."""
        self._metrics = metrics
        self._in_place = True
        """No one else reads the bytes of appends."""
        self._batches = BatchCache(bytes_max)
        self._tails: OrderedDict[Log, Tail] = OrderedDict()

    @property
    def byte_length(self) -> int:
        return self._batches.byte_length

    def start(self) -> None:
        """Does nothing here; a shared cache starts to follow the other processes."""

    async def close(self) -> None:
        """Does nothing here."""

    # -- changes -------------------------------------------------------------------------------------------
    def add(
        self,
        batch: CommittedAppend,
        *,
        incarnation: int | None = None,
        epoch: int | None = None,
        created_at_ms: int | None = None,
        committed_at_ms: float | None = None,
    ) -> None:
        """Add an append, committed now or at `committed_at_ms`. Bare payloads are kept only with `created_at_ms`, the
        creation time of their blob, which is their timestamp."""
        now = self.clock() if committed_at_ms is None else committed_at_ms
        tail = self._tail(batch.log)
        if incarnation is not None and not self._enter_incarnation(batch.log, tail, incarnation, now):
            return
        if self._batches.bytes_max > 0 and (batch.encoding != BYTES_BATCH or created_at_ms is not None):
            item = CachedBatch(
                batch.start_offset,
                batch.end_offset,
                batch.body,
                encoding=batch.encoding,
                incarnation=incarnation,
                committed_at_ms=now,
                created_at_ms=created_at_ms or 0,
                in_place=self._in_place,
                payload_bytes=batch.payload_bytes,
            )
            if item.byte_length <= self._batches.bytes_max:
                self._keep(batch.log, tail, item)
        self._move_end(batch.log, tail, batch.end_offset + 1, now)

    def note_end(self, log: Log, next_offset: int) -> None:
        """The log ends before `next_offset` now."""
        self._move_end(log, self._tail(log), next_offset, self.clock())

    def confirm(
        self, log: Log, *, incarnation: int, version: int, log_start_offset: int, next_offset: int, as_of_ms: float
    ) -> None:
        """Take in a control record; the read of it began at `as_of_ms`."""
        tail = self._tail(log)
        if version < tail.version:
            return  # older than the last one
        moved = (tail.incarnation, tail.log_start_offset) != (incarnation, log_start_offset)
        # An end learned after this read began, while the incarnation was unknown, is newer than the record's.
        newer_end = tail.next_offset if tail.incarnation is None and tail.end_at_ms > as_of_ms else 0
        if not self._enter_incarnation(log, tail, incarnation, as_of_ms):
            return
        tail.version, tail.control_next_offset = version, next_offset
        tail.log_start_offset = max(tail.log_start_offset, log_start_offset)
        tail.confirmed_at_ms = max(tail.confirmed_at_ms, as_of_ms)
        self._bind(log, tail, incarnation, as_of_ms)
        self._move_end(log, tail, max(next_offset, newer_end), as_of_ms, changed=moved)

    def confirm_again(self, log: Log, version: int, as_of_ms: float) -> bool:
        """The control record still has this version, and the log is not compacted by key. False if the cache knows
        another version, or none."""
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
        """`confirm`, and drop what key compaction may have changed."""
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
            self._batches.drop_below(log, seen.cursor)
            self._report_size()

    def forget(self, log: Log) -> None:
        if self._tails.pop(log, None) is not None:
            self._batches.drop(log)
            self._moved(log)
            self._report_size()

    def count_again(self, batch: CachedBatch) -> None:
        """The bytes of the batch were copied."""
        batch.copied = False
        self._batches.count_again(batch)

    def discard(self, log: Log, batch: CachedBatch) -> None:
        """Remove an unreadable batch."""
        self._batches.remove(log, batch)

    # -- lookups -----------------------------------------------------------------------------------------------
    def lookup(self, log: Log, offset: int, bytes_max: int, *, at_ms: float | None = None) -> TailAnswer:
        """Whole appends from `offset` on: at least one, no more than needed to fill `bytes_max`.

        `at_ms`: when the request arrived. Facts that were fresh then still count, however long the request waited for
        its turn: a busy process must not discard its cache because it is busy.
        """
        tail = self._tails.get(log)
        if tail is None or offset < tail.log_start_offset or offset > tail.next_offset:
            return TailMiss()
        self._tails.move_to_end(log)
        now = self.clock() if at_ms is None else at_ms
        if offset == tail.next_offset:
            return TailEmpty(offset - 1) if now - tail.end_at_ms <= self.fresh_ms else TailMiss(unconfirmed=True)
        batches: list[CachedBatch] = []
        size = 0
        for item in self._batches.run(log, offset):
            if not self._counts(tail, item, now):
                break
            batches.append(item)
            size += item.byte_length
            if size >= bytes_max:
                break
        else:
            if not batches:
                return TailMiss()
        if not batches:
            return TailMiss(unconfirmed=True)
        return TailHit(tuple(batches), batches[-1].end_offset + 1, tail.next_offset - 1)

    def next_start(self, log: Log, offset: int) -> int | None:
        """Where the next cached append behind a missing `offset` begins: a read from the stores may stop there."""
        return self._batches.next_start(log, offset)

    def known(self, log: Log) -> Tail | None:
        return self._tails.get(log)

    def is_confirmed(self, log: Log, at_ms: float) -> bool:
        """Whether the known incarnation and start of the log are fresh."""
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
                self._batches.drop(oldest)
        self._tails.move_to_end(log)
        return tail

    def _enter_incarnation(self, log: Log, tail: Tail, incarnation: int, at_ms: float) -> bool:
        """False for an incarnation older than the known one. A newer one clears the state of the log."""
        if tail.incarnation is not None and incarnation < tail.incarnation:
            return False
        if tail.incarnation != incarnation:
            for item in self._batches.items(log):
                if item.incarnation != incarnation and (
                    item.incarnation is not None or item.incarnation_before is not None
                ):
                    self._batches.remove(log, item)
            tail.incarnation, tail.incarnation_since_ms = incarnation, at_ms
            tail.log_start_offset = tail.next_offset = tail.control_next_offset = 0
            tail.confirmed_at_ms = tail.end_at_ms = LONG_AGO
        return True

    def _bind(self, log: Log, tail: Tail, incarnation: int, as_of_ms: float) -> None:
        """Batches committed before the read belong to this incarnation if the log already was in it; else drop them."""
        if not tail.has_unknown_incarnation:
            return
        tail.has_unknown_incarnation = False
        for item in self._batches.without_incarnation(log):
            if item.committed_at_ms > as_of_ms:
                tail.has_unknown_incarnation = True
            elif item.incarnation_before == incarnation:
                item.incarnation = incarnation
            else:
                self._batches.remove(log, item)

    def _keep(self, log: Log, tail: Tail, item: CachedBatch) -> None:
        for other in self._batches.overlapping(log, item.start_offset, item.end_offset):
            if other.incarnation is not None and other.incarnation == item.incarnation:
                return  # the same append again
            if other.committed_at_ms > item.committed_at_ms:
                return
            self._batches.remove(log, other)
        if item.incarnation is None:
            item.incarnation_before = tail.incarnation if tail.incarnation_since_ms <= item.committed_at_ms else None
            tail.has_unknown_incarnation = True
        evicted = self._batches.put(log, item)
        if evicted and self._metrics is not None:
            self._metrics.tail_cache_event("evicted", evicted)
        self._report_size()

    def _move_end(self, log: Log, tail: Tail, next_offset: int, at_ms: float, *, changed: bool = False) -> None:
        if next_offset >= tail.next_offset:
            tail.end_at_ms = max(tail.end_at_ms, at_ms)
            changed = changed or next_offset > tail.next_offset
            tail.next_offset = next_offset
        if changed:
            self._moved(log)

    def _moved(self, log: Log) -> None:
        if self.on_moved is not None:
            self.on_moved(log)

    def _report_size(self) -> None:
        if self._metrics is not None:
            self._metrics.set_tail_cache(self._batches.byte_length, self._batches.log_count())


def feed(cache: TailCache, known_logs: KnownLogs) -> Callable[[CommittedAppend], None]:
    """A callback that adds every committed append to the cache, with incarnation and epoch where they are certain.

    Right after a commit, `known_logs` holds the control record that this process wrote. If that record does not end
    with the append (part of a record group took another way), the append is added without an incarnation.
    """

    def add(batch: CommittedAppend) -> None:
        known = known_logs.get(batch.log)
        if known is None or known.control.sequence_counter != batch.end_offset + 1:
            cache.add(batch)
        else:
            cache.add(batch, incarnation=known.control.incarnation, epoch=known.control.epoch)

    return add
