"""Cached appends: offsets written in place, whole batches taken as views, and the memory that views keep."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from llog.broker.produce.groups import CommittedBatch
from llog.broker.tail.batches import BatchCache
from llog.broker.tail.cache import TailCache, TailHit
from llog.broker.tail.cached_batch import TAIL_CACHE_BATCH_OVERHEAD_BYTES, CachedBatch
from llog.broker.tail.shared import SharedTailCache
from llog.errors import FormatError
from llog.formats.buffers import Buffer
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import BatchRule, verify_crcs, walk
from llog.log.keys import Log

ORDERS = Log("orders", 0)


def encoded(*payloads: bytes) -> bytearray:
    return bytearray(encode_records(list(payloads), timestamps_ms=5))


def offsets(buffers: Sequence[Buffer]) -> list[int]:
    data = b"".join(buffers)
    batches = walk(data, "taken", rule=BatchRule.COMPACTED)
    verify_crcs(data, batches, "taken")
    return [int(offset) for offset in decode_records(data, "taken", rule=BatchRule.COMPACTED).offsets]


def whole(item: CachedBatch) -> Sequence[Buffer]:
    item.make_ready(raw=True)
    return item.take(item.start_offset, 1 << 20, at_least_one=False).buffers


def frame_of(*batches: bytes | bytearray, around: int = 0) -> tuple[bytearray, list[memoryview]]:
    """One buffer with these batches and other bytes, as a request brings them, and a view of each batch."""
    frame = bytearray(around) + b"".join(batches) + bytearray(around)
    ends = [around, *itertools.accumulate(map(len, batches), initial=around)][1:]
    return frame, [memoryview(frame)[begin:end] for begin, end in itertools.pairwise(ends)]


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_offsets_are_written_into_the_buffers_that_were_appended() -> None:
    frame, views = frame_of(encoded(b"a", b"b"), encoded(b"c"), around=8)
    item = CachedBatch(7, 9, views)
    taken = whole(item)
    assert offsets(taken) == [7, 8, 9]
    assert [memoryview(one).obj for one in taken] == [frame, frame], "no byte was copied"
    assert all(memoryview(one).readonly for one in taken)
    assert not item.copied


def test_buffers_that_may_not_be_written_are_copied() -> None:
    body = bytes(encoded(b"a", b"b"))
    before = bytes(bytearray(body))
    item = CachedBatch(7, 8, [body])
    assert offsets(whole(item)) == [7, 8]
    assert body == before
    assert item.copied


@pytest.mark.parametrize("first_read", [0, 1])
def test_one_buffer_appended_twice_has_both_its_offsets(first_read: int) -> None:
    body = encoded(b"a", b"b")
    items = [CachedBatch(1, 2, [body]), CachedBatch(3, 4, [body])]
    taken = {n: whole(items[n]) for n in (first_read, 1 - first_read)}
    assert [offsets(taken[n]) for n in (0, 1)] == [[1, 2], [3, 4]]


def test_the_shared_cache_leaves_the_bytes_alone_that_its_thread_writes(tmp_path: Path) -> None:
    body = encoded(b"a", b"b")
    before = bytes(body)
    cache = SharedTailCache(tmp_path, 1 << 20)
    cache.add(CommittedBatch(ORDERS, 7, 8, "kafka-v2", [body], 5), incarnation=1)
    found = cache.lookup(ORDERS, 7, 1 << 20)
    assert isinstance(found, TailHit)
    assert offsets(whole(found.batches[0])) == [7, 8]
    assert body == before


def test_a_body_that_does_not_hold_its_offsets_is_refused() -> None:
    for body in (encoded(b"a"), encoded(b"a", b"b", b"c"), bytearray(100), encoded(b"a", b"b")[:-1], bytearray(5)):
        item = CachedBatch(7, 8, [body])
        with pytest.raises(FormatError):
            item.make_ready(raw=True)
        assert not item.is_ready(raw=True)


def test_whole_batches_and_single_records_come_from_the_same_item_in_either_order() -> None:
    for orders in ((True, False), (False, True)):
        for bodies in ([encoded(b"a", b"b")], [encoded(b"a"), encoded(b"b")]):
            item = CachedBatch(7, 8, bodies)
            for raw in orders:
                item.make_ready(raw)
                assert item.is_ready(raw)
            assert item.chunk is not None
            assert offsets([item.chunk.data]) == [7, 8] == offsets(whole(item))
            assert item.sums is not None
            assert item.sums.records == (2, 2)


# -- taking ------------------------------------------------------------------------------------------------------------


def test_any_offset_and_limit_take_the_same_batches_of_views_and_of_one_buffer() -> None:
    rng = random.Random(7)
    for _ in range(200):
        batches = [encoded(*[b"x" * rng.randrange(40)] * rng.randrange(1, 4)) for _ in range(rng.randrange(1, 6))]
        joints = sorted(rng.sample(range(1, len(batches)), rng.randrange(len(batches)))) if len(batches) > 1 else []
        body = [b"".join(batches[a:b]) for a, b in itertools.pairwise([0, *joints, len(batches)])]
        counts = [int.from_bytes(one[57:61], "big") for one in batches]
        ends = list(itertools.accumulate(counts, initial=100))
        offset, limit = rng.randrange(100, ends[-1]), rng.randrange(1 + sum(map(len, batches)))
        at_least_one = rng.random() < 0.5
        views, chunk = (CachedBatch(100, ends[-1] - 1, list(map(bytearray, body))) for _ in range(2))
        views.make_ready(raw=True)
        chunk.prepare()
        of_views, of_chunk = (item.take(offset, limit, at_least_one=at_least_one) for item in (views, chunk))
        assert b"".join(of_views.buffers) == b"".join(of_chunk.buffers)
        assert of_views[1:] == of_chunk[1:]
        first = next(n for n, end in enumerate(ends[1:]) if offset < end)
        fitting = [n for n in range(first, len(batches)) if sum(map(len, batches[first : n + 1])) <= limit]
        expected = max(len(fitting), int(at_least_one))
        assert of_views.byte_length == sum(map(len, batches[first : first + expected]))
        assert of_views.is_all == (first + expected == len(batches))
        assert of_views.next_offset == (ends[first + expected] if expected else offset)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_buffer_counts_once_and_as_a_whole_until_its_last_part_is_evicted() -> None:
    frame, views = frame_of(encoded(b"a" * 100), encoded(b"b" * 100), around=1_000)
    cache = BatchCache(1 << 20)
    items = [CachedBatch(1, 1, [view]) for view in views]
    logs = [Log("orders", partition) for partition in range(2)]
    for log, item in zip(logs, items, strict=True):
        cache.put(log, item)
    assert cache.byte_length == len(frame) + 2 * TAIL_CACHE_BATCH_OVERHEAD_BYTES
    cache.remove(logs[0], items[0])
    assert cache.byte_length == len(frame) + TAIL_CACHE_BATCH_OVERHEAD_BYTES
    cache.remove(logs[1], items[1])
    assert cache.byte_length == 0


def test_the_limit_holds_for_whole_buffers() -> None:
    cache = BatchCache(40_000)
    for partition in range(20):
        _, [view] = frame_of(encoded(b"a"), around=2_000)
        cache.put(Log("orders", partition), CachedBatch(1, 1, [view]))
        assert cache.byte_length <= 40_000
    assert len(cache) == 8, "each keeps more than 4,000 bytes in memory"


def test_a_part_of_a_very_large_buffer_is_copied_and_evicts_nothing() -> None:
    cache = BatchCache(20_000)
    _, [large] = frame_of(encoded(b"b"), around=30_000)
    item = CachedBatch(1, 1, [large])
    cache.put(ORDERS, CachedBatch(0, 0, [encoded(b"a")]))
    assert cache.put(ORDERS, item) == 0
    assert (len(cache), cache.byte_length < 4_000) == (2, True)
    assert offsets(whole(item)) == [1]


def test_a_copied_batch_no_longer_counts_the_buffer_it_came_in() -> None:
    cache = TailCache(1 << 20)
    frame, [view] = frame_of(encoded(b"a"), around=5_000)
    cache.add(CommittedBatch(ORDERS, 1, 1, "kafka-v2", [view.toreadonly()], 5), incarnation=1)
    assert cache.byte_length == len(frame) + TAIL_CACHE_BATCH_OVERHEAD_BYTES
    found = cache.lookup(ORDERS, 1, 1)
    assert isinstance(found, TailHit)
    [item] = found.batches
    item.make_ready(raw=True)
    assert item.copied
    cache.count_again(item)
    assert cache.byte_length == len(view) + TAIL_CACHE_BATCH_OVERHEAD_BYTES
