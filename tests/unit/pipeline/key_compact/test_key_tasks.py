"""The parts of key compaction, each for itself: pace, scan, aggregation."""

from __future__ import annotations

import numpy as np
import pytest

from llog.errors import InvalidArgument
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate, ScratchPlace, SegmentKeys, get_keys, get_survivors
from llog.pipeline.key_compact.batches import ReadPace, SegmentSource
from llog.pipeline.key_compact.tasks import KeyScan, scan_keys
from llog.pipeline.runtime.tasks import tools_of
from tests.unit.pipeline.key_compact.key_stage import Row, Stage


async def test_reading_keeps_to_its_pace_and_does_not_make_up_for_time_not_used() -> None:
    now = [100.0]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    pace = ReadPace(1_000, now_seconds=lambda: now[0], sleep=sleep)
    for _ in range(3):
        await pace.before(500)
    assert slept == [0.5, 0.5]
    now[0] += 60
    await pace.before(500)
    await pace.before(500)
    assert slept == [0.5, 0.5, 0.5], "a minute's rest was made up for"


async def _scanned(stage: Stage, part_bytes_max: int) -> tuple[ScratchPlace, list[SegmentKeys], dict[bytes, int]]:
    """Scans every segment; what was found, also as one plain dictionary of the last offsets."""
    tools = tools_of(stage.context)
    place = ScratchPlace(stage.objects.url, "scratch/")
    entries = await stage.entries()
    sources = tuple(SegmentSource.of(entry) for entry in entries)
    outcome = await scan_keys(tools, KeyScan(sources, place, None, part_bytes_max))
    keys, last = list[SegmentKeys](), dict[bytes, int]()
    for number, (entry, scan) in enumerate(zip(entries, outcome.segments, strict=True)):
        assert scan.scanned is not None
        keys.append(SegmentKeys(0, number, entry.end_offset, scan.scanned.parts))
        for part in scan.scanned.parts:
            table = await get_keys(tools, place, part)
            for key, offset in zip(table["key"].to_pylist(), table["offset"].to_pylist(), strict=True):
                last[key] = max(offset, last.get(key, -1))
    return place, keys, last


@pytest.mark.parametrize("part_bytes_max", [1, 2**26], ids=["many parts", "one part"])
async def test_survivors_are_the_last_offset_of_each_key_cut_by_segments(part_bytes_max: int) -> None:
    stage = await Stage.open()
    for number in range(12):
        await stage.write(*(Row(b"k%d" % (number * step % 7), b"v") for step in (1, 2, 3)))
    await stage.compact(max_offsets=9)
    place, keys, last = await _scanned(stage, part_bytes_max)
    assert last == {kept.record.key: kept.record.offset for kept in stage.model}
    tools = tools_of(stage.context)
    found = await LocalKeyAggregate(tools).survivors(place, keys)
    begin = 0
    for one in keys:
        expected = sorted(offset for offset in last.values() if begin < offset <= one.end_offset)
        held = await get_survivors(tools, place, found[one.segment]) if one.segment in found else np.empty(0)
        assert held.tolist() == expected
        begin = one.end_offset


async def test_more_keys_than_memory_should_hold_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.pipeline.key_compact.aggregate.KEY_SCAN_PART_BYTES_MAX", 10)
    stage = await Stage.open()
    await stage.write(*(Row(b"k%d" % number, b"v") for number in range(100)))
    await stage.compact()
    place, keys, _ = await _scanned(stage, 2**26)
    with pytest.raises(InvalidArgument, match="on Spark"):
        await LocalKeyAggregate(tools_of(stage.context), bytes_max=100).survivors(place, keys)
