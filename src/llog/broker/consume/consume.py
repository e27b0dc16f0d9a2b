"""Consume: many logs in one request, from memory where it can be, with Kafka's limits and its long poll.

    1. the tail cache, then what was read ahead             no store is touched
    2. control records of logs whose cached state is too old to count, in one call; look again
    3. the stores for the rest                              (store_read: one request per object)
    4. fill the answer in request order, within the limits
    5. not enough yet: wait for an append                   (consume_wait), and go on where each log stands

Limits, as Kafka means them: whole batches are handed out, in request order, up to `max_bytes` and per log up to
`partition_max_bytes`; the first batch of the answer is handed out however large it is, so everybody gets on. With less
than `min_bytes` the answer waits up to `max_wait_ms`; an error is answered at once, for its own partition alone.

What must stay true: whatever the caches hold, the records are the same. What they hide is bounded by the refresh: an
offset below a log's new start, or of an earlier life of its topic, may be read for `refresh_ms` after that changed, and
so may a record that key compaction removed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from llog.broker.consume.chunks import Decoded, clip, decode, decoding_bytes
from llog.broker.consume.read_ahead import ReadAhead
from llog.broker.consume.store_read import Found, Outcome, StoreReader, Want
from llog.broker.consume.wait import TailWatch
from llog.broker.offload import Offload
from llog.broker.tail.cache import TailCache, TailEmpty, TailHit, TailMetrics
from llog.broker.tail.shelf import CachedBatch
from llog.broker.topic_configs import TopicConfigs
from llog.errors import FormatError, InconsistentReadState, InvalidArgument, LlogError, StoreClosed
from llog.formats.buffers import Buffer
from llog.limits import CONSUME_DECODED_BYTES_MAX, MIB, READ_AHEAD_BYTES_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.metrics import LogMetrics
from llog.log.read.records import RecordRun

# Partitions of one consume request.
CONSUME_PARTITIONS_MAX: Final = 10_000
# … of which so many are looked up before others get their turn: about a millisecond.
CONSUME_PARTITIONS_PER_TURN: Final = 128
# How long closing waits for requests that are being answered.
CONSUME_CLOSE_WAIT_MS: Final = 10_000
# What one answer holds at most, unless a single batch is larger; Kafka brokers draw the line near here too.
CONSUME_BYTES_MAX: Final = 64 * MIB
CONSUME_WAIT_MS_MAX: Final = 300_000
# A request that was woken and found nothing new looks again after this long, not at once.
CONSUME_PAUSE_MS_MIN: Final = 5


Source = Literal["cache", "empty", "store"]


class ConsumeMetrics(TailMetrics, LogMetrics, Protocol):
    def observe_consume(
        self, partitions: int, records: int, byte_length: int, wait_ms: float, source: Source
    ) -> None: ...

    def observe_append_to_consume(self, ms: float) -> None:
        """From the commit of an append to the first time it is handed out."""


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    log: Log
    fetch_offset: int
    partition_max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    partitions: Sequence[PartitionFetch]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = CONSUME_BYTES_MAX
    decode: bool = True
    """False: only `batches` is wanted, and no record is looked at."""
    quick: Callable[[Sequence[PartitionFetched]], int | None] | None = None
    """Tried before decoding, where that would be done: makes what the front end wants straight from the batches, in
    `quick_bytes` of memory, and tells how many records they have. None, as when they have to be decoded after all."""
    hold: Callable[[int], None] | None = None
    """Told, as it grows, how much memory the answer takes; raises where there is no room for it."""

    def __post_init__(self) -> None:
        if len(self.partitions) > CONSUME_PARTITIONS_MAX:
            raise InvalidArgument("partitions", f"{len(self.partitions)}; at most {CONSUME_PARTITIONS_MAX} at once")
        for name in ("max_wait_ms", "min_bytes", "max_bytes"):
            if getattr(self, name) < 0:
                raise InvalidArgument(name, f"{getattr(self, name)} is negative")


@dataclass(slots=True)
class PartitionFetched:
    log: Log
    fetch_offset: int
    high_watermark: int = -1
    """The last readable offset; -1 where it is not known (an error)."""
    next_fetch_offset: int = -1
    runs: list[RecordRun] = field(default_factory=list)
    batches: list[Buffer] = field(default_factory=list)
    """Whole RecordBatches with their offsets; the first may begin below `fetch_offset`."""
    error: LlogError | None = None
    log_start_offset: int = -1
    """-1 where it is not known: an answer from the cache need not know it."""


def quick_bytes(batch_bytes: int) -> int:
    """What a front end may take for an answer that it makes without decoding (`ConsumeRequest.quick`)."""
    return 2 * batch_bytes


class _Part:
    """One partition of a request, on its way."""

    def __init__(self, fetch: PartitionFetch) -> None:
        self.fetch, self.log, self.offset = fetch, fetch.log, fetch.fetch_offset
        self.bytes_left = CONSUME_BYTES_MAX if fetch.partition_max_bytes is None else fetch.partition_max_bytes
        self.answer = PartitionFetched(fetch.log, fetch.fetch_offset, next_fetch_offset=fetch.fetch_offset)
        self.found: Sequence[CachedBatch] = ()
        self.came_from: Literal["hit", "empty", "miss"] = "miss"
        self.unconfirmed = False
        """Memory has something that only needs a look at the control record."""
        self.incarnation: int | None = None
        """The life of the topic that its records are of."""
        self.full = False
        """Its limit is reached: no wait will add to it."""
        self.ended = False
        """The request is answered now."""

    @property
    def open(self) -> bool:
        return not self.full and self.answer.error is None

    def fail(self, error: LlogError) -> None:
        """What it has is handed out all the same; the error is then met by the next request."""
        self.full = self.ended = True
        if not self.answer.batches:
            self.answer.error = error


class ConsumeService:
    """One per broker, on its event loop."""

    def __init__(
        self,
        context: LogContext,
        cache: TailCache,
        metrics: ConsumeMetrics,
        *,
        refresh_ms: float,
        configs: TopicConfigs | None = None,
        read_ahead_bytes: int = READ_AHEAD_BYTES_MAX,
    ) -> None:
        self._cache, self._metrics, self._clock = cache, metrics, cache.clock
        cache.fresh_ms = refresh_ms
        self._offload = Offload("llog-consume")
        self._ahead = ReadAhead(read_ahead_bytes)
        self._reader = StoreReader(context, self._ahead, self._offload, clock=cache.clock, metrics=metrics)
        self._configs = TopicConfigs(context, cache.clock) if configs is None else configs
        self.watch = TailWatch(context, cache, self._configs, refresh_ms=refresh_ms)
        self._closed = False
        self._under_way = 0
        self._nothing_under_way = asyncio.Event()

    async def consume(self, request: ConsumeRequest) -> list[PartitionFetched]:
        """One answer per partition, in request order."""
        if self._closed:
            raise StoreClosed("consume", "the broker", "it is stopping")
        self._under_way += 1
        try:
            filling = _Filling(request)
            waited_ms = await self._fill_or_wait(filling, min(request.max_wait_ms, CONSUME_WAIT_MS_MAX))
            records = await self._decode(filling) if request.decode else 0
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._nothing_under_way.set()
        source = filling.source if filling.byte_length else "empty"
        self._metrics.observe_consume(len(filling.parts), records, filling.byte_length, waited_ms, source)
        return [part.answer for part in filling.parts]

    async def close(self) -> None:
        """Who waits is answered with what there is; then nothing is accepted."""
        self._closed = True
        await self.watch.close()
        if self._under_way:
            self._nothing_under_way.clear()
            with suppress(asyncio.TimeoutError):  # what still reads then is cut off
                await asyncio.wait_for(self._nothing_under_way.wait(), CONSUME_CLOSE_WAIT_MS / 1_000)
        await self._reader.close()
        self._offload.close()

    async def _fill_or_wait(self, filling: _Filling, max_wait_ms: float) -> float:
        """How long it waited."""
        filling.at_ms = self._clock()
        deadline, waited_ms = filling.at_ms + max_wait_ms, 0.0
        parts = filling.parts
        while True:
            before = filling.byte_length
            await self._fill(parts, filling)
            filling.hold(filling.byte_length)
            now = self._clock()
            if filling.is_done() or now >= deadline or self._closed or self.watch.is_full:
                return waited_ms
            woken = await self.watch.wait(filling.positions(), deadline - now)
            if not woken.waited and filling.byte_length == before:
                # There is more, as memory has it, and it was not to be had: not at once again.
                await asyncio.sleep(min(CONSUME_PAUSE_MS_MIN, deadline - now) / 1_000)
            waited_ms += self._clock() - now
            parts, filling.at_ms = [part for part in filling.parts if part.log in woken.moved], woken.at_ms

    # -- finding -----------------------------------------------------------------------------------------------------
    async def _fill(self, parts: Sequence[_Part], filling: _Filling) -> None:
        parts = [part for part in parts if part.open]
        missed: list[_Part] = []
        for number, part in enumerate(parts, start=1):
            if not self._from_memory(part, filling):
                missed.append(part)
            if number % CONSUME_PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        stale = [part for part in missed if part.unconfirmed]
        if stale:
            await self._confirm(stale)
            found = {part for part in stale if not part.open or self._from_memory(part, filling)}
            missed = [part for part in missed if part not in found]
        self._count(parts)
        if missed:
            await self._from_stores(missed, filling)
        await self._prepare(parts)
        self._take(parts, filling)

    async def _confirm(self, parts: Sequence[_Part]) -> None:
        failed = await self.watch.confirm(part.log for part in parts)
        for part in parts:
            if part.log in failed:
                part.fail(failed[part.log])

    def _from_memory(self, part: _Part, filling: _Filling) -> bool:
        """False: the stores have to tell."""
        part.found, part.unconfirmed, part.came_from = (), False, "miss"
        wanted = filling.wanted_bytes(part)
        answer = self._cache.lookup(part.log, part.offset, wanted, at_ms=filling.at_ms)
        if isinstance(answer, TailEmpty):
            part.came_from, part.answer.high_watermark = "empty", answer.high_watermark
            return True
        if isinstance(answer, TailHit):
            part.came_from, part.answer.high_watermark = "hit", answer.high_watermark
            part.found = answer.batches
            return True
        tail = self._cache.known(part.log)
        if tail is None:
            return False
        if not self._cache.is_confirmed(part.log, filling.at_ms):
            part.unconfirmed = answer.unconfirmed or self._ahead.covers(part.log, part.offset)
            return False
        if tail.incarnation is None or not tail.log_start_offset <= part.offset < tail.next_offset:
            return False
        part.found = self._ahead.lookup(
            part.log, part.offset, tail.incarnation, wanted, compaction_version=tail.compaction_version
        )
        part.answer.high_watermark = tail.next_offset - 1
        return bool(part.found)

    def _count(self, parts: Sequence[_Part]) -> None:
        for kind, count in Counter(part.came_from for part in parts).items():
            self._metrics.tail_cache_event(kind, count)

    async def _from_stores(self, parts: Sequence[_Part], filling: _Filling) -> None:
        keyed = await self._configs.compacted_by_key({part.log.topic for part in parts})
        wants = [self._want(part, filling) for part in parts]
        for part, outcome in zip(parts, await self._reader.read(wants, filling.store_bytes(parts[0])), strict=True):
            self._learn(part, outcome, by_key=part.log.topic in keyed)
        filling.source = "store" if any(part.found for part in parts) else filling.source

    def _want(self, part: _Part, filling: _Filling) -> Want:
        wanted = max(1, filling.wanted_bytes(part))
        window, tail = self._ahead.window_bytes(part.log, part.offset, wanted), self._cache.known(part.log)
        if tail is None:
            return Want(part.log, part.offset, wanted, window)
        stop_offset = self._cache.next_start(part.log, part.offset)
        return Want(part.log, part.offset, wanted, window, tail.incarnation, tail.next_offset, stop_offset)

    def _learn(self, part: _Part, outcome: Outcome, *, by_key: bool) -> None:
        if not isinstance(outcome, Found):
            part.fail(outcome)
            return
        control = outcome.seen.control
        self._cache.see(part.log, outcome.seen, outcome.as_of_ms, by_key=by_key)
        part.answer.log_start_offset = control.log_start_offset
        tail = self._cache.known(part.log)
        assert tail is not None
        part.answer.high_watermark = max(tail.next_offset, control.sequence_counter) - 1
        part.found = outcome.batches

    async def _prepare(self, parts: Sequence[_Part]) -> None:
        """Give cached appends their offsets; the first to read them does."""
        raw = [(part, item) for part in parts for item in part.found if item.chunk is None]
        if not raw:
            return
        size = sum(item.byte_length for _, item in raw)
        prepared = await self._offload.run(size, lambda: [_is_prepared(item) for _, item in raw])
        for (part, item), is_prepared in zip(raw, prepared, strict=True):
            if not is_prepared:
                self._cache.discard(part.log, item)  # the stores have it; they are asked next time
                if item in part.found:  # not behind another that was discarded
                    part.found = part.found[: list(part.found).index(item)]

    def _take(self, parts: Sequence[_Part], filling: _Filling) -> None:
        now = self._clock()
        for part in parts:
            for item in part.found:
                if not filling.take(part, item):
                    break
                if not item.delivered and item.committed_at_ms > 0:
                    item.delivered = True
                    self._metrics.observe_append_to_consume(now - item.committed_at_ms)
            if part.found:
                self._ahead.expect(part.log, part.offset)
            part.found = ()

    async def _decode(self, filling: _Filling) -> int:
        """Decode, or what the request has for it instead; how many records there are."""
        guess = sum(decoding_bytes(part.answer.batches) for part in filling.parts)
        answers = [part.answer for part in filling.parts]
        quick = filling.quick
        if quick is not None and guess == filling.byte_length:  # nothing is compressed
            filling.hold(filling.byte_length + quick_bytes(filling.byte_length))
            shown = await self._offload.run(guess, lambda: quick(answers))
            if shown is not None:
                return shown
        filling.hold(filling.byte_length + min(guess, CONSUME_DECODED_BYTES_MAX))
        found = [part for part in filling.parts if part.answer.batches]
        # All of them in one go: each way to a thread and back costs more than decoding a small partition.
        outcomes = await self._offload.run(guess, lambda: [_decoded(part.answer) for part in found])
        records = 0
        for part, outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, FormatError):
                # Checksums fit, so these are the producer's own bytes.
                part.fail(InconsistentReadState(*part.log, f"offset {part.answer.fetch_offset}: {outcome}"))
                continue
            part.answer.runs, part.answer.next_fetch_offset = outcome.runs, outcome.next_offset
            records += outcome.record_count
        return records


def _is_prepared(item: CachedBatch) -> bool:
    try:
        item.prepare()
    except FormatError:
        return False
    return True


def _decoded(answer: PartitionFetched) -> Decoded | FormatError:
    try:
        return decode(answer.batches, answer.fetch_offset, answer.next_fetch_offset, str(answer.log))
    except FormatError as error:
        return error


class _Filling:
    """An answer that is being filled, in request order."""

    def __init__(self, request: ConsumeRequest) -> None:
        self.parts = [_Part(fetch) for fetch in request.partitions]
        self.bytes_left = min(request.max_bytes, CONSUME_BYTES_MAX)
        self._enough = min(request.min_bytes, self.bytes_left)
        self.byte_length = 0
        self.at_ms = 0.0
        """When the request came, or was woken: what memory has must have been young then."""
        self.source: Source = "cache"
        self.quick, self._hold = request.quick, request.hold

    def hold(self, byte_length: int) -> None:
        if self._hold is not None and byte_length:
            self._hold(byte_length)

    def is_done(self) -> bool:
        """Enough, an error, or nothing that a wait could add."""
        ended = any(part.ended for part in self.parts)
        return ended or self.byte_length >= self._enough or not any(part.open for part in self.parts)

    def positions(self) -> dict[Log, int]:
        """Where each log stands that may still add to the answer."""
        found: dict[Log, int] = {}
        for part in self.parts:
            if part.open:
                found[part.log] = min(part.offset, found.get(part.log, part.offset))
        return found

    def wanted_bytes(self, part: _Part) -> int:
        return min(part.bytes_left, self.bytes_left)

    def store_bytes(self, first: _Part) -> int:
        """What is left for logs that are read from the stores: not what those before them take from memory."""
        left = self.bytes_left
        for part in self.parts:
            if part is first:
                break
            left -= min(sum(item.byte_length for item in part.found), part.bytes_left)
        return max(left, 0 if self.byte_length else 1)

    def take(self, part: _Part, item: CachedBatch) -> bool:
        """Whether the part can take more."""
        assert item.chunk is not None
        if part.incarnation is not None and item.incarnation not in (None, part.incarnation):
            part.full = part.ended = True  # the topic was created again meanwhile: not in the same answer
            return False
        part.incarnation = item.incarnation
        taken = clip(item.chunk, part.offset, self.wanted_bytes(part), at_least_one=self.byte_length == 0)
        if taken is None:
            part.full = True
            return False
        size = len(taken.data)
        if size:
            part.answer.batches.append(taken.data)
        part.bytes_left -= size
        self.bytes_left -= size
        self.byte_length += size
        part.offset = max(part.offset, taken.next_offset)
        part.answer.next_fetch_offset = part.offset
        part.full = taken.more or part.bytes_left <= 0 or self.bytes_left <= 0
        return not part.full
