"""The memory pool: bounded both ways, and heard of in time."""

from __future__ import annotations

import pytest

from llog.broker.produce.pool import IncompleteBodies, MemoryPool
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
    bodies = IncompleteBodies(pool)
    for client in ("a", "a", "b", "c"):
        bodies.begin(client)
    assert bodies.try_take("a", 25)
    assert not bodies.try_take("a", 1), "one client has its quarter"
    assert bodies.try_take("b", 25)
    assert not bodies.try_take("c", 1), "together they have their half"
    bodies.end("a", 20)
    assert (bodies.used, pool.used) == (30, 50), "a body that has arrived stays in the pool"
    assert bodies.try_take("c", 20)
    assert bodies.try_take("a", 0)


def test_the_only_incomplete_body_may_take_the_whole_pool() -> None:
    pool = MemoryPool(100)
    bodies = IncompleteBodies(pool)
    bodies.begin("a")
    assert bodies.try_take("a", 100)
    assert not bodies.try_take("a", 1)
    bodies.end("a", 100)
    pool.give(100)
    assert (bodies.used, pool.used) == (0, 0)
