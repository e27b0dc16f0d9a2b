"""The tail cache: what counts, for how long, and what has to go."""

from __future__ import annotations

import random

import pytest

from llog.broker.produce.groups import CommittedBatch
from llog.broker.tail.batches import BatchCache
from llog.broker.tail.cache import TailCache, TailEmpty, TailHit, TailMiss
from llog.broker.tail.cached_batch import CachedBatch
from llog.errors import FormatError
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.log.keys import Log
from tests.unit.broker.consuming import EVENTS, ORDERS, Counted

FRESH_MS = 100.0


class Clock:
    now_ms = 1_000.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> TailCache:
    return TailCache(1 << 20, fresh_ms=FRESH_MS, clock=clock, metrics=Counted())


def batch(start: int, count: int = 1, *, log: Log = ORDERS, text: bytes = b"x") -> CommittedBatch:
    body = [encode_records([text] * count, timestamps_ms=5)]
    return CommittedBatch(log, start, start + count - 1, "kafka-v2", body, 5)


def confirm(cache: TailCache, next_offset: int, *, incarnation: int = 1, start: int = 1, version: int = 1) -> None:
    cache.confirm(
        ORDERS,
        incarnation=incarnation,
        version=version,
        log_start_offset=start,
        next_offset=next_offset,
        as_of_ms=cache.clock(),
    )


def found(cache: TailCache, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    answer = cache.lookup(ORDERS, offset, max_bytes)
    assert isinstance(answer, TailHit), answer
    return [(item.start_offset, item.end_offset) for item in answer.batches]


# -- finding -----------------------------------------------------------------------------------------------------------


def test_adjacent_appends_are_found_from_any_offset(cache: TailCache) -> None:
    for start in (1, 3, 5):
        cache.add(batch(start, 2))
    assert found(cache, 1) == [(1, 2), (3, 4), (5, 6)]
    assert found(cache, 4) == [(3, 4), (5, 6)]
    assert found(cache, 4, max_bytes=1) == [(3, 4)]
    answer = cache.lookup(ORDERS, 4, 1)
    assert isinstance(answer, TailHit)
    assert (answer.next_offset, answer.high_watermark) == (5, 6)
    assert cache.lookup(ORDERS, 7, 1) == TailEmpty(6)
    assert cache.lookup(ORDERS, 8, 1) == TailMiss()
    assert cache.lookup(EVENTS, 1, 1) == TailMiss()


def test_a_hole_ends_a_hit_and_is_a_miss_until_it_is_filled(cache: TailCache) -> None:
    cache.add(batch(1, 2))
    cache.add(batch(5, 2))
    assert found(cache, 1) == [(1, 2)]
    assert cache.lookup(ORDERS, 3, 1) == TailMiss()
    assert found(cache, 5) == [(5, 6)]
    cache.add(batch(3, 2))
    assert found(cache, 1) == [(1, 2), (3, 4), (5, 6)]


def test_without_room_only_ends_are_known(clock: Clock) -> None:
    cache = TailCache(0, fresh_ms=FRESH_MS, clock=clock)
    cache.add(batch(1, 2))
    assert cache.lookup(ORDERS, 1, 1) == TailMiss()
    assert cache.lookup(ORDERS, 3, 1) == TailEmpty(2)
    assert cache.byte_length == 0


def test_a_noted_end_is_known(cache: TailCache) -> None:
    cache.note_end(ORDERS, 8)
    assert cache.lookup(ORDERS, 8, 1) == TailEmpty(7)
    cache.note_end(ORDERS, 5)
    assert cache.lookup(ORDERS, 8, 1) == TailEmpty(7), "an end never goes back within an incarnation"


def test_bare_payloads_are_kept_only_with_their_creation_time(cache: TailCache) -> None:
    bare = CommittedBatch(ORDERS, 1, 2, "bytes-batch-v1", encode_bytes_batch([b"a", b"b"]), 5)
    cache.add(bare)
    assert cache.lookup(ORDERS, 1, 1) == TailMiss()
    cache.forget(ORDERS)
    cache.add(bare, created_at_ms=77)
    answer = cache.lookup(ORDERS, 1, 1)
    assert isinstance(answer, TailHit)
    chunk = answer.batches[0].prepare()
    assert chunk.batches.base_offset.tolist() == [1]
    assert chunk.batches.base_timestamp.tolist() == [77]


def test_a_body_that_does_not_hold_its_offsets_is_refused(cache: TailCache) -> None:
    for body in ([b"nonsense" * 20], batch(1, 3).body):
        cache.add(CommittedBatch(ORDERS, 1, 2, "kafka-v2", body, 5))
        answer = cache.lookup(ORDERS, 1, 1)
        assert isinstance(answer, TailHit)
        with pytest.raises(FormatError):
            answer.batches[0].prepare()
        cache.discard(ORDERS, answer.batches[0])
        assert cache.lookup(ORDERS, 1, 1) == TailMiss()


# -- how long it counts ------------------------------------------------------------------------------------------------


def test_old_state_counts_only_after_a_read_of_control(cache: TailCache, clock: Clock) -> None:
    cache.add(batch(1, 2), incarnation=1)
    clock.now_ms += FRESH_MS + 1
    assert cache.lookup(ORDERS, 1, 1) == TailMiss(unconfirmed=True) == cache.lookup(ORDERS, 3, 1)
    confirm(cache, 3)
    assert found(cache, 1) == [(1, 2)]
    assert cache.lookup(ORDERS, 3, 1) == TailEmpty(2)
    clock.now_ms += FRESH_MS + 1
    assert cache.confirm_again(ORDERS, 1, clock())
    assert found(cache, 1) == [(1, 2)]
    assert not cache.confirm_again(ORDERS, 2, clock())


def test_a_stale_control_record_changes_nothing(cache: TailCache, clock: Clock) -> None:
    confirm(cache, 5, version=7)
    clock.now_ms += FRESH_MS + 1
    confirm(cache, 4, version=6)
    assert cache.lookup(ORDERS, 5, 1) == TailMiss(unconfirmed=True)


def test_a_raised_start_hides_what_lies_below(cache: TailCache) -> None:
    cache.add(batch(1, 2), incarnation=1)
    cache.add(batch(3, 2), incarnation=1)
    confirm(cache, 5, start=3)
    assert cache.lookup(ORDERS, 2, 1) == TailMiss()
    assert found(cache, 3) == [(3, 4)]


def test_a_new_incarnation_ends_the_old_one(cache: TailCache) -> None:
    cache.add(batch(1, 5), incarnation=1)
    confirm(cache, 3, incarnation=2, version=9)
    assert cache.lookup(ORDERS, 1, 1) == TailMiss()
    assert cache.lookup(ORDERS, 3, 1) == TailEmpty(2)
    cache.add(batch(6), incarnation=1)
    assert cache.lookup(ORDERS, 6, 1) == TailMiss(), "a late report of the old incarnation"
    assert cache.byte_length == 0


def test_an_append_of_a_new_incarnation_ends_the_old_one(cache: TailCache) -> None:
    cache.add(batch(1, 5), incarnation=1)
    cache.add(batch(1, 2), incarnation=2)
    assert found(cache, 1) == [(1, 2)]
    assert cache.lookup(ORDERS, 3, 1) == TailEmpty(2)


def test_an_append_of_unknown_incarnation_counts_by_age_until_it_is_confirmed(cache: TailCache, clock: Clock) -> None:
    confirm(cache, 1)
    clock.now_ms += 1
    cache.add(batch(1))
    clock.now_ms += FRESH_MS + 1
    confirm(cache, 2, version=2)
    assert found(cache, 1) == [(1, 1)], "the log was in that incarnation before and after"


def test_an_append_is_dropped_when_its_incarnation_cannot_be_known(cache: TailCache, clock: Clock) -> None:
    cache.add(batch(1))
    assert found(cache, 1) == [(1, 1)]
    clock.now_ms += FRESH_MS + 1
    confirm(cache, 2)
    assert cache.lookup(ORDERS, 1, 1) == TailMiss()
    assert cache.byte_length == 0


def test_an_end_of_an_unknown_incarnation_does_not_outlive_it(cache: TailCache, clock: Clock) -> None:
    cache.add(batch(1, 9))
    clock.now_ms += 1
    confirm(cache, 3)
    assert cache.lookup(ORDERS, 3, 1) == TailEmpty(2)


def test_a_late_frame_of_unknown_incarnation_is_not_taken_for_a_later_one(cache: TailCache, clock: Clock) -> None:
    committed_at_ms = clock.now_ms
    clock.now_ms += 10
    confirm(cache, 5, incarnation=2)
    cache.add(batch(1, 2), committed_at_ms=committed_at_ms)
    clock.now_ms += FRESH_MS + 1
    confirm(cache, 5, incarnation=2, version=2)
    assert not isinstance(cache.lookup(ORDERS, 1, 1), TailHit)


# -- what has to go ----------------------------------------------------------------------------------------------------


def test_the_oldest_append_of_any_log_goes_first(clock: Clock) -> None:
    metrics = Counted()
    size = CachedBatch(1, 1, batch(1).body).size
    cache = TailCache(3 * size, fresh_ms=FRESH_MS, clock=clock, metrics=metrics)
    cache.add(batch(1))
    cache.add(batch(1, log=EVENTS))
    cache.add(batch(2))
    assert metrics.size == (3 * size, 2)
    cache.add(batch(3))
    assert cache.lookup(ORDERS, 1, 1) == TailMiss()
    assert found(cache, 2) == [(2, 2), (3, 3)]
    cache.add(batch(4))
    assert cache.lookup(EVENTS, 1, 1) == TailMiss()
    assert cache.lookup(EVENTS, 2, 1) == TailEmpty(1)
    assert metrics.events["evicted"] == 2
    assert metrics.size == (3 * size, 1)


def test_on_moved_is_called_for_every_end_that_moves(cache: TailCache) -> None:
    moved: list[Log] = []
    cache.on_moved = moved.append
    cache.add(batch(1))
    cache.note_end(ORDERS, 2)
    confirm(cache, 2)
    confirm(cache, 2, version=2)
    cache.forget(ORDERS)
    cache.forget(ORDERS)
    assert moved == [ORDERS, ORDERS, ORDERS], "the append, an incarnation that became known, and its end"


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_cache_is_a_bounded_map_of_ranges(seed: int) -> None:
    rng = random.Random(seed)
    cached, model = BatchCache(20_000), dict[CachedBatch, Log]()
    for _ in range(600):
        log = rng.choice([ORDERS, EVENTS])
        start = rng.randrange(300)
        item = CachedBatch(start, start + rng.randrange(5), [b"x" * rng.randrange(1, 200)])
        overlapping = cached.overlapping(log, item.start_offset, item.end_offset)
        expected = [
            other
            for other, its in model.items()
            if its == log and other.start_offset <= item.end_offset and other.end_offset >= item.start_offset
        ]
        assert sorted(map(id, overlapping)) == sorted(map(id, expected))
        if rng.random() < 0.05:
            cached.drop(log)
            model = {other: its for other, its in model.items() if its != log}
            overlapping = []
        for other in overlapping:
            cached.remove(log, other)
            del model[other]
        cached.put(log, item)
        model[item] = log
        while sum(other.size for other in model) > cached.bytes_max:
            del model[next(iter(model))]
        assert cached.byte_length == sum(other.size for other in model) <= cached.bytes_max
        assert len(cached) == len(model)
        offset = rng.randrange(300)
        run = [(i.start_offset, i.end_offset) for i in cached.run(log, offset)]
        ranges = sorted((i.start_offset, i.end_offset) for i, its in model.items() if its == log)
        wanted = []
        for begin, end in ranges:
            if begin <= offset <= end:
                wanted.append((begin, end))
                offset = end + 1
        assert run == wanted
