"""The memory pool: bounded both ways, and heard of in time."""

from __future__ import annotations

import pytest

from llog.broker.produce.pool import MemoryPool
from llog.errors import InvalidArgument


def test_a_request_that_does_not_fit_takes_nothing() -> None:
    pool = MemoryPool(100)
    assert pool.try_take(60)
    assert not pool.try_take(41)
    assert pool.used == 60
    assert pool.try_take(40)
    assert pool.fraction == 1.0


def test_more_than_was_taken_cannot_be_given_back() -> None:
    pool = MemoryPool(100)
    assert pool.try_take(10)
    with pytest.raises(InvalidArgument, match="cannot give back 11 bytes, 10 are taken"):
        pool.give(11)
    with pytest.raises(InvalidArgument):
        pool.give(-1)
    with pytest.raises(InvalidArgument):
        pool.try_take(-1)
    pool.give(10)
    assert pool.used == 0


def test_pressure_is_reported_once_each_time_three_quarters_are_reached() -> None:
    pool, reports = MemoryPool(100), []
    pool.on_pressure(lambda: reports.append(pool.used))
    assert pool.try_take(74)
    assert reports == []
    assert pool.try_take(1)
    assert pool.try_take(5)
    assert reports == [75]
    pool.give(10)
    assert pool.try_take(10)
    assert reports == [75, 80]


def test_a_call_without_room_is_pressure_too() -> None:
    pool, reports = MemoryPool(100), []
    pool.on_pressure(lambda: reports.append(pool.used))
    assert not pool.try_take(101)
    assert reports == [0]


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        MemoryPool(0)


def test_incomplete_bodies_hold_a_share_of_the_pool_and_those_of_one_client_a_share_of_that() -> None:
    pool = MemoryPool(100)
    bodies = pool.incomplete
    large = bodies.begin("large")
    assert large.try_take(51), "one body may exceed its share"
    first, second, other, last = (bodies.begin(client) for client in ("a", "a", "b", "c"))
    assert first.try_take(20)
    assert not second.try_take(6), "one client has its quarter"
    assert other.try_take(25)
    assert not last.try_take(6), "together they have their half"
    first.end()
    assert (bodies.used, pool.used) == (76, 96), "a body that has arrived stays in the pool"
    assert last.try_take(4)
    assert not last.try_take(1), "the pool is full"


def test_one_body_may_take_the_whole_pool() -> None:
    pool = MemoryPool(100)
    bodies = pool.incomplete
    body = bodies.begin("a")
    assert body.try_take(40)
    assert body.try_take(60)
    assert not body.try_take(1)
    body.end()
    pool.give(100)
    assert (bodies.used, pool.used) == (0, 0)


def test_a_large_body_that_stalls_leaves_the_others_their_half_of_a_small_pool() -> None:
    pool = MemoryPool(100)
    bodies = pool.incomplete
    stalled = bodies.begin("slow")
    assert stalled.try_take(50)
    assert stalled.try_take(10), "more than half of the pool"
    for _ in range(4):
        body = bodies.begin("a")
        assert body.try_take(30)
        body.end()
        pool.give(30)
    assert not bodies.begin("b").try_take(51), "a second one must wait"
    stalled.end()
    pool.give(60)
    assert bodies.begin("b").try_take(51)
