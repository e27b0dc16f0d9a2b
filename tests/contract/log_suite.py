"""The contract of the log on every metadata store: appended records are stored once, in order, under any failure."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from llog.errors import (
    AppendNotCommitted,
    AppendUncertain,
    DuplicateSequence,
    LogError,
    LogFenced,
    MetadataStoreError,
    MetadataUncertain,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionNotInitialized,
    UnknownProducer,
)
from llog.formats.records.encode import encode_records
from llog.formats.values import ControlRecord, IndexEntry, decode_value, encode_value
from llog.log.append.append import Appended, Appender, EncodedGroup, piece_outcomes
from llog.log.append.pieces import Landed, Piece
from llog.log.cleanup.retention import Limits, delete_records, retain
from llog.log.context import LogContext
from llog.log.fence import fence, unfence
from llog.log.keys import Keys, Log
from llog.log.producers import WINDOW, ProducerClaim
from llog.log.read.read import iter_runs, read_offset, view
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.port import GroupOutcome, MetadataStore, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contexts import log_context
from tests.contract.on_stores import OpenStore
from tests.patience import until

ORDERS = Log("orders", 0)


def context_on(metadata: MetadataStore, objects: ObjectStore, seed: int) -> LogContext:
    # Every test has objects of its own, and so a root of its own in a metadata store that tests share.
    keys = Keys(f"log-{zlib.crc32(objects.url.encode()):08x}")
    return log_context(metadata, objects, seed=seed, keys=keys)


def group(log: Log, *values: bytes, producers: tuple[ProducerClaim, ...] = ()) -> EncodedGroup:
    batch = encode_records(list(values), timestamps_ms=5)
    return EncodedGroup(log, len(values), "kafka-v2", [batch], 5, producers)


def group_of(log: Log, *pieces: tuple[ProducerClaim | None, Sequence[bytes]]) -> EncodedGroup:
    """A group of several producers' batches."""
    bodies = [encode_records(list(values), timestamps_ms=5) for _, values in pieces]
    described = [Piece(len(values), len(body), claim) for (claim, values), body in zip(pieces, bodies, strict=True)]
    count = sum(len(values) for _, values in pieces)
    return EncodedGroup(log, count, "kafka-v2", bodies, 5, pieces=tuple(described))


def batch(producer_id: int, first: int, count: int = 1) -> tuple[ProducerClaim, list[bytes]]:
    values = [b"%d/%d" % (producer_id, first + i) for i in range(count)]
    return ProducerClaim(producer_id, 0, first, first + count - 1), values


class InterruptedStore(ForwardingMetadataStore):
    """The next write that would commit an append gets no answer, or a late one; `meanwhile` runs before its sender can
    look."""

    _meanwhile: Callable[[], Awaitable[object]] | None = None

    def interrupt(
        self, meanwhile: Callable[[], Awaitable[object]], *, arrives: bool = True, answered: bool = False
    ) -> None:
        self._meanwhile, self._arrives, self._answered = meanwhile, arrives, answered

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        meanwhile = self._meanwhile
        if meanwhile is None or not groups[0][0].key.path.endswith("/control"):
            return await super().write(groups)
        self._meanwhile = None
        answers = await self.inner.write(groups) if self._arrives else []
        await meanwhile()
        if self._answered:
            return answers
        return [MetadataUncertain("write", group[0].key.path, "interrupted") for group in groups]


def offsets_of(outcome: object) -> list[object]:
    assert isinstance(outcome, Appended)
    return [tuple(piece) if isinstance(piece, Landed) else type(piece) for piece in outcome.pieces]


async def contents(context: LogContext, log: Log) -> list[tuple[int, bytes | None]]:
    start = (await view(context, log, strict=True)).control.log_start_offset
    return [(r.offset, r.payload) async for run in iter_runs(context, log, start) for r in run.records()]


@dataclass
class History:
    """The answers that writers got for their tokens."""

    landed: dict[bytes, tuple[Log, int]] = field(default_factory=dict)
    uncertain: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)

    def check(self, log: Log, found: list[tuple[int, bytes | None]]) -> None:
        offsets, tokens = [offset for offset, _ in found], [token for _, token in found]
        assert offsets == list(range(1, len(offsets) + 1)), "an offset was given twice or skipped"
        assert len(set(tokens)) == len(tokens), "a record is stored twice"
        stored = {token: offset for offset, token in found}
        for token, (its_log, offset) in self.landed.items():
            if its_log == log:
                assert stored.get(token) == offset, f"{token!r} was acknowledged at {offset}"
        assert not self.refused & stored.keys(), "a refused append is stored"
        unknown = stored.keys() - self.landed.keys() - self.uncertain
        assert not unknown, f"stored but never appended: {unknown}"


async def write_tokens(appender: Appender, history: History, name: str, logs: list[Log], count: int) -> None:
    for i in range(count):
        tokens = {log: f"{name}-{i}-{log}".encode() for log in logs}
        outcomes = await appender.append([group(log, token) for log, token in tokens.items()])
        for (log, token), outcome in zip(tokens.items(), outcomes, strict=True):
            if isinstance(outcome, Appended):
                history.landed[token] = (log, outcome.start_offset)
            elif isinstance(outcome, AppendUncertain):
                history.uncertain.add(token)
            else:
                assert isinstance(outcome, AppendNotCommitted), outcome
                history.refused.add(token)


class LogContract:
    """Inherited per metadata store; the subclass provides `open_store`."""

    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> ObjectStore:
        return MemoryObjectStore(f"memory://log-{request.node.name}-{time.time_ns()}")

    @pytest.fixture
    async def context(self, open_store: OpenStore, objects: ObjectStore) -> LogContext:
        return context_on(await open_store(), objects, 1)

    async def test_appended_records_are_read_at_their_offsets(self, context: LogContext) -> None:
        appender = Appender(context)
        clicks = Log("clicks", 3)
        for expected in (1, 3):
            first, second = await appender.append([group(ORDERS, b"a", b"b"), group(clicks, b"x", b"y")])
            assert isinstance(first, Appended)
            assert isinstance(second, Appended)
            assert (first.start_offset, first.end_offset) == (expected, expected + 1)
            assert first.wal_uri == second.wal_uri, "one object for both"
        await appender.close()
        assert await contents(context, ORDERS) == [(1, b"a"), (2, b"b"), (3, b"a"), (4, b"b")]
        assert (await read_offset(context, clicks, 3)).payload == b"x"
        control = (await view(context, ORDERS, strict=True)).control
        assert control.pending is None, "closing leaves nothing pending"

    async def test_a_pending_append_is_readable_before_anyone_settles_it(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        appender = Appender(context)
        await appender.append([group(ORDERS, b"a", b"b")])
        other = context_on(await open_store(), objects, 2)
        assert (await read_offset(other, ORDERS, 2)).payload == b"b"

    async def test_reads_below_the_start_and_beyond_the_end_differ(self, context: LogContext) -> None:
        with pytest.raises(PartitionNotInitialized):
            await read_offset(context, ORDERS, 1)
        await Appender(context).append([group(ORDERS, b"a")])
        for offset in (0, 2, 99):
            with pytest.raises(OffsetOutOfRange) as caught:
                await read_offset(context, ORDERS, offset)
            assert (caught.value.log_start_offset, caught.value.next_offset) == (1, 2)
        assert [run async for run in iter_runs(context, ORDERS, 2)] == []

    async def test_writers_of_one_log_never_share_an_offset(self, open_store: OpenStore, objects: ObjectStore) -> None:
        """R5: a retry computes its offsets from the control record that it has just read."""
        contexts = [context_on(await open_store(), objects, seed) for seed in range(4)]
        appenders, history = [Appender(context) for context in contexts], History()
        logs = [ORDERS, Log("orders", 1)]
        await asyncio.gather(*(write_tokens(a, history, f"w{i}", logs, 15) for i, a in enumerate(appenders)))
        for appender in appenders:
            await appender.close()
        assert not history.refused
        assert not history.uncertain
        for log in logs:
            found = await contents(contexts[0], log)
            history.check(log, found)
            assert len(found) == 60

    @pytest.mark.parametrize("seed", range(3))
    async def test_answers_that_never_come_lose_nothing_and_store_nothing_twice(
        self, open_store: OpenStore, objects: ObjectStore, seed: int
    ) -> None:
        """Requests and replies are lost, by seed; four writers, two logs."""
        rates = FaultRates(unavailable=0.1, lost_reply=0.15, lost_request=0.15)
        stores = [
            FaultyMetadataStore(await open_store(), random_source=random.Random(f"{seed}:{i}"), rates=rates)
            for i in range(4)
        ]
        appenders = [Appender(context_on(store, objects, i)) for i, store in enumerate(stores)]
        logs, history = [ORDERS, Log("orders", 1)], History()
        await asyncio.gather(*(write_tokens(a, history, f"w{i}", logs, 10) for i, a in enumerate(appenders)))
        for store in stores:
            store.rates = FaultRates()
        for appender in appenders:
            await appender.close()
        calm = context_on(await open_store(), objects, 9)
        for log in logs:
            history.check(log, await contents(calm, log))
        assert len(history.landed) > 40, "most appends land all the same"

    async def test_a_fenced_log_refuses_until_it_is_opened_again(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        appender = Appender(context)
        await appender.append([group(ORDERS, b"a")])
        operator = context_on(await open_store(), objects, 2)
        assert await fence(operator, ORDERS) == 1
        assert await fence(operator, ORDERS) == 1, "closing a closed log changes nothing"
        [refused] = await appender.append([group(ORDERS, b"b")])
        assert isinstance(refused, LogFenced)
        assert await unfence(operator, ORDERS) == 2
        [landed] = await appender.append([group(ORDERS, b"c")])
        assert isinstance(landed, Appended)
        await appender.close()
        assert await contents(context, ORDERS) == [(1, b"a"), (2, b"c")]

    async def test_a_repeated_batch_is_recognised_also_by_another_writer(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        one, two = Appender(context), Appender(context_on(await open_store(), objects, 2))
        batches = [(ProducerClaim(7, 0, 2 * i, 2 * i + 1),) for i in range(3)]
        for appender, claims in zip(itertools.cycle([one, two]), batches, strict=False):
            [landed] = await appender.append([group(ORDERS, b"a", b"b", producers=claims)])
            assert isinstance(landed, Appended)
        for appender in (one, two):
            [again] = await appender.append([group(ORDERS, b"a", b"b", producers=batches[1])])
            assert isinstance(again, Appended)
            assert (again.start_offset, again.end_offset) == (3, 4)
        [refused] = await two.append([group(ORDERS, b"a", producers=(ProducerClaim(7, 0, 9, 9),))])
        assert isinstance(refused, OutOfOrderSequence)
        await one.close()
        await two.close()
        assert len(await contents(context, ORDERS)) == 6

    async def test_compaction_changes_where_bytes_lie_and_nothing_else(self, context: LogContext) -> None:
        appender = Appender(context)
        for i in range(5):
            await appender.append([group(ORDERS, *(b"%d-%d" % (i, j) for j in range(3)))])
        before = await contents(context, ORDERS)
        first = await compact_once(context, ORDERS, max_offsets=6)
        assert first is not None
        assert (first.start_offset, first.end_offset, first.entry_count) == (1, 6, 2)
        assert await contents(context, ORDERS) == before
        second = await compact_once(context, ORDERS)
        assert second is not None
        assert (second.start_offset, second.end_offset) == (7, 15)
        assert await compact_once(context, ORDERS) is None
        await appender.append([group(ORDERS, b"after")])
        await appender.close()
        assert await contents(context, ORDERS) == [*before, (16, b"after")]
        entries = await context.metadata.scan(context.keys.index(ORDERS))
        assert [record.key.path[-2:] for record in entries] == ["06", "15", "16"]
        assert (await read_offset(context, ORDERS, 5)).payload == b"1-1"

    async def test_deleted_records_are_gone_and_an_entry_across_the_start_stays(self, context: LogContext) -> None:
        appender = Appender(context)
        for i in range(4):
            await appender.append([group(ORDERS, b"%d-a" % i, b"%d-b" % i)])
        assert await compact_once(context, ORDERS, max_offsets=4) is not None
        done = await delete_records(context, ORDERS, 6)
        assert (done.log_start_offset, done.entries_removed, done.segments_removed) == (6, 1, 1)
        assert await contents(context, ORDERS) == [(6, b"2-b"), (7, b"3-a"), (8, b"3-b")]
        with pytest.raises(OffsetOutOfRange):
            await read_offset(context, ORDERS, 5)
        with pytest.raises(OffsetOutOfRange):
            await delete_records(context, ORDERS, 10)
        assert await compact_once(context, ORDERS) is not None, "an entry that straddles the start is compacted whole"
        assert [offset for offset, _ in await contents(context, ORDERS)] == [6, 7, 8]
        emptied = await delete_records(context, ORDERS, -1)
        assert (emptied.log_start_offset, emptied.segments_removed) == (9, 1)
        [landed] = await appender.append([group(ORDERS, b"next")])
        assert isinstance(landed, Appended)
        assert landed.start_offset == 9
        assert await contents(context, ORDERS) == [(9, b"next")]
        assert context.segments is not None
        left = [meta.name async for meta in context.segments.list(context.keys.segment_objects(ORDERS))]
        assert left == [], "no segment is left"
        await appender.close()

    async def test_retention_by_size_and_by_time_takes_whole_entries_from_the_front(self, context: LogContext) -> None:
        appender = Appender(context)
        for i in range(4):
            await appender.append([group(ORDERS, b"%d" % i)])
        size = sum(len(part) for part in group(ORDERS, b"0").body)
        await retain(context, ORDERS, Limits(retention_bytes=2 * size))
        assert [offset for offset, _ in await contents(context, ORDERS)] == [3, 4]
        await retain(context, ORDERS, Limits(retention_bytes=size + 1))
        assert [offset for offset, _ in await contents(context, ORDERS)] == [3, 4], "less than that would be left"
        await retain(context, ORDERS, Limits(retention_ms=2**50))
        assert [offset for offset, _ in await contents(context, ORDERS)] == [3, 4]
        done = await retain(context, ORDERS, Limits(retention_ms=1_000))
        assert done.log_start_offset == 5
        assert await contents(context, ORDERS) == []
        await appender.close()

    async def test_a_repeat_is_recognised_after_retention_took_its_records(self, context: LogContext) -> None:
        appender = Appender(context)
        claims = (ProducerClaim(7, 0, 0, 1),)
        await appender.append([group(ORDERS, b"a", b"b", producers=claims)])
        await delete_records(context, ORDERS, -1)
        [again] = await Appender(context).append([group(ORDERS, b"a", b"b", producers=claims)])
        assert isinstance(again, Appended)
        assert (again.start_offset, again.end_offset) == (1, 2)
        assert await contents(context, ORDERS) == []

    async def test_a_repeat_is_recognised_after_compaction(self, context: LogContext) -> None:
        appender = Appender(context)
        claims = (ProducerClaim(7, 0, 0, 1),)
        await appender.append([group(ORDERS, b"a", b"b", producers=claims)])
        assert await compact_once(context, ORDERS) is not None
        for writer in (appender, Appender(context)):
            [again] = await writer.append([group(ORDERS, b"a", b"b", producers=claims)])
            assert isinstance(again, Appended)
            assert (again.start_offset, again.end_offset) == (1, 2)
        assert len(await contents(context, ORDERS)) == 2

    async def test_each_piece_of_a_group_has_an_outcome_of_its_own(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        """Repeats get the offsets of the first time, one that is out of order is refused, their neighbours land."""
        other = Appender(context_on(await open_store(), objects, 2))
        await other.append([group_of(ORDERS, batch(1, 0, 2), batch(2, 0))])
        appender, clicks = Appender(context), Log("clicks", 0)
        mixed = group_of(
            ORDERS,
            batch(3, 0),
            batch(1, 0, 2),
            batch(4, 0),
            (None, [b"x", b"y"]),
            batch(2, 5),
            batch(1, 2),
            batch(3, 0),
        )
        found, beside = await appender.append([mixed, group(clicks, b"c")])
        assert offsets_of(found) == [
            (4, 4, False),
            (1, 2, True),
            (5, 5, False),
            (6, 7, False),
            OutOfOrderSequence,
            (8, 8, False),
            (4, 4, True),
        ]
        assert isinstance(found, Appended)
        assert (found.start_offset, found.end_offset) == (4, 4), "of the first and of the last piece in the log"
        assert piece_outcomes(mixed, found) == found.pieces
        assert isinstance(beside, Appended)
        assert (beside.start_offset, beside.end_offset) == (1, 1)
        await appender.close()
        await other.close()
        stored = [b"1/0", b"1/1", b"2/0", b"3/0", b"4/0", b"x", b"y", b"1/2"]
        assert await contents(context, ORDERS) == list(enumerate(stored, 1))
        assert appender.counters.appends == 4, "three runs of one log and one of the other"

    async def test_one_batch_out_of_order_is_refused_beside_good_ones(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        appender = Appender(context)
        await appender.append([group_of(ORDERS, batch(1, 0))])
        # Somebody else takes the producer on, which this writer has not heard of: its doubts must be put to rest.
        other = Appender(context_on(await open_store(), objects, 2))
        await other.append([group_of(ORDERS, batch(1, 1), batch(2, 0))])
        [found] = await appender.append([group_of(ORDERS, batch(1, 2), batch(2, 9), batch(2, 1))])
        assert offsets_of(found) == [(4, 4, False), OutOfOrderSequence, (5, 5, False)]
        refused = group_of(ORDERS, batch(1, 9), batch(2, 9))
        [error] = await appender.append([refused])
        assert isinstance(error, OutOfOrderSequence)
        assert [type(piece) for piece in piece_outcomes(refused, error)] == [OutOfOrderSequence] * 2
        await appender.close()
        await other.close()
        assert [value for _, value in await contents(context, ORDERS)] == [b"1/0", b"1/1", b"2/0", b"1/2", b"2/1"]

    async def test_a_group_of_too_many_producers_is_committed_in_several_appends(
        self, context: LogContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llog.log.producers.LOG_CLAIMS_PER_APPEND_MAX", 3)
        appender = Appender(context)
        batches = [batch(i, 0) for i in range(8)]
        [found] = await appender.append([group_of(ORDERS, *batches)])
        assert isinstance(found, Appended)
        assert (found.start_offset, found.end_offset) == (1, 8)
        assert offsets_of(found) == [(i, i, False) for i in range(1, 9)]
        [again] = await appender.append([group_of(ORDERS, *batches)])
        assert offsets_of(again) == [(i, i, True) for i in range(1, 9)]
        await appender.close()
        entries = await context.metadata.scan(context.keys.index(ORDERS))
        assert [record.key.path[-2:] for record in entries] == ["03", "06", "08"]
        assert len({decode_value(IndexEntry, record.value, "entry").data_key for record in entries}) == 1, "one upload"
        assert [value for _, value in await contents(context, ORDERS)] == [b"%d/0" % i for i in range(8)]

    async def test_any_number_of_batches_of_one_producer_goes_with_one_append(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        """Of 1,000 batches the last five are stored, and recognised by every writer, before and after compaction."""
        appender, other = Appender(context), context_on(await open_store(), objects, 2)
        [found] = await appender.append([group_of(ORDERS, *(batch(7, n) for n in range(1_000)))])
        assert offsets_of(found) == [(n + 1, n + 1, False) for n in range(1_000)]
        await appender.close()
        [record] = await context.metadata.scan(context.keys.index(ORDERS))
        assert len(decode_value(IndexEntry, record.value, "entry").producers) == WINDOW
        assert len(record.value) < 2_000
        again = group_of(ORDERS, *(batch(7, n) for n in range(994, 1_000)))
        expected = [DuplicateSequence, *((n + 1, n + 1, True) for n in range(995, 1_000))]
        for when in ("before", "after"):
            for writer in (appender, Appender(other)):
                [repeated] = await writer.append([again])
                assert offsets_of(repeated) == expected, when
                await writer.close()
            if when == "before":
                assert await compact_once(context, ORDERS) is not None
        last = Appender(other)
        [found] = await last.append([group_of(ORDERS, batch(7, 1_001), batch(7, 1_000))])
        assert offsets_of(found) == [OutOfOrderSequence, (1_001, 1_001, False)]
        await last.close()
        assert [value for _, value in await contents(context, ORDERS)] == [b"7/%d" % n for n in range(1_001)]

    async def test_a_producer_that_the_log_does_not_know_begins_at_zero(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        one, two = Appender(context), Appender(context_on(await open_store(), objects, 2))
        [early] = await two.append([group_of(ORDERS, batch(7, 1))])
        assert isinstance(early, OutOfOrderSequence)
        for appender, number in ((one, 0), (two, 1)):
            [landed] = await appender.append([group_of(ORDERS, batch(7, number))])
            assert offsets_of(landed) == [(number + 1, number + 1, False)]
            await appender.close()
        assert [value for _, value in await contents(context, ORDERS)] == [b"7/0", b"7/1"]

    async def test_a_log_that_has_forgotten_producers_says_so(
        self, context: LogContext, open_store: OpenStore, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llog.log.producer_state.LOG_PRODUCERS_MAX", 3)
        appender = Appender(context)
        for producer_id in range(4):
            await appender.append([group_of(ORDERS, batch(producer_id, 0))])
        assert await compact_once(context, ORDERS) is not None
        other = Appender(context_on(await open_store(), objects, 2))
        sent = group_of(ORDERS, batch(0, 1), batch(1, 1), batch(9, 5), batch(9, 0))
        [found] = await other.append([sent])
        assert offsets_of(found) == [UnknownProducer, (5, 5, False), UnknownProducer, (6, 6, False)]
        monkeypatch.setattr("llog.log.producer_state.LOG_PRODUCERS_MAX", 100)
        assert await compact_once(context, ORDERS) is not None
        later = Appender(context_on(await open_store(), objects, 3))
        [found] = await later.append([group_of(ORDERS, batch(0, 1), batch(2, 1))])
        assert offsets_of(found) == [UnknownProducer, (7, 7, False)], "for good, also where few are left"
        for writer in (appender, other, later):
            await writer.close()

    async def test_repeats_beside_new_batches_are_recognised_after_compaction(self, context: LogContext) -> None:
        appender = Appender(context)
        await appender.append([group_of(ORDERS, batch(1, 0), batch(2, 0))])
        assert await compact_once(context, ORDERS) is not None
        for number, writer in enumerate([appender, Appender(context)]):
            [found] = await writer.append([group_of(ORDERS, batch(1, 0), batch(3 + number, 0), batch(2, 0))])
            assert offsets_of(found) == [(1, 1, True), (3 + number, 3 + number, False), (2, 2, True)]
            await writer.close()
        assert [value for _, value in await contents(context, ORDERS)] == [b"1/0", b"2/0", b"3/0", b"4/0"]

    async def test_a_log_that_is_fenced_between_two_runs_of_a_group_keeps_the_first(
        self, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        link = InterruptedStore(await open_store())
        appender, calm = Appender(context_on(link, objects, 1)), context_on(await open_store(), objects, 2)
        await appender.append([group_of(ORDERS, batch(1, 0))])
        link.interrupt(lambda: fence(calm, ORDERS), answered=True)
        [found] = await appender.append([group_of(ORDERS, batch(2, 0), batch(1, 0), batch(3, 0))])
        assert offsets_of(found) == [(2, 2, False), (1, 1, True), LogFenced]
        await appender.close()
        assert [value for _, value in await contents(calm, ORDERS)] == [b"1/0", b"2/0"]

    async def test_remaining_pieces_are_uploaded_again_when_their_blob_is_too_old(
        self, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        link = InterruptedStore(await open_store())
        appender, calm = Appender(context_on(link, objects, 1)), context_on(await open_store(), objects, 2)
        await appender.append([group_of(ORDERS, batch(1, 0))])

        async def raise_horizon() -> None:
            key = calm.keys.control(ORDERS)
            record = await calm.metadata.get(key, strict=True)
            assert record is not None
            control = decode_value(ControlRecord, record.value, key.path)
            raised = replace(control, commit_horizon_ms=calm.now_ms() + 1)
            await calm.metadata.put(key, encode_value(raised), expected=record.version)
            await until(lambda: calm.now_ms() > raised.commit_horizon_ms, "blobs younger than the horizon")

        link.interrupt(raise_horizon, answered=True)
        reported: list[object] = []
        sent = group_of(ORDERS, batch(2, 0), batch(1, 0), batch(3, 0, 2), (None, [b"x"]))
        [found] = await appender.append([sent], lambda group, outcome: reported.append((group, outcome)))
        assert offsets_of(found) == [(2, 2, False), (1, 1, True), (3, 4, False), (5, 5, False)]
        assert reported == [(sent, found)], "once, when all pieces are decided"
        await appender.close()
        assert [value for _, value in await contents(calm, ORDERS)] == [b"1/0", b"2/0", b"3/0", b"3/1", b"x"]

    @pytest.mark.parametrize("arrives", [True, False], ids=["lost reply", "lost request"])
    @pytest.mark.parametrize("gone", ["compacted", "deleted"])
    async def test_producer_state_decides_an_append_that_the_index_no_longer_shows(
        self, open_store: OpenStore, objects: ObjectStore, arrives: bool, gone: str
    ) -> None:
        """The answer is lost, and compaction or retention passes the offset before the writer reads."""
        link = InterruptedStore(await open_store())
        appender, calm = Appender(context_on(link, objects, 1)), context_on(await open_store(), objects, 2)
        other = Appender(calm)
        await appender.append([group_of(ORDERS, batch(1, 0))])

        async def meanwhile() -> None:
            await other.append([group(ORDERS, b"somebody", b"else's")])
            if gone == "compacted":
                assert await compact_once(calm, ORDERS) is not None
            else:
                await delete_records(calm, ORDERS, -1)

        link.interrupt(meanwhile, arrives=arrives)
        [found] = await appender.append([group_of(ORDERS, batch(1, 1), batch(2, 0))])
        assert offsets_of(found) == ([(2, 2, True), (3, 3, True)] if arrives else [(4, 4, False), (5, 5, False)])
        assert (appender.counters.uncertain, appender.counters.resolved) == (1, 1)
        link.interrupt(meanwhile, arrives=arrives)
        unnumbered = group_of(ORDERS, batch(1, 2), (None, [b"x"]))
        [error] = await appender.append([unnumbered])
        assert isinstance(error, AppendUncertain), "without a claim, no state remembers it"
        await appender.close()
        await other.close()
        if gone == "compacted":
            values = [value for _, value in await contents(calm, ORDERS)]
            assert (values.count(b"1/1"), values.count(b"2/0"), values.count(b"1/2")) == (1, 1, int(arrives))

    @pytest.mark.parametrize("seed", range(3))
    async def test_producers_that_repeat_themselves_on_bad_links_are_stored_once_and_in_order(
        self, open_store: OpenStore, objects: ObjectStore, seed: int
    ) -> None:
        """Two brokers are sent the same batches of the same producers; links are bad, compactors run."""
        rng = random.Random(f"pieces {seed}")
        rates = FaultRates(unavailable=0.05, lost_reply=0.15, lost_request=0.1)
        stores = [
            FaultyMetadataStore(await open_store(), random_source=random.Random(f"p{seed}:{i}"), rates=rates)
            for i in range(3)
        ]
        contexts = [context_on(store, objects, i) for i, store in enumerate(stores)]
        appenders, writing = [Appender(context) for context in contexts[:2]], True
        acknowledged: dict[tuple[int, ...], int] = {}

        async def compact() -> None:
            while writing:
                try:
                    await compact_once(contexts[2], ORDERS, max_offsets=7)
                except (LogError, MetadataStoreError):
                    pass  # a bad link; the next round resumes what it left
                await asyncio.sleep(0.001)

        async def send(appender: Appender) -> None:
            following = [0, 0, 0]
            for _ in range(12):
                batches = [batch(p, following[p] + ahead) for p in range(3) for ahead in range(rng.randint(1, 2))]
                sent = group_of(ORDERS, *batches)
                [outcome] = await appender.append([sent])
                for (claim, _), piece in zip(batches, piece_outcomes(sent, outcome), strict=True):
                    if isinstance(piece, Landed):
                        assert acknowledged.setdefault(claim[:4], piece.start_offset) == piece.start_offset, (
                            "stored twice"
                        )
                        following[claim.producer_id] = claim.first_sequence + 1
                    elif isinstance(piece, DuplicateSequence):  # the other broker went on beyond the window
                        following[claim.producer_id] = claim.first_sequence + 1

        compacting = asyncio.create_task(compact())
        await asyncio.gather(*(send(appender) for appender in appenders))
        writing = False
        await compacting
        for store in stores:
            store.rates = FaultRates()
        for appender in appenders:
            await appender.close()
        found = await contents(context_on(await open_store(), objects, 9), ORDERS)
        assert [offset for offset, _ in found] == list(range(1, len(found) + 1))
        for p in range(3):
            own = [int(value.partition(b"/")[2]) for _, value in found if value and value.startswith(b"%d/" % p)]
            assert own == list(range(len(own))), f"producer {p}: {own}"
        stored = {value: offset for offset, value in found}
        for (producer_id, _, sequence, _), offset in acknowledged.items():
            assert stored[b"%d/%d" % (producer_id, sequence)] == offset
        assert len(acknowledged) > 15

    @pytest.mark.parametrize("seed", range(3))
    async def test_writers_and_compactors_on_bad_links_lose_nothing(
        self, open_store: OpenStore, objects: ObjectStore, seed: int
    ) -> None:
        rates = FaultRates(unavailable=0.05, lost_reply=0.1, lost_request=0.1)
        stores = [
            FaultyMetadataStore(await open_store(), random_source=random.Random(f"c{seed}:{i}"), rates=rates)
            for i in range(4)
        ]
        contexts = [context_on(store, objects, i) for i, store in enumerate(stores)]
        appenders, history, writing = [Appender(context) for context in contexts[:2]], History(), True

        async def compact(context: LogContext) -> None:
            while writing:
                try:
                    await compact_once(context, ORDERS, max_offsets=5)
                except (LogError, MetadataStoreError):
                    pass  # a bad link; the next round resumes what it left
                await asyncio.sleep(0.001)

        compacting = [asyncio.create_task(compact(context)) for context in contexts[2:]]
        await asyncio.gather(*(write_tokens(a, history, f"w{i}", [ORDERS], 15) for i, a in enumerate(appenders)))
        writing = False
        await asyncio.gather(*compacting)
        for store in stores:
            store.rates = FaultRates()
        for appender in appenders:
            await appender.close()
        calm = context_on(await open_store(), objects, 9)
        history.check(ORDERS, await contents(calm, ORDERS))
        while await compact_once(calm, ORDERS) is not None:
            pass
        history.check(ORDERS, await contents(calm, ORDERS))
        seen = await view(calm, ORDERS, strict=True)
        assert seen.cursor == seen.next_offset, "a lone compactor reaches the counter"
