"""Key compaction when something goes wrong: nothing is removed that should stay, and each log fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from llog.errors import ObjectNotFound, ObjectStoreUnavailable, SparkJobFailed
from llog.formats.buffers import Buffer
from llog.formats.values import CompactionRun
from llog.log.cleanup.vacuum_check import named_segments
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.view import view
from llog.log.rewrite import publish
from llog.pipeline.compact.once import merge_once
from llog.pipeline.key_compact import key_pass
from llog.pipeline.key_compact import key_pass as key_publish
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate, ScratchPart, ScratchPlace, SegmentKeys, put_survivors
from llog.pipeline.key_compact.job import key_compact
from llog.pipeline.key_compact.tasks import REWRITE_KEYS
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.stores.objects.memory import MemoryObjectStore
from tests.unit.pipeline.compact.compact_stage import CountingObjects
from tests.unit.pipeline.key_compact.key_stage import FAST, LOG, Row, Stage


async def test_a_log_with_a_damaged_segment_fails_alone() -> None:
    stage = await Stage.open()
    other = await Stage.open(log=Log("stock", 0), context=stage.context)
    for one in (stage, other):
        await one.write(Row(b"a", b"1"), Row(b"a", b"2"))
        await one.compact()
    [entry] = await stage.entries()
    store, name = await stage.context.find_object(entry.value.data_key)
    data = bytearray(await store.get(name))
    data[70] ^= 1
    await store.put(name, [data])
    tools = tools_of(stage.context)
    report = await key_compact(stage.context, LocalTasks(tools), LocalKeyAggregate(tools), options=FAST)
    assert [(one.topic, one.state) for one in report.logs] == [("prices", "failed"), ("stock", "compacted")]
    assert "ChecksumMismatch" in report.logs[0].error
    assert [r.payload for r in await other.read()] == [b"2"]


class _Forgetful(LocalKeyAggregate):
    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> dict[int, ScratchPart]:
        return {}


async def test_survivors_that_cannot_be_right_remove_nothing() -> None:
    stage = await Stage.open()
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
    await stage.compact()
    tools = tools_of(stage.context)
    report = await key_compact(stage.context, LocalTasks(tools), _Forgetful(tools), options=FAST)
    assert [one.state for one in report.logs] == ["failed"]
    await stage.check()


class _Muddled(LocalKeyAggregate):
    """Names the offset of a record without a key in place of one that survives."""

    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> dict[int, ScratchPart]:
        return {keys.segment: await put_survivors(self._tools, place, np.array([1, 3])) for keys in scanned}


async def test_survivors_that_are_not_in_the_segment_remove_nothing() -> None:
    stage = await Stage.open()
    await stage.write(Row(None, b"1"), Row(b"a", b"2"), Row(b"b", b"3"), Row(b"b", b"4"))
    await stage.compact()
    tools = tools_of(stage.context)
    report = await key_compact(stage.context, LocalTasks(tools), _Muddled(tools), options=FAST)
    assert [one.state for one in report.logs] == ["failed"]
    assert "InvalidField" in report.logs[0].error
    await stage.check()


class _Tampering(MemoryObjectStore):
    """Loses the last survivor of every list."""

    async def get(self, name: str) -> Buffer:
        data = await super().get(name)
        is_list = "@scratch" in name and bytes(data[:4]) != b"\xff\xff\xff\xff"  # as Arrow's streams begin
        return data[:-8] if is_list else data


async def test_a_list_of_survivors_that_was_changed_on_the_way_is_refused() -> None:
    stage = await Stage.open(objects=_Tampering("memory://tampering"))
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"), Row(b"b", b"3"))
    await stage.compact()
    tools = tools_of(stage.context)
    report = await key_compact(stage.context, LocalTasks(tools), LocalKeyAggregate(tools), options=FAST)
    assert [one.state for one in report.logs] == ["failed"]
    assert "ChecksumMismatch" in report.logs[0].error
    await stage.check()


class _Lossy(CountingObjects):
    """Says once that a segment is gone."""

    async def get_ranges(self, name, ranges):  # type: ignore[no-untyped-def]
        if "compacted" in name and not self.lost:
            self.lost.add("once")
            raise ObjectNotFound(self.url, name)
        return await super().get_ranges(name, ranges)


async def test_a_segment_that_is_gone_makes_the_log_be_planned_again() -> None:
    stage = await Stage.open(objects=_Lossy())
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
    await stage.compact()
    assert (await stage.clean()).superseded == 1
    await stage.clean_model()
    await stage.check()


class _Overslept(LocalTasks):
    """Between the first segment that it writes and its publishing, vacuum comes by."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(tools_of(stage.context))
        self._stage, self.written = stage, 0

    async def run(self, task: Any, items: Any, on_done: Any = None, **parts: Any) -> Any:
        outcomes = await super().run(task, items, on_done, **parts)
        if task is REWRITE_KEYS:
            self.written += 1
        if task is REWRITE_KEYS and self.written == 1:
            self._stage.now[0] += 1_000
            await named_segments(self._stage.context, LOG, self._stage.now[0])
        return outcomes


async def test_a_segment_that_vacuum_may_have_by_now_is_not_published_and_the_log_is_planned_again() -> None:
    stage = await Stage.open()
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
    await stage.compact()
    runner = _Overslept(stage)
    assert (await stage.clean(runner=runner)).state == "compacted"
    assert runner.written == 2
    await stage.clean_model()
    await stage.check()


class _MergingRunner(LocalTasks):
    """Merges the first neighbours of the log while the first group is being written."""

    def __init__(self, stage: Stage, target_bytes: int) -> None:
        super().__init__(tools_of(stage.context))
        self._stage, self._target_bytes, self.merged = stage, target_bytes, False

    async def run(self, task: Any, items: Any, on_done: Any = None, **parts: Any) -> Any:
        outcomes = await super().run(task, items, on_done, **parts)
        if task is REWRITE_KEYS and not self.merged:
            merged = await merge_once(self._stage.context, self._stage.log, target_bytes=self._target_bytes)
            self.merged = merged is not None
        return outcomes


async def test_a_group_whose_lower_entries_were_merged_away_is_not_published_over_them() -> None:
    stage = await Stage.open()
    for rows in ([Row(b"z", b"1")], [Row(b"a", b"1"), Row(b"b", b"1")], [Row(b"a", b"2"), Row(b"b", b"2")] * 3):
        await stage.write(*rows)
        await stage.compact()
    sizes = [entry.value.byte_length or 0 for entry in await stage.entries()]
    runner = _MergingRunner(stage, sizes[0] + sizes[1])
    done = await stage.clean(runner=runner)
    assert runner.merged
    assert done.superseded == 6
    await stage.clean_model()
    await stage.check()


async def test_a_group_whose_publishing_got_no_answer_and_that_another_finished_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks again, and what it meets at its end key is its own segment: nothing that has to go."""
    stage = await Stage.open()
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
    await stage.compact()

    async def late(context: LogContext, log: Log, record: publish.KnownCompaction, run: CompactionRun) -> bool:
        assert await publish.publish(context, log, record, run)
        assert (await publish.finish(context, log, (await view(context, log)).control, run)).done
        return False

    monkeypatch.setattr(key_publish, "publish", late)
    done = await stage.clean()
    assert (done.state, done.superseded, done.segments_written) == ("compacted", 1, 1)
    await stage.clean_model()
    await stage.check()


class _Tired(LocalTasks):
    """Fails like Spark without executors."""

    async def run(self, task: Any, items: Any, on_done: Any = None, **parts: Any) -> Any:
        raise SparkJobFailed("keys", "no executor is left")


async def test_a_runner_that_fails_is_told_for_each_log_by_its_own_error() -> None:
    stage = await Stage.open()
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
    await stage.compact()
    tools = tools_of(stage.context)
    report = await key_compact(stage.context, _Tired(tools), LocalKeyAggregate(tools), [LOG], options=FAST)
    assert [(log.state, "no executor is left" in log.error) for log in report.logs] == [("failed", True)]
    await stage.check()


class _Undeletable(MemoryObjectStore):
    async def delete_many(self, names: Sequence[str]) -> None:
        raise ObjectStoreUnavailable("delete", names[0] if names else "", "away")


async def test_scratch_that_can_not_be_removed_does_not_hide_what_the_pass_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = await Stage.open(objects=_Undeletable("memory://undeletable"))
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
    await stage.compact()
    tools = tools_of(stage.context)
    one_pass = key_pass.KeyPass(stage.context, LocalTasks(tools), LocalKeyAggregate(tools), FAST, _no_progress)
    [done] = await one_pass.run([LOG])
    assert (done.state, done.superseded) == ("compacted", 1)
    assert "@scratch/key-compact/" in caplog.text
    await stage.clean_model()
    await stage.check()


def _no_progress(_name: str, _bytes: int) -> None:
    return None
