"""Waits of tests: for a condition, with a deadline.

The deadline exists so that a hang fails with a place and a reason. It says nothing about speed: a busy machine may
stall a process for many seconds, so no test relies on a shorter one. `timeout` in pyproject.toml is larger and ends
waits without a deadline.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_SECONDS: Final = 120.0
PAUSE_SECONDS: Final = 0.005


async def until(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> Any:
    """Wait until the condition, a function or a coroutine function, returns something true; return that."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer: Any = condition()
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer:
                    return answer
                await asyncio.sleep(pause_seconds)
    except TimeoutError as error:
        raise AssertionError(f"not within {seconds} s: {what}") from error


def wait_until(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> Any:
    """`until` for a test without an event loop."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(pause_seconds)
    return answer
