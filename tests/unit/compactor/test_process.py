"""Signals: the first asks for a stop, the second does not wait for it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from llog.compactor.process import stopped_by_signals
from tests.patience import PATIENCE_SECONDS
from tests.unit.compactor.stage import settle


async def test_the_first_signal_asks_and_the_second_cancels() -> None:
    stop = asyncio.Event()

    async def process() -> None:
        with stopped_by_signals(stop):
            await asyncio.Event().wait()

    running = asyncio.create_task(process())
    await settle()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop.wait(), PATIENCE_SECONDS)
    await settle()
    assert not running.done()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, PATIENCE_SECONDS)
