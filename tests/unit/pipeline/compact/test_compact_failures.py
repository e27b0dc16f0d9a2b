"""Compaction when something goes wrong: planned again, told by name, and never another log's trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from llog.limits import COMPACT_REPLANS_MAX
from llog.log.keys import Log
from llog.pipeline.compact.job import compact
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime.log_choice import holder
from llog.pipeline.runtime.tasks import LocalTasks, Task, TaskFailed, tools_of
from tests.unit.pipeline.compact.compact_stage import (
    Stage,
    between,
    cursor_and_counter,
    entries_of,
    records_of,
    runner_of,
)

ORDERS = [Log("orders", partition) for partition in range(4)]


async def test_a_run_that_another_compactor_overtook_is_planned_again_and_nothing_is_doubled() -> None:
    stage = Stage()
    for _ in range(6):
        await stage.append(*ORDERS)
    before = {log: await records_of(stage.context, log) for log in ORDERS}
    other = stage.open()
    overtaken: list[object] = []

    async def overtake() -> None:
        if not overtaken:
            overtaken.append(await compact_once(other, ORDERS[2], max_offsets=5))

    report = await compact(stage.context, between(stage, after=overtake))
    assert [log.outcome for log in report.logs] == ["compacted"] * 4
    assert report.rounds == 2
    assert [await cursor_and_counter(stage.context, log) for log in ORDERS] == [(19, 19)] * 4
    assert {log: await records_of(stage.context, log) for log in ORDERS} == before


async def test_an_object_that_is_gone_means_plan_again_and_only_for_the_logs_in_it() -> None:
    """Another compactor published the log between plan and task, and vacuum took the blob (R10)."""
    stage = Stage()
    await stage.append(ORDERS[0])
    await stage.append(ORDERS[1])
    lost = (await entries_of(stage.context, ORDERS[0]))[0].value.data_key
    other = stage.open()

    async def overtake() -> None:
        if not stage.objects.lost:
            await compact_once(other, ORDERS[0])
            stage.objects.lost.add(stage.objects.name_of(lost))

    report = await compact(stage.context, between(stage, overtake))
    assert [log.outcome for log in report.logs] == ["idle", "compacted"]
    assert [await cursor_and_counter(stage.context, log) for log in ORDERS[:2]] == [(4, 4)] * 2


async def test_an_object_that_stays_away_is_named_and_fails_its_log_alone() -> None:
    stage = Stage()
    await stage.append(ORDERS[0])
    await stage.append(ORDERS[1])
    lost = stage.objects.name_of((await entries_of(stage.context, ORDERS[0]))[0].value.data_key)
    stage.objects.lost.add(lost)
    report = await compact(stage.context, runner_of(stage), merge=True)
    assert [log.outcome for log in report.logs] == ["failed", "compacted"]
    assert report.logs[0].error_type == "ObjectNotFound"
    assert lost in report.logs[0].error
    assert f"{COMPACT_REPLANS_MAX} times" in report.logs[0].error


async def test_a_segment_that_stays_away_fails_the_merge_of_its_log_alone() -> None:
    stage = Stage()
    for _ in range(2):
        await stage.append(*ORDERS[:2])
        await compact(stage.context, runner_of(stage))
    lost = stage.objects.name_of((await entries_of(stage.context, ORDERS[0]))[0].value.data_key)
    stage.objects.lost.add(lost)
    report = await compact(stage.context, runner_of(stage), merge=True)
    assert [log.outcome for log in report.logs[:2]] == ["failed", "compacted"]
    assert lost in report.logs[0].error


async def test_a_damaged_slice_fails_its_log_and_no_other() -> None:
    stage = Stage()
    await stage.append(*ORDERS)
    damaged = (await entries_of(stage.context, ORDERS[1]))[0].value
    name = stage.objects.name_of(damaged.data_key)
    content = bytearray(await stage.objects.get(name))
    assert damaged.byte_offset is not None
    content[damaged.byte_offset + 80] ^= 1
    await stage.objects.put(name, [content])
    report = await compact(stage.context, runner_of(stage))
    assert [log.outcome for log in report.logs] == ["compacted", "failed", "compacted", "compacted"]
    assert report.logs[1].error_type == "ChecksumMismatch"
    assert damaged.data_key in report.logs[1].error
    assert await cursor_and_counter(stage.context, ORDERS[1]) == (1, 4)


@pytest.mark.parametrize("record", ["control", "compaction", "index_entry"])
async def test_a_record_that_cannot_be_read_fails_its_log_and_no_other(record: str) -> None:
    stage = Stage()
    await stage.append(ORDERS[0])
    await stage.append(ORDERS[1])
    keys = stage.context.keys
    damaged = {
        "control": keys.control(ORDERS[0]),
        "compaction": keys.compaction(ORDERS[0]),
        "index_entry": keys.index_entry(ORDERS[0], 3),
    }[record]
    await stage.context.metadata.put(damaged, b"damaged")
    report = await compact(stage.context, runner_of(stage), merge=True)
    assert [(log.partition, log.outcome) for log in report.logs] == [(0, "failed"), (1, "compacted")]
    assert damaged.path in report.logs[0].error


async def test_a_task_that_fails_as_a_whole_fails_its_logs_with_its_reason() -> None:
    stage = Stage()
    await stage.append(*ORDERS)

    class Failing(LocalTasks):
        async def run(self, task: Task[Any, Any], items: Sequence[Any], on_done: Any = None, **parts: Any) -> list[Any]:
            return [TaskFailed("ObjectStoreUnavailable", "down", True) for _ in items]

    report = await compact(stage.context, Failing(tools_of(stage.context)))
    assert [(log.outcome, log.error_type) for log in report.logs] == [("failed", "ObjectStoreUnavailable")] * 4


async def test_what_was_written_is_published_even_where_the_runner_fails_afterwards() -> None:
    stage = Stage()
    for _ in range(2):
        await stage.append(*ORDERS)

    class Dying(LocalTasks):
        async def run(self, task: Task[Any, Any], items: Sequence[Any], on_done: Any = None, **parts: Any) -> list[Any]:
            await super().run(task, items[:1], on_done, **parts)
            raise RuntimeError("the cluster is gone")

    with pytest.raises(RuntimeError, match="the cluster is gone"):
        await compact(stage.context, Dying(tools_of(stage.context)))
    assert [await cursor_and_counter(stage.context, log) for log in ORDERS] == [(7, 7)] * 4


async def test_a_cancelled_job_leaves_nothing_that_the_next_cannot_finish() -> None:
    stage = Stage()
    for _ in range(3):
        await stage.append(*ORDERS)
    before = {log: await records_of(stage.context, log) for log in ORDERS}
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = asyncio.create_task(compact(stage.context, between(stage, hang)))
    await begun.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert [await holder(stage.context, log) for log in ORDERS] == [None] * 4
    await compact(stage.context, runner_of(stage))
    assert {log: await records_of(stage.context, log) for log in ORDERS} == before
    assert [await cursor_and_counter(stage.context, log) for log in ORDERS] == [(10, 10)] * 4
