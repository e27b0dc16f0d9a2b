"""Bounded retry and bounded gather."""

from __future__ import annotations

import asyncio
import random

import pytest

from llog.concurrency import Backoff, Rounds, gather_bounded


def test_waits_double_up_to_the_maximum_and_are_drawn_from_the_whole_interval() -> None:
    backoff, random_bits = Backoff(50, 1_000), random.Random(1).getrandbits
    assert [backoff.ceiling_ms(n) for n in (0, 1, 2, 5, 1_000_000)] == [50, 100, 200, 1_000, 1_000]
    waits = [backoff.seconds(9, random_bits) for _ in range(400)]
    assert min(waits) < 0.1
    assert 0.9 < max(waits) < 1


async def test_a_retry_pauses_after_each_round_and_ends() -> None:
    pauses: list[int] = []

    async def pause(round_number: int) -> None:
        pauses.append(round_number)

    assert [number async for number in Rounds(3, pause)] == [0, 1, 2]
    assert pauses == [0, 1, 2]


async def test_a_round_that_succeeds_is_not_followed_by_a_pause() -> None:
    async def pause(round_number: int) -> None:
        raise AssertionError

    async for _ in Rounds(3, pause):
        break


async def test_a_bounded_gather_keeps_the_order_and_the_limit() -> None:
    running, most = 0, 0

    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return n * n

    assert await gather_bounded(range(10), work, limit=3) == [n * n for n in range(10)]
    assert most == 3
    assert await gather_bounded([], work, limit=3) == []


async def test_the_first_error_is_raised_itself_and_no_call_is_left_running() -> None:
    ended: list[int] = []

    async def work(n: int) -> None:
        try:
            if n == 1:
                raise KeyError(n) from ValueError("cause")
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    with pytest.raises(KeyError) as failed:
        await gather_bounded(range(3), work, limit=3)
    assert sorted(ended) == [0, 1, 2]
    assert isinstance(failed.value.__cause__, ValueError)
