"""The compaction job in this process: what it reads, what it writes, and what it does when others are at work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from llog.formats.values import CompactionRecord, decode_value
from llog.log.append.settle import settle_and_clear
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.log.rewrite.publish import Choice, Compacted, Run, load_compaction, planned_run, publish
from llog.log.rewrite.segments import list_segments
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.compact.plan import SegmentRules, Sizing
from llog.pipeline.runtime.log_choice import holder
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from tests.patience import PATIENCE_SECONDS
from tests.unit.compactor.stage import Cluster, leave_pending
from tests.unit.pipeline.compact.compact_stage import (
    Stage,
    between,
    cursor_and_counter,
    entries_of,
    records_of,
    runner_of,
    segment_of,
)

ORDERS = [Log("orders", partition) for partition in range(4)]
SMALL = CompactOptions(
    rules=SegmentRules(target_bytes=4_096), sizing=Sizing(2, window_bytes_min=4_096, window_bytes_max=16_384)
)


async def test_each_blob_is_read_once_whatever_the_number_of_partitions() -> None:
    stage = Stage()
    logs = [Log("wide", partition) for partition in range(64)]
    for _ in range(5):
        await stage.append(*logs)
    before = {log: await records_of(stage.context, log) for log in logs}
    stage.objects.gets.clear()
    report = await compact(stage.context, runner_of(stage))
    assert set(stage.objects.blob_gets().values()) == {1}
    assert len(stage.objects.blob_gets()) == 5
    assert (report.objects_read, report.count("compacted")) == (5, 64)
    assert {log: await records_of(stage.context, log) for log in logs} == before
    assert [len(await entries_of(stage.context, log)) for log in logs] == [1] * 64


async def test_blobs_are_read_once_over_many_windows_too() -> None:
    stage = Stage()
    for _ in range(40):
        await stage.append(*ORDERS)
    before = {log: await records_of(stage.context, log) for log in ORDERS}
    stage.objects.gets.clear()
    report = await compact(stage.context, runner_of(stage), options=SMALL)
    assert report.tasks > 3
    assert set(stage.objects.blob_gets().values()) == {1}
    assert {log: await records_of(stage.context, log) for log in ORDERS} == before
    assert [await cursor_and_counter(stage.context, log) for log in ORDERS] == [(121, 121)] * 4


async def test_a_round_is_made_for_as_many_cores_as_there_are_by_then() -> None:
    stage, cores = Stage(), 0
    for _ in range(40):
        await stage.append(*ORDERS)

    async def resize() -> Sizing:
        nonlocal cores
        cores += 1
        return Sizing(cores, window_bytes_min=1_024, window_bytes_max=1_024)

    report = await compact(stage.context, runner_of(stage), options=replace(SMALL, resize=resize))
    assert report.rounds >= 3
    assert cores >= report.rounds
    fixed = Stage()
    for _ in range(40):
        await fixed.append(*ORDERS)
    slowly = replace(SMALL, sizing=Sizing(1, window_bytes_min=1_024, window_bytes_max=1_024))
    assert (await compact(fixed.context, runner_of(fixed), options=slowly)).rounds > report.rounds


@pytest.mark.parametrize("level", [1, 2])
async def test_segments_are_byte_for_byte_what_rewriting_entry_by_entry_makes(level: int) -> None:
    stage = Stage()
    for number in range(6):
        await stage.append(*ORDERS, encoding="kafka-v2", records=number + 1)
    if level == 2:
        for log in ORDERS:
            while await compact_once(stage.context, log, max_offsets=5) is not None:
                pass
    told = between(stage)
    taken = {log: await entries_of(stage.context, log) for log in ORDERS}
    options = CompactOptions(merge_bytes=1 << 30)
    await compact(stage.context, told, options=options, merge=True)
    assert sum(len(window.runs) for window in told.windows) == len(ORDERS)
    for window in told.windows:
        for run in window.runs:
            log = Log(run.topic, run.partition)
            entries = Run(tuple(taken[log]))
            expected = await segment_of(stage.context, log, entries, level=level, created_at_ms=run.created_at_ms)
            written = bytes(await stage.objects.get(run.name))
            assert written == b"".join(map(bytes, expected.buffers))


async def test_an_append_in_the_old_encoding_becomes_record_batches() -> None:
    from llog.formats.records.bytes_batch import encode_bytes_batch
    from llog.log.append.append import Appender, EncodedGroup

    stage = Stage()
    body = encode_bytes_batch([b"one", b"two"])
    appender = Appender(stage.context)
    await appender.append([EncodedGroup(ORDERS[0], 2, "bytes-batch-v1", list(body), 0)])
    await appender.close()
    await compact(stage.context, runner_of(stage))
    [entry] = await entries_of(stage.context, ORDERS[0])
    assert (entry.value.type, entry.value.encoding) == ("COMPACTED", "kafka-v2")
    assert [record.payload for record in await records_of(stage.context, ORDERS[0])] == [b"one", b"two"]


async def test_claims_are_held_while_the_job_runs_and_gone_afterwards() -> None:
    stage = Stage()
    await stage.append(*ORDERS)
    held = []

    async def look() -> None:
        held.extend([await holder(stage.context, log) for log in ORDERS])

    await compact(stage.context, between(stage, look), owner="me")
    assert [one is not None and one.compactor_id.startswith("me/") for one in held] == [True] * 4
    assert [await holder(stage.context, log) for log in ORDERS] == [None] * 4


async def test_a_log_that_another_claimed_is_left_to_it() -> None:
    from llog.pipeline.runtime.log_choice import claim

    stage = Stage()
    await stage.append(*ORDERS)
    session = await stage.context.metadata.open_session(timeout_ms=10_000, on_lost=lambda: None)
    await claim(stage.context, ORDERS[1], session, compactor_id="other", incarnation=1)
    report = await compact(stage.context, runner_of(stage))
    assert [log.outcome for log in report.logs] == ["compacted", "claimed_elsewhere", "compacted", "compacted"]
    assert await cursor_and_counter(stage.context, ORDERS[1]) == (1, 4)


async def test_a_pending_append_is_settled_first_and_compacted_along() -> None:
    cluster, log = Cluster(atomic=False), Log("orders", 0)
    await leave_pending(cluster, log)
    context = cluster.open()
    report = await compact(context, LocalTasks(tools_of(context)))
    assert report.logs[0].outcome == "compacted"
    assert await cursor_and_counter(context, log) == (2, 2)


async def test_a_run_in_flight_that_somebody_left_is_finished_first() -> None:
    stage, log = Stage(), ORDERS[0]
    for _ in range(4):
        await stage.append(log)
    # As a compactor that died right after publishing: the segment is there, the record names it, nothing is swapped.
    control = await settle_and_clear(stage.context, log)
    record = await load_compaction(stage.context, log, 1)
    run = Run(tuple((await entries_of(stage.context, log))[:2]))
    segment = await segment_of(stage.context, log, run, level=1, created_at_ms=stage.context.now_ms())
    segment_id = "0198c0de000070008000000000000001"
    name = stage.context.keys.segment_object(log, segment_id)
    await stage.objects.put(name, segment.buffers)
    planned = planned_run(1, Choice("COMPACT", 1, run), segment_id, segment, stage.objects.uri(name), 2**40)
    assert await publish(stage.context, log, record, planned)
    before = await records_of(stage.context, log)

    report = await compact(stage.context, runner_of(stage))
    assert (report.logs[0].resumed, report.logs[0].runs, report.logs[0].outcome) == (1, 1, "compacted")
    assert [entry.value.msg_count for entry in await entries_of(stage.context, log)] == [6, 6]
    assert await records_of(stage.context, log) == before
    assert control.sequence_counter == 13


async def test_several_runs_of_a_log_are_published_one_after_the_other() -> None:
    stage, log = Stage(), ORDERS[0]
    for _ in range(30):
        await stage.append(log)
    before = await records_of(stage.context, log)
    report = await compact(stage.context, runner_of(stage), options=SMALL)
    assert report.rounds == 1
    assert report.logs[0].runs > 3
    entries = await entries_of(stage.context, log)
    assert {entry.value.type for entry in entries} == {"COMPACTED"}
    assert len(entries) == report.logs[0].runs
    assert await records_of(stage.context, log) == before
    assert {known.record.state for known in await list_segments(stage.context, log)} == {"COPY_SEGMENT_FINISHED"}


async def test_in_this_process_a_log_is_published_while_its_window_is_still_being_written() -> None:
    stage = Stage()
    for _ in range(2):
        await stage.append(*ORDERS)
    written, published = asyncio.Event(), []
    put = stage.objects.put

    async def hold_back(name: str, buffers: Any, *, if_absent: bool = False) -> None:
        if "partitions/3/" in name:
            await written.wait()
        await put(name, buffers, if_absent=if_absent)

    def told(run: Compacted) -> None:
        published.append(run.log.partition)
        if len(published) == 3:
            written.set()

    stage.objects.put = hold_back  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE_SECONDS):
        report = await compact(stage.context, LocalTasks(tools_of(stage.context)), on_run=told)
    assert report.tasks == 1
    assert published[-1] == 3
    assert report.objects_read == 2


async def test_what_comes_after_the_first_look_is_left_to_the_next_job() -> None:
    stage, log = Stage(), ORDERS[0]
    await stage.append(log)

    async def grow() -> None:
        await stage.append(log)

    report = await compact(stage.context, between(stage, grow))
    assert report.rounds == 1
    assert await cursor_and_counter(stage.context, log) == (4, 7)


async def test_young_entries_are_left_alone() -> None:
    stage = Stage()
    await stage.append(*ORDERS)
    report = await compact(stage.context, runner_of(stage), options=CompactOptions(min_age_ms=60_000))
    assert {log.outcome for log in report.logs} == {"idle"}
    assert report.tasks == 0


async def test_a_log_deleted_between_plan_and_publish_is_no_failure() -> None:
    stage = Stage()
    await stage.append(*ORDERS, Log("visits", 0))

    async def delete() -> None:
        await delete_topic(stage.open(), "visits")

    report = await compact(stage.context, between(stage, delete))
    outcomes = {(log.topic, log.outcome) for log in report.logs}
    assert ("orders", "compacted") in outcomes
    assert {outcome for topic, outcome in outcomes if topic == "visits"} <= {"idle", "busy"}


async def test_a_log_cut_in_the_middle_of_an_entry_is_compacted_from_that_entry_on() -> None:
    stage, log = Stage(), ORDERS[0]
    for _ in range(3):
        await stage.append(log)
    await delete_records(stage.context, log, 5)
    await compact(stage.context, runner_of(stage))
    [entry] = await entries_of(stage.context, log)
    assert (entry.start_offset, entry.end_offset, entry.value.type) == (4, 9, "COMPACTED")


async def test_compacting_twice_does_nothing_the_second_time() -> None:
    stage = Stage()
    await stage.append(*ORDERS)
    await compact(stage.context, runner_of(stage))
    puts = len(stage.objects.puts)
    report = await compact(stage.context, runner_of(stage))
    assert {log.outcome for log in report.logs} == {"idle"}
    assert len(stage.objects.puts) == puts


async def test_logs_that_are_not_there_are_not_reported() -> None:
    stage = Stage()
    await stage.append(ORDERS[0])
    report = await compact(stage.context, runner_of(stage), [ORDERS[0], Log("nowhere", 0)])
    assert [(log.topic, log.outcome) for log in report.logs] == [("orders", "compacted")]


# -- merges ------------------------------------------------------------------------------------------------------------


async def test_merging_reads_each_segment_once_and_keeps_every_record() -> None:
    stage = Stage()
    for _ in range(8):
        await stage.append(*ORDERS)
        for log in ORDERS:
            await compact_once(stage.context, log)
    before = {log: await records_of(stage.context, log) for log in ORDERS}
    stage.objects.gets.clear()
    report = await compact(stage.context, runner_of(stage), merge=True)
    assert [log.merges for log in report.logs] == [1] * 4
    assert set(stage.objects.gets.values()) == {1}
    assert len(stage.objects.gets) == 32
    assert {log: await records_of(stage.context, log) for log in ORDERS} == before
    assert [[entry.value.level for entry in await entries_of(stage.context, log)] for log in ORDERS] == [[2]] * 4


async def test_merges_go_on_level_by_level_and_end_where_nothing_fits() -> None:
    stage, log = Stage(), ORDERS[0]
    for _ in range(9):
        await stage.append(log)
        await compact_once(stage.context, log)
    before = await records_of(stage.context, log)
    size = (await entries_of(stage.context, log))[0].value.byte_length
    assert size is not None
    options = CompactOptions(merge_bytes=3 * size + 100, merge_inputs_min=3)
    await compact(stage.context, runner_of(stage), options=options, merge=True)
    assert [entry.value.level for entry in await entries_of(stage.context, log)] == [2, 2, 2]
    assert await merge_once(stage.context, log, target_bytes=3 * size + 100, min_inputs=3) is None
    assert await records_of(stage.context, log) == before


async def test_what_a_merge_replaced_is_retired() -> None:
    stage, log = Stage(), ORDERS[0]
    for _ in range(3):
        await stage.append(log)
        await compact_once(stage.context, log)
    await compact(stage.context, runner_of(stage), merge=True)
    states = [known.record.state for known in await list_segments(stage.context, log)]
    assert sorted(states) == ["COPY_SEGMENT_FINISHED"] + ["DELETE_SEGMENT_STARTED"] * 3
    record = await stage.context.metadata.get(stage.context.keys.compaction(log))
    assert record is not None
    assert decode_value(CompactionRecord, record.value, "record").in_flight is None
