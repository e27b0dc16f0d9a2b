"""Where a stream stands, and how far a trigger goes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.errors import InvalidArgument
from llog.formats.values import IndexEntry
from llog.log.index import Entry
from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from llog.pipeline.scan.splits import ScanRange, SplitPart, parts_of
from llog.pipeline.scan.stream_offsets import (
    StreamOffsets,
    _take_oldest,
    from_json,
    limited_by_bytes,
    limited_by_offsets,
)
from llog.settings import Settings
from tests.unit.pipeline.mixed_log import append, opened_for_writing, random_group

A, B = Log("a", 0), Log("b", 7)


def test_offsets_are_kafka_s_json_and_come_back() -> None:
    offsets = StreamOffsets({B: 9, A: 3}, {"a": 1, "b": 4})
    assert offsets.to_json() == {"a": {"0": 3}, "b": {"7": 9}, "@lives": {"a": 1, "b": 4}}
    assert from_json(offsets.to_json()) == offsets
    with_ids = StreamOffsets({A: 3}, {"a": 1}, {"a": "5d1f"})
    assert with_ids.to_json() == {"a": {"0": 3}, "@lives": {"a": 1}, "@ids": {"a": "5d1f"}}
    assert from_json(with_ids.to_json()) == with_ids
    with pytest.raises(InvalidArgument, match=r"checkpoint: .* is not an offset of this source"):
        from_json({"a": 5})


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([A, B, Log("c", 1)]), st.tuples(st.integers(0, 50), st.integers(0, 500))),
    st.integers(1, 300),
)
def test_a_limit_in_offsets_is_kept_and_everyone_goes_on(sizes: dict[Log, tuple[int, int]], limit: int) -> None:
    starts = {log: start for log, (start, _) in sizes.items()}
    stops = {log: start + count for log, (start, count) in sizes.items()}
    chosen = limited_by_offsets(starts, stops, limit)
    assert chosen.keys() == starts.keys()
    assert all(starts[log] <= chosen[log] <= stops[log] for log in chosen)
    assert all(chosen[log] > starts[log] for log in chosen if stops[log] > starts[log])
    taken = sum(chosen[log] - starts[log] for log in chosen)
    assert taken <= limit + len(chosen), "a log with few records gets one"


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_limit_in_bytes_goes_through_every_log_to_the_end(tmp_path: Path, compacted: bool) -> None:
    objects = f"memory://bytes-{time.time_ns()}"
    settings = Settings.from_env({}, metadata_url=f"lmdb://{tmp_path}/m", objects_url=objects, wal_url=objects)
    opened = await opened_for_writing(settings)
    rng = random.Random(1)
    for _ in range(12):
        await append(opened, [random_group(rng, A), random_group(rng, B)])
    if compacted:
        assert await compact_once(opened.context, A) is not None
    from llog.pipeline.scan.subscription import Subscription, find_logs

    ends = await find_logs(opened.context, Subscription(("a",)))
    ends |= await find_logs(opened.context, Subscription(assigned=(B,)))
    stops = {log: at.next_offset for log, at in ends.items()}
    starts, triggers = {log: at.log_start_offset for log, at in ends.items()}, 0
    while starts != stops:
        further = await limited_by_bytes(opened.context, starts, stops, 10_000)
        assert further != starts, "it goes on, whatever the limit"
        assert all(starts[log] <= further[log] <= stops[log] for log in stops)
        starts, triggers = further, triggers + 1
    assert triggers > 3
    everything = await limited_by_bytes(opened.context, dict.fromkeys(stops, 1), stops, 1 << 30)
    assert everything == stops
    await opened.close()


def test_the_oldest_entries_are_taken_first_whichever_log_they_are_of() -> None:
    def parts(log: Log, *ages: int) -> list[SplitPart]:
        value = IndexEntry(type="WAL", msg_count=10, data_key="b", encoding="kafka-v2", created_at_ms=0)
        entries = [
            Entry(10 * (n + 1), replace(value, created_at_ms=age, byte_offset=0, byte_length=100), 1)
            for n, age in enumerate(ages)
        ]
        return list(parts_of(ScanRange(log, 1, 10 * len(ages) + 1), entries))

    known = [parts(A, 5, 6, 7), parts(B, 1, 2, 9)]
    chosen = {A: 1, B: 1}
    assert _take_oldest(known, chosen, 399, one_at_least=True) == 300
    assert chosen == {A: 11, B: 21}
    assert _take_oldest(known, chosen := {A: 1, B: 1}, 50, one_at_least=True) == 100
    assert chosen == {A: 1, B: 11}, "one entry, though it does not fit"
    segment = [replace(part, type="COMPACTED", footer_length=0) for part in parts(A, 5)]
    assert _take_oldest([segment, known[1]], chosen := {A: 1, B: 1}, 50, one_at_least=True) == 100
    assert chosen == {A: 1, B: 11}, "nothing is left for the segment, and nothing is taken back"
    assert _take_oldest([segment, []], chosen := {A: 1, B: 1}, 50, one_at_least=True) == 50
    assert chosen == {A: 6, B: 1}, "the half of a segment"
    assert _take_oldest(known, chosen := {A: 1, B: 1}, 50, one_at_least=False) == 0
    assert chosen == {A: 1, B: 1}
