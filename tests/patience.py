"""How long a test waits for what is sure to come.

A bound on a wait is there so that a hang fails with a place and a reason. It says nothing of how fast the machine is: a
busy one may leave a process alone for many seconds, anywhere. Where all is well nobody waits that long. What waits
without a bound ends by `timeout` in pyproject.toml, which is larger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PATIENCE_SECONDS: Final = 120.0


async def until(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
