"""What merge and vacuum promise on every metadata store: fewer objects, the same records, and nothing lost."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from llog.errors import ClusterMismatch, VacuumRefused
from llog.formats.values import ClusterId, ControlRecord, SegmentRecord, decode_value, encode_value
from llog.log.append.append import Appended, Appender
from llog.log.cleanup.retention import delete_records, retain
from llog.log.cluster import join_cluster
from llog.log.context import LogContext
from llog.log.keys import Keys, Log
from llog.log.read.read import iter_runs
from llog.log.rewrite.segments import list_segments
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.vacuum.job import VacuumReport, vacuum_here
from llog.stores.metadata.port import GroupOutcome, MetadataStore, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer, ObjectMeta, ObjectStore
from tests.contract.log_suite import contents, context_on, group
from tests.contract.on_stores import OpenStore

ORDERS, CLICKS = Log("orders", 0), Log("clicks", 3)
MINUTE_MS = 60_000


def at(context: LogContext, minutes: float) -> LogContext:
    """The same log in a process with clocks that are this much later."""
    now_ms = time.time_ns() // 1_000_000 + int(minutes * MINUTE_MS)
    return replace(context, now_ms=lambda: now_ms)


class LaterClocks(MemoryObjectStore):
    """Objects are as old as their names say; `head` returns the time that a test has set."""

    now_ms = 0
    after_next_put: Callable[[], Awaitable[None]] | None = None

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await super().put(name, buffers, if_absent=if_absent)
        then, self.after_next_put = self.after_next_put, None
        if then is not None:
            await then()

    async def head(self, name: str) -> ObjectMeta:
        return (await super().head(name))._replace(last_modified_ms=self.now_ms)


async def vacuum_at(context: LogContext, minutes: float, *, dry_run: bool = False) -> VacuumReport:
    """Vacuum as if this much time had passed for every clock."""
    later = at(context, minutes)
    stores = [store for store in context.stores() if isinstance(store, LaterClocks)]
    for store in stores:
        store.now_ms = later.now_ms()
    true_time_ms = context.metadata.server_time_ms

    async def server_time_ms() -> int | None:
        return None if await true_time_ms() is None else later.now_ms()

    context.metadata.server_time_ms = server_time_ms  # type: ignore[method-assign]
    try:
        return await vacuum_here(later, dry_run=dry_run)
    finally:
        context.metadata.server_time_ms = true_time_ms  # type: ignore[method-assign]


async def append(context: LogContext, log: Log, *values: bytes) -> None:
    appender = Appender(context)
    for value in values:
        [outcome] = await appender.append([group(log, value)])
        assert isinstance(outcome, Appended), outcome
    await appender.close()


async def compact_each(context: LogContext, log: Log) -> int:
    """Every entry becomes a segment of its own."""
    count = 0
    while await compact_once(context, log, max_offsets=1):
        count += 1
    return count


async def names_of(store: ObjectStore, context: LogContext, kind: str) -> list[str]:
    found = [meta.name async for meta in store.list("")]
    return [name for name in found if (parsed := context.keys.parse_object(name)) and parsed.kind == kind]


class VacuumContract:
    @pytest.fixture
    def objects(self, request: pytest.FixtureRequest) -> LaterClocks:
        return LaterClocks(f"memory://vacuum-{request.node.name}-{time.time_ns()}")

    @pytest.fixture
    async def context(self, open_store: OpenStore, objects: ObjectStore) -> LogContext:
        return context_on(await open_store(), objects, 1)

    # -- merge ----------------------------------------------------------------------------------------------------
    async def test_a_merge_makes_one_segment_of_neighbours_and_changes_nothing_that_is_read(
        self, context: LogContext
    ) -> None:
        await append(context, ORDERS, *[b"%d" % i for i in range(6)])
        assert await compact_each(context, ORDERS) == 6
        before = await contents(context, ORDERS)
        merged = await merge_once(context, ORDERS)
        assert merged is not None
        assert (merged.kind, merged.level, merged.entry_count) == ("MERGE", 2, 6)
        assert await contents(context, ORDERS) == before == [(i + 1, b"%d" % i) for i in range(6)]
        assert await merge_once(context, ORDERS) is None
        entries = [r async for r in context.metadata.scan_all(context.keys.index(ORDERS), strict=True)]
        assert len(entries) == 1

    async def test_merges_of_one_level_become_the_next_and_stay_within_the_target(self, context: LogContext) -> None:
        await append(context, ORDERS, *[b"x" * 1_000 for _ in range(8)])
        await compact_each(context, ORDERS)
        levels = []
        while merged := await merge_once(context, ORDERS, target_bytes=6_000):
            assert merged.byte_length <= 6_000
            levels.append(merged.level)
        assert levels[0] == 2
        assert max(levels) >= 2
        assert [offset for offset, _ in await contents(context, ORDERS)] == list(range(1, 9))

    async def test_segments_that_a_merge_replaced_are_retired_and_go_a_grace_later(self, context: LogContext) -> None:
        await append(context, ORDERS, b"a", b"b", b"c")
        await compact_each(context, ORDERS)
        await merge_once(context, ORDERS)
        states = sorted(known.record.state for known in await list_segments(context, ORDERS))
        assert states == ["COPY_SEGMENT_FINISHED"] + ["DELETE_SEGMENT_STARTED"] * 3
        await retain(context, ORDERS)
        assert context.segments is not None
        assert len(await names_of(context.segments, context, "segment_object")) == 4
        await retain(at(context, 90), ORDERS)
        assert len(await names_of(context.segments, context, "segment_object")) == 1
        assert len(await list_segments(context, ORDERS)) == 1
        assert await contents(context, ORDERS) == [(1, b"a"), (2, b"b"), (3, b"c")]

    # -- vacuum -----------------------------------------------------------------------------------------------------
    async def test_compacted_blobs_go_after_the_grace_and_not_before(
        self, context: LogContext, objects: LaterClocks
    ) -> None:
        await append(context, ORDERS, b"a", b"b")
        await compact_once(context, ORDERS)
        await append(context, ORDERS, b"c")
        assert (await vacuum_at(context, 30)).blobs_deleted == 0
        listed = await vacuum_at(context, 90, dry_run=True)
        assert listed.blobs_deleted == len(listed.names) == 2
        assert len(await names_of(objects, context, "blob")) == 3
        done = await vacuum_at(context, 90)
        assert (done.blobs_deleted, done.names) == (2, listed.names)
        assert len(await names_of(objects, context, "blob")) == 1
        assert await contents(context, ORDERS) == [(1, b"a"), (2, b"b"), (3, b"c")]

    async def test_a_shared_blob_stays_while_one_of_its_logs_names_it(
        self, context: LogContext, objects: LaterClocks
    ) -> None:
        appender = Appender(context)
        await appender.append([group(ORDERS, b"o"), group(CLICKS, b"c")])
        await appender.close()
        await compact_once(context, ORDERS)
        assert (await vacuum_at(context, 90)).blobs_deleted == 0
        await compact_once(context, CLICKS)
        assert (await vacuum_at(context, 90)).blobs_deleted == 1
        assert await contents(context, CLICKS) == [(1, b"c")]

    async def test_a_writer_that_slept_past_the_grace_uploads_again(
        self, context: LogContext, objects: LaterClocks
    ) -> None:
        await append(context, ORDERS, b"a")
        await compact_once(context, ORDERS)
        start_ms, slept_ms = time.time_ns() // 1_000_000, 0
        slow = Appender(replace(context, now_ms=lambda: start_ms + slept_ms))

        async def while_it_slept() -> None:
            nonlocal slept_ms
            assert (await vacuum_at(context, 90)).blobs_deleted == 2
            slept_ms = 91 * MINUTE_MS

        objects.after_next_put = while_it_slept
        [outcome] = await slow.append([group(ORDERS, b"late")])
        assert isinstance(outcome, Appended), outcome
        assert await contents(context, ORDERS) == [(1, b"a"), (2, b"late")]

    async def test_vacuum_writes_nothing_to_logs_that_no_candidate_names(
        self, context: LogContext, objects: LaterClocks
    ) -> None:
        quiet = Log("quiet", 0)
        await append(context, quiet, b"q")
        await append(context, ORDERS, b"a")
        await compact_once(context, ORDERS)
        await join_cluster(context)
        written = WritesSeen(context.metadata)
        done = await vacuum_at(replace(context, metadata=written), 90)
        assert done.blobs_deleted == 1
        assert any("/orders/" in path for path in written.paths)
        assert not any("/quiet/" in path for path in written.paths), written.paths

    async def test_what_a_crashed_compactor_left_goes_in_two_steps(
        self, context: LogContext, objects: LaterClocks
    ) -> None:
        await append(context, ORDERS, b"a")
        done = await compact_once(context, ORDERS)
        assert done is not None
        segment_id = "018bcfe5687b7000800000000000abcd"  # of 2023
        name = context.keys.segment_object(ORDERS, segment_id)
        record = SegmentRecord(
            segment_id=segment_id,
            incarnation=1,
            start_offset=1,
            end_offset=1,
            size_bytes=0,
            state="COPY_SEGMENT_STARTED",
            data_key=objects.uri(name),
        )
        await objects.put(name, [b"half a segment"])
        await context.metadata.put(context.keys.segment(ORDERS, segment_id), encode_value(record))
        first = await vacuum_at(context, 90)
        assert (first.segments_marked, first.segments_deleted) == (1, 0)
        assert name in await names_of(objects, context, "segment_object")
        assert (await vacuum_at(context, 95)).segments_deleted == 0
        assert (await vacuum_at(context, 200)).segments_deleted == 1
        assert name not in await names_of(objects, context, "segment_object")
        assert [known.record.segment_id for known in await list_segments(context, ORDERS)] != [segment_id]
        assert await contents(context, ORDERS) == [(1, b"a")]

    async def test_blobs_of_a_log_unknown_here_stay(
        self, context: LogContext, objects: LaterClocks, open_store: OpenStore
    ) -> None:
        await append(context, ORDERS, b"a")
        control = await context.metadata.get(context.keys.control(ORDERS))
        entries = [r async for r in context.metadata.scan_all(context.keys.index(ORDERS))]
        assert control is not None
        for record in (control, *entries):
            await context.metadata.delete(record.key)
        done = await vacuum_at(context, 90)
        assert (done.blobs_deleted, done.kept_unknown_log) == (0, 1)
        assert len(await names_of(objects, context, "blob")) == 1

    async def test_a_foreign_or_emptied_store_is_refused(self, context: LogContext, objects: LaterClocks) -> None:
        await join_cluster(context)
        elsewhere = replace(context, keys=Keys(context.keys.root + "x"))
        marker = encode_value(ClusterId(cluster_id="another", created_at_ms=1))
        await objects.put(elsewhere.keys.cluster_marker_object(), [marker])
        with pytest.raises(ClusterMismatch, match="belongs to cluster another"):
            await vacuum_at(elsewhere, 90)
        await objects.delete(context.keys.cluster_marker_object())
        with pytest.raises(ClusterMismatch, match="has none now"):
            await vacuum_at(context, 90)

    async def test_clocks_that_differ_are_refused_and_no_horizon_moves(self, context: LogContext) -> None:
        await append(context, ORDERS, b"a")
        with pytest.raises(VacuumRefused, match="clocks differ"):
            await vacuum_here(at(context, 365 * 24 * 60))
        found = await context.metadata.get(context.keys.control(ORDERS), strict=True)
        assert found is not None
        assert decode_value(ControlRecord, found.value, "control").commit_horizon_ms < time.time_ns() // 1_000_000
        await append(context, ORDERS, b"b")

    async def test_a_held_vacuum_deletes_nothing(self, context: LogContext, objects: LaterClocks) -> None:
        await append(context, ORDERS, b"a")
        await compact_once(context, ORDERS)
        await context.metadata.put(context.keys.vacuum_hold(), b"{}")
        with pytest.raises(VacuumRefused, match="lift the hold"):
            await vacuum_at(context, 90)
        assert len(await names_of(objects, context, "blob")) == 1

    async def test_entries_below_the_start_are_left_to_retention(self, context: LogContext) -> None:
        await append(context, ORDERS, b"a", b"b", b"c")
        key = context.keys.control(ORDERS)
        found = await context.metadata.get(key, strict=True)
        assert found is not None
        control = decode_value(ControlRecord, found.value, key.path)
        # As a retention that crashed behind its first step leaves it.
        await context.metadata.put(key, encode_value(changed(control, log_start_offset=3)), expected=found.version)
        assert (await vacuum_at(context, 90)).blobs_deleted == 0
        await delete_records(context, ORDERS, 3)
        assert (await vacuum_at(context, 90)).blobs_deleted == 2
        assert [r.payload async for run in iter_runs(context, ORDERS, 3) for r in run.records()] == [b"c"]


class WritesSeen(ForwardingMetadataStore):
    """A metadata store that records its writes."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.paths: list[str] = []

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self.paths += [write.key.path for one in groups for write in one]
        return await super().write(groups)
