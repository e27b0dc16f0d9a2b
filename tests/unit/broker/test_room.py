"""Waiting for room in the memory pool: in order, and never stuck behind a share."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from llog.broker.produce import room
from llog.broker.produce.pool import MemoryPool
from llog.errors import RequestOverload


async def turn() -> None:
    """Two turns of the loop: room is granted in the one after it was given back."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_room_is_granted_in_order_and_never_beyond_the_limit() -> None:
    pool, granted = MemoryPool(1_600), list[int]()
    assert pool.room.reserve(1_000, lambda: None) is None
    assert pool.room.reserve(400, lambda: None) is None
    for number in (1, 2, 3):
        assert pool.room.reserve(400, partial(granted.append, number)) is not None
    assert len(pool.room) == 3
    pool.give(300)
    await turn()
    assert (granted, pool.used) == ([1], 1_500)
    pool.give(400)
    await turn()
    assert (granted, pool.used) == ([1, 2], 1_500)
    pool.give(1_500)
    await turn()
    assert (granted, pool.used, len(pool.room)) == ([1, 2, 3], 400, 0)


async def test_a_small_request_does_not_pass_a_large_one() -> None:
    pool, granted = MemoryPool(1_600), list[str]()
    assert pool.room.reserve(1_200, lambda: None) is None
    assert pool.room.reserve(1_000, partial(granted.append, "large")) is not None
    assert pool.room.reserve(1, partial(granted.append, "small")) is not None
    await turn()
    assert granted == []
    pool.give(1_200)
    await turn()
    assert granted == ["large", "small"]


async def test_what_is_given_back_can_be_taken_again_before_a_waiter_gets_it() -> None:
    pool, granted = MemoryPool(1_600), list[str]()
    assert pool.room.reserve(1_500, lambda: None) is None
    assert pool.room.reserve(1_500, partial(granted.append, "next")) is not None
    pool.give(1_500)
    assert pool.try_take(1_600), "an append takes the bytes of its frame, and its overhead"
    await turn()
    assert granted == []
    pool.give(1_600)
    await turn()
    assert granted == ["next"]


async def test_a_body_that_waits_for_its_share_keeps_no_other_from_the_room() -> None:
    pool, granted = MemoryPool(1_600), list[str]()
    bodies = [pool.incomplete.begin("slow") for _ in range(2)]
    large = pool.incomplete.begin("large")
    assert pool.room.reserve(900, lambda: None, large) is None, "one body may exceed the shares"
    assert pool.room.reserve(390, lambda: None, bodies[0]) is None
    assert pool.room.reserve(20, partial(granted.append, "new"), bodies[1]) is not None
    assert pool.room.reserve(20, partial(granted.append, "begun"), bodies[0]) is not None
    assert pool.room.reserve(20, lambda: None) is None, "a request that has arrived needs no share"
    other = pool.incomplete.begin("other")
    assert pool.room.reserve(20, partial(granted.append, "other"), other) is not None, "behind the bodies that wait"
    await turn()
    assert granted == ["other"]
    large.end()
    await turn()
    assert granted == ["other", "begun", "new"], "what has begun goes first, as the large one: that leaves a share"


async def test_a_waiter_that_leaves_takes_nothing_and_lets_the_next_one_in() -> None:
    pool, granted = MemoryPool(1_600), list[str]()
    assert pool.room.reserve(1_000, lambda: None) is None
    first = pool.room.reserve(1_500, partial(granted.append, "first"))
    assert first is not None
    assert pool.room.reserve(100, partial(granted.append, "second")) is not None
    pool.room.leave(first)
    await turn()
    assert (granted, pool.used) == (["second"], 1_100)


async def test_only_so_many_wait_and_for_nothing_that_never_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ROOM_WAITERS_MAX", 2)
    pool = MemoryPool(1_600)
    with pytest.raises(RequestOverload):
        pool.room.reserve(1_601, lambda: None)
    assert pool.room.reserve(1_600, lambda: None) is None, "all of it, when it is empty"
    for _ in range(2):
        assert pool.room.reserve(1, lambda: None) is not None
    with pytest.raises(RequestOverload):
        pool.room.reserve(1, lambda: None)


async def test_many_waiters_are_granted_room_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ROOM_GRANTS_PER_TURN", 10)
    pool, granted = MemoryPool(1_600), list[int]()
    assert pool.room.reserve(1_600, lambda: None) is None
    for number in range(25):
        pool.room.reserve(1, partial(granted.append, number))
    pool.give(1_600)
    await asyncio.sleep(0)
    assert len(granted) == 10
    await turn()
    await turn()
    assert granted == list(range(25))


async def test_a_waiter_is_pressure() -> None:
    pool, reports = MemoryPool(1_600), list[int]()
    assert pool.room.reserve(1_000, lambda: None) is None
    pool.on_pressure(lambda: reports.append(pool.used))
    assert pool.room.reserve(900, lambda: None) is not None
    assert reports == [1_000]
