"""The memory of a room is used again, but never while somebody may still read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from llog.log.keys import Log
from llog.pipeline.compact import room as compact_memory
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import SegmentRules, Sizing
from llog.pipeline.compact.room import borrowed
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from tests.patience import until
from tests.unit.pipeline.compact.compact_stage import Stage, records_of


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    compact_memory._kept.clear()
    yield
    compact_memory._kept.clear()


def address(byte_length: int) -> int:
    with borrowed(byte_length) as memory:
        assert len(memory) == byte_length
        memory[:] = 1
        return int(memory.ctypes.data)


async def turn() -> None:
    await asyncio.sleep(0)


async def test_memory_that_was_given_back_is_used_again_also_for_less() -> None:
    first = address(100_000)
    await turn()
    assert address(50_000) == first


async def test_two_at_the_same_time_have_memory_of_their_own() -> None:
    with borrowed(1_000) as one, borrowed(1_000) as two:
        assert one.ctypes.data != two.ctypes.data


async def test_memory_that_somebody_still_reads_is_not_used_again() -> None:
    with borrowed(1_000) as memory:
        memory[:] = 7
        view = memory[10:20].data
    del memory
    await turn()
    with borrowed(1_000) as other:
        other[:] = 9
    assert bytes(view) == b"\x07" * 10


async def test_what_is_larger_than_may_be_kept_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_memory, "COMPACT_ROOM_KEPT_BYTES_MAX", 10_000)
    address(10_001)
    await turn()
    assert not compact_memory._kept


async def test_memory_is_kept_for_a_while_and_using_it_starts_the_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    drop, ends = compact_memory._drop, list[object]()
    monkeypatch.setattr(compact_memory, "COMPACT_ROOM_KEPT_MS", 10)
    monkeypatch.setattr(compact_memory, "_drop", ends.append)
    for uses in (1, 2):
        address(1_000)
        await until(lambda uses=uses: len(ends) == uses)  # type: ignore[misc]
    drop(ends[0])
    assert compact_memory._kept, "the end of its first use is not its end"
    drop(ends[1])
    assert not compact_memory._kept


async def test_the_windows_of_a_job_share_one_piece_of_memory_and_every_record_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    taken = compact_memory._taken

    def noted(byte_length: int) -> object:
        mapping = taken(byte_length)
        made.append(id(mapping))
        return mapping

    monkeypatch.setattr(compact_memory, "_taken", noted)
    stage, logs = Stage(), [Log("orders", partition) for partition in range(4)]
    for _ in range(12):
        await stage.append(*logs)
    before = {log: await records_of(stage.context, log) for log in logs}
    options = CompactOptions(rules=SegmentRules(), sizing=Sizing(1, window_bytes_min=8_192, window_bytes_max=8_192))
    runner = LocalTasks(tools_of(stage.context), at_once=1)
    report = await compact(stage.context, runner, options=options)
    assert report.tasks == len(made) > 3
    assert len(set(made)) < len(made)
    assert {log: await records_of(stage.context, log) for log in logs} == before
