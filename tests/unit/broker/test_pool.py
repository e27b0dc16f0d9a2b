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
