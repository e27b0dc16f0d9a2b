"""Consume: many logs in one request, from memory where possible, with Kafka's limits and long poll.

    1. the tail cache, then the read-ahead                  no store is read
    2. control records of logs with stale cached state, in one call; then the caches again
    3. the stores for the rest                              (store_read: one request per object)
    4. fill the answer in request order, record by record   (request); once more where records were smaller than assumed
       or batch by batch, as stored                         (raw)
    5. with too few bytes, wait for an append               (wait) and continue where each log stands

The caches never change which records a consumer gets. For up to `refresh_ms` after a change, a consumer may still read
an offset below a log's new start, records of an earlier incarnation of the topic, or a record that key compaction
removed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from llog.broker.consume.raw import RawFill
from llog.broker.consume.request import (
    CONSUME_DECODED_BYTES_MAX,
    AnswerFill,
    ConsumeRequest,
    PartitionFetch,
    PartitionFetched,
    PartitionFill,
    Source,
    decode_partition,
    quick_bytes,
)
from llog.broker.consume.store_read import LogFetch, StoreRead, StoreReader
from llog.broker.consume.wait import TailWatch
from llog.broker.tail.batches import READ_AHEAD_BYTES_MAX, ReadAhead
from llog.broker.tail.cache import TailCache, TailEmpty, TailHit, TailMetrics
from llog.broker.tail.cached_batch import CachedBatch
from llog.concurrency import Offload, batched
from llog.errors import FormatError, InconsistentReadState, LlogError, LogDeleted, StoreClosed
from llog.log.context import LogContext
from llog.log.metrics import LogMetrics
from llog.log.topics.known_topics import KnownTopics

__all__ = [
    "ConsumeMetrics",
    "ConsumeRequest",
    "ConsumeService",
    "PartitionFetch",
    "PartitionFetched",
    "Source",
    "quick_bytes",
]

# Partitions looked up before other tasks get their turn: about a millisecond of work.
CONSUME_PARTITIONS_PER_TURN: Final = 128
CONSUME_PARTITIONS_MADE_PER_TURN: Final = 512
# How long `close` waits for requests that are being answered.
CONSUME_CLOSE_WAIT_MS: Final = 10_000
CONSUME_WAIT_MS_MAX: Final = 300_000
# Lookups for one answer: each but the last found batches whose records do not fill it.
CONSUME_LOOKUPS_MAX: Final = 8
# Pause of a request that was woken without getting new bytes.
CONSUME_PAUSE_MS_MIN: Final = 5


class ConsumeMetrics(TailMetrics, LogMetrics, Protocol):
    def observe_consume(
        self, partitions: int, records: int, byte_length: int, wait_ms: float, source: Source, payload_bytes: int = 0
    ) -> None:
        """One request was answered. `wait_ms` is what it waited for appends, not what it took; `payload_bytes` are
        those of the records' values."""

    def observe_append_to_consume(self, ms: float) -> None:
        """Time from the commit of an append to its first delivery."""


class ConsumeService:
    """One per broker, on its event loop."""

    def __init__(
        self,
        context: LogContext,
        cache: TailCache,
        metrics: ConsumeMetrics,
        *,
        refresh_ms: float,
        configs: KnownTopics | None = None,
        read_ahead_bytes: int = READ_AHEAD_BYTES_MAX,
    ) -> None:
        self._cache, self._metrics, self._clock = cache, metrics, cache.clock
        cache.fresh_ms = refresh_ms
        self._offload = Offload("llog-consume")
        self._ahead = ReadAhead(read_ahead_bytes)
        self._reader = StoreReader(context, self._ahead, self._offload, clock=cache.clock, metrics=metrics)
        self._configs = KnownTopics(context, cache.clock) if configs is None else configs
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
            fill = await self._new_fill(request)
            waited_ms = await self._fill_or_wait(fill, min(request.max_wait_ms, CONSUME_WAIT_MS_MAX))
            records = fill.record_count if request.raw else await self._decode(fill)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._nothing_under_way.set()
        source = fill.source if fill.byte_length else "empty"
        self._metrics.observe_consume(len(fill.parts), records, fill.byte_length, waited_ms, source, fill.payload_bytes)
        return [part.answer for part in fill.parts]

    async def close(self) -> None:
        """Answer waiting requests with the records at hand and accept no more."""
        self._closed = True
        await self.watch.close()
        if self._under_way:
            self._nothing_under_way.clear()
            with suppress(asyncio.TimeoutError):  # requests that still read are cut off
                await asyncio.wait_for(self._nothing_under_way.wait(), CONSUME_CLOSE_WAIT_MS / 1_000)
        await self._reader.close()
        self._offload.close()

    async def _new_fill(self, request: ConsumeRequest) -> AnswerFill:
        parts: list[PartitionFill] = []
        for some in batched(request.partitions, CONSUME_PARTITIONS_MADE_PER_TURN):
            if parts:
                await asyncio.sleep(0)
            parts += map(PartitionFill, some)
        return RawFill(request, parts) if request.raw else AnswerFill(request, parts)

    async def _fill_or_wait(self, fill: AnswerFill, max_wait_ms: float) -> float:
        """Fill the answer, waiting for appends if needed; returns the milliseconds waited."""
        fill.at_ms = self._clock()
        deadline, waited_ms = fill.at_ms + max_wait_ms, 0.0
        parts = fill.parts
        while True:
            before = fill.byte_length
            await self._fill(parts, fill)
            fill.hold(fill.byte_length)
            now = self._clock()
            if fill.is_done() or now >= deadline or self._closed or self.watch.is_full:
                return waited_ms
            woken = await self.watch.wait(fill.next_offsets(), deadline - now)
            if not woken.waited and fill.byte_length == before:
                # The cache knows of more records, but none could be read: pause before the next attempt.
                await asyncio.sleep(min(CONSUME_PAUSE_MS_MIN, deadline - now) / 1_000)
            waited_ms += self._clock() - now
            parts, fill.at_ms = [part for part in fill.parts if part.log in woken.moved], woken.at_ms

    # -- finding -----------------------------------------------------------------------------------------------------
    async def _fill(self, parts: Sequence[PartitionFill], fill: AnswerFill) -> None:
        parts = [part for part in parts if part.open]
        for _ in range(CONSUME_LOOKUPS_MAX):
            await self._find(parts, fill)
            await self._take(parts, fill)
            unfilled = [part for part in parts if fill.wants_more(part)]
            for part in parts:
                part.batches = part.delivered = ()
            if not unfilled:
                return
            parts = unfilled

    async def _find(self, parts: Sequence[PartitionFill], fill: AnswerFill) -> None:
        missed = await self._all_from_memory(parts, fill)
        stale = [part for part in missed if part.unconfirmed]
        if stale:
            await self._confirm(stale)
            answered = set(stale).difference(await self._all_from_memory([part for part in stale if part.open], fill))
            missed = [part for part in missed if part not in answered]
        self._count(parts)
        if missed:
            await self._from_stores(missed, fill)
        await self._prepare(parts, raw=fill.raw)

    async def _all_from_memory(self, parts: Sequence[PartitionFill], fill: AnswerFill) -> list[PartitionFill]:
        """Look up partitions in the caches; returns those that must be read from the stores."""
        missed: list[PartitionFill] = []
        for some in batched(parts, CONSUME_PARTITIONS_PER_TURN):
            if some[0] is not parts[0]:
                await asyncio.sleep(0)
            missed += [part for part in some if not self._from_memory(part, fill)]
        return missed

    async def _confirm(self, parts: Sequence[PartitionFill]) -> None:
        failed = await self.watch.confirm(part.log for part in parts)
        for part in parts:
            if part.log in failed:
                part.fail(failed[part.log])

    def _from_memory(self, part: PartitionFill, fill: AnswerFill) -> bool:
        """Look up one partition in the caches; False if it must be read from the stores."""
        part.batches, part.unconfirmed, part.passed_over, part.cache_result = (), False, False, "miss"
        part.wanted_bytes = wanted = fill.wanted_bytes(part)
        tail = self._cache.known(part.log)
        if tail is None:
            return False
        if fill.raw and tail.version >= 0:
            part.answer.log_start_offset = tail.log_start_offset
        if part.fetch.incarnation is not None and tail.incarnation not in (None, part.fetch.incarnation):
            part.unconfirmed = True
            return False
        answer = self._cache.lookup(part.log, part.offset, wanted, at_ms=fill.at_ms)
        if isinstance(answer, TailEmpty):
            part.cache_result, part.answer.high_watermark = "empty", answer.high_watermark
            return True
        if isinstance(answer, TailHit):
            part.cache_result, part.answer.high_watermark = "hit", answer.high_watermark
            part.batches = answer.batches
            return True
        if not self._cache.is_confirmed(part.log, fill.at_ms):
            part.unconfirmed = answer.unconfirmed or self._ahead.covers(part.log, part.offset)
            return False
        if tail.incarnation is None or not tail.log_start_offset <= part.offset < tail.next_offset:
            return False
        part.batches = self._ahead.lookup(
            part.log, part.offset, tail.incarnation, wanted, compaction_version=tail.compaction_version
        )
        part.answer.high_watermark = tail.next_offset - 1
        return bool(part.batches)

    def _count(self, parts: Sequence[PartitionFill]) -> None:
        for kind, count in Counter(part.cache_result for part in parts).items():
            self._metrics.tail_cache_event(kind, count)

    async def _from_stores(self, parts: Sequence[PartitionFill], fill: AnswerFill) -> None:
        keyed = await self._configs.compacted_by_key({part.log.topic for part in parts})
        fetches = [self._log_fetch(part, fill) for part in parts]
        for part, outcome in zip(parts, await self._reader.read(fetches, fill.store_bytes(parts[0])), strict=True):
            self._learn(part, outcome, by_key=part.log.topic in keyed)
        fill.source = "store" if any(part.batches for part in parts) else fill.source

    def _log_fetch(self, part: PartitionFill, fill: AnswerFill) -> LogFetch:
        wanted = max(1, fill.wanted_bytes(part))
        window, tail = self._ahead.window_bytes(part.log, part.offset, wanted), self._cache.known(part.log)
        if tail is None:
            return LogFetch(part.log, part.offset, wanted, window, part.fetch.incarnation)
        stop_offset = self._cache.next_start(part.log, part.offset)
        known_incarnation, wanted_incarnation = tail.incarnation, part.fetch.incarnation
        if wanted_incarnation is not None and (known_incarnation is None or known_incarnation < wanted_incarnation):
            return LogFetch(part.log, part.offset, wanted, window, wanted_incarnation)
        return LogFetch(part.log, part.offset, wanted, window, known_incarnation, tail.next_offset, stop_offset)

    def _learn(self, part: PartitionFill, outcome: StoreRead | LlogError, *, by_key: bool) -> None:
        if not isinstance(outcome, StoreRead):
            part.fail(outcome)
            return
        control = outcome.view.control
        self._cache.see(part.log, outcome.view, outcome.as_of_ms, by_key=by_key)
        if part.fetch.incarnation not in (None, control.incarnation):
            part.fail(LogDeleted(*part.log, "its topic was deleted and created again"))
            return
        part.answer.log_start_offset = control.log_start_offset
        tail = self._cache.known(part.log)
        assert tail is not None
        part.answer.high_watermark = max(tail.next_offset, control.sequence_counter) - 1
        part.batches = outcome.batches
        part.passed_over = not outcome.batches and part.offset < outcome.view.next_offset

    async def _prepare(self, parts: Sequence[PartitionFill], *, raw: bool) -> None:
        """Give cached appends their offsets and, to divide them, sum up their records: once each, when they are first
        read."""
        unready = [(part, item) for part in parts for item in part.batches if not item.is_ready(raw)]
        if not unready:
            return
        size = sum(item.work_bytes(raw) for _, item in unready)
        prepared = await self._offload.run(size, lambda: [_is_prepared(item, raw) for _, item in unready])
        for (part, item), is_prepared in zip(unready, prepared, strict=True):
            if item.copied:
                self._cache.count_again(item)
            if not is_prepared:
                self._cache.discard(part.log, item)  # the next request reads it from the stores
                if item in part.batches:  # not already cut off with an earlier one
                    part.batches = part.batches[: list(part.batches).index(item)]

    async def _take(self, parts: Sequence[PartitionFill], fill: AnswerFill) -> None:
        cost = fill.take_cost(parts)
        if cost.inflated_bytes:
            fill.hold(fill.byte_length + min(cost.inflated_bytes, CONSUME_DECODED_BYTES_MAX))
        if fill.raw:
            for some in batched(parts, CONSUME_PARTITIONS_PER_TURN):
                if some[0] is not parts[0]:
                    await asyncio.sleep(0)
                fill.take_all(some)
                self._note_taken(some)
            return
        await self._offload.run(sum(cost), lambda: fill.take_all(parts))
        self._note_taken(parts)

    def _note_taken(self, parts: Sequence[PartitionFill]) -> None:
        now = self._clock()
        for part in parts:
            for item in part.delivered:
                if not item.delivered and item.committed_at_ms > 0:
                    item.delivered = True
                    self._metrics.observe_append_to_consume(now - item.committed_at_ms)
            if part.batches:
                self._ahead.expect(part.log, part.offset)

    async def _decode(self, fill: AnswerFill) -> int:
        """Decode the batches, or let the request's `quick` do it; returns the number of records."""
        answers, size = [part.answer for part in fill.parts], fill.byte_length
        quick = fill.quick
        if quick is not None:
            fill.hold(size + quick_bytes(size))
            quick_records = await self._offload.run(size, lambda: quick(answers))
            if quick_records is not None:
                fill.payload_bytes = fill.record_bytes  # such records have neither keys nor headers
                return quick_records
        fill.hold(2 * size)
        parts = [part for part in fill.parts if part.answer.batches]
        # All in one call: a trip to a thread and back costs more than decoding a small partition.
        outcomes = await self._offload.run(size, lambda: [decode_partition(part.answer) for part in parts])
        records = 0
        for part, outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, FormatError):
                # The checksums match, so the producer sent these bytes.
                part.answer.batches = []
                part.fail(InconsistentReadState(*part.log, f"offset {part.answer.fetch_offset}: {outcome}"))
                continue
            part.answer.runs, part.answer.next_fetch_offset = outcome.runs, outcome.next_offset
            records += outcome.record_count
            fill.payload_bytes += outcome.value_bytes
        return records


def _is_prepared(item: CachedBatch, raw: bool) -> bool:
    try:
        item.make_ready(raw)
    except FormatError:
        return False
    return True
