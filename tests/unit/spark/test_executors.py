"""A job on a cluster without executors is told of, and given up in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llog.spark.sessions.session import (
    SPARK_STARVED_MS_MAX,
    SPARK_STARVED_POLL_MS,
    SPARK_STARVED_WARN_MS,
    count_of,
    until_starved,
)
from tests.patience import PATIENCE_SECONDS

MASTER = "spark://host:7077"
POLLS_MAX = SPARK_STARVED_MS_MAX // SPARK_STARVED_POLL_MS
POLLS_WARNED = SPARK_STARVED_WARN_MS // SPARK_STARVED_POLL_MS


class Looks:
    """So many executors at each look; behind the last, one for ever."""

    def __init__(self, counts: Iterator[int]) -> None:
        self.counts, self.made = counts, 0
        self.all_made = asyncio.Event()

    def __call__(self) -> int:
        self.made += 1
        return next(self.counts, 1)

    async def sleep(self, _: float) -> None:
        if self.made > POLLS_MAX * 3:
            self.all_made.set()
            await asyncio.Event().wait()


async def test_where_none_comes_it_is_told_and_then_given_up(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks(iter([0] * POLLS_MAX))
    with caplog.at_level(logging.WARNING, "llog.spark"):
        error = await until_starved(looks, MASTER, "a:task", sleep=looks.sleep)
    assert looks.made == POLLS_MAX
    assert f"{MASTER} has no executor for it: are there workers with free cores and memory?" in str(error)
    [told] = caplog.messages
    assert "the Spark job of a:task waits" in told


async def test_executors_that_come_late_or_again_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    nearly = [0] * (POLLS_MAX - 1)
    looks = Looks(iter([*nearly, 1, *nearly, 2]))
    waiting = asyncio.create_task(until_starved(looks, MASTER, "a:task", sleep=looks.sleep))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await looks.all_made.wait()
    assert not waiting.done()
    waiting.cancel()
    assert len(caplog.messages) == 2, "once each time that there was none"


async def test_a_short_wait_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks(iter([0] * (POLLS_WARNED - 1)))
    waiting = asyncio.create_task(until_starved(looks, MASTER, "a:task", sleep=looks.sleep))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await looks.all_made.wait()
    waiting.cancel()
    assert caplog.messages == []


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]"])
def test_the_driver_itself_is_not_counted(master: str) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    assert count_of(session) is None
