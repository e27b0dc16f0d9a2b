"""Reads that are never older than any acknowledged write: a probe first, then the read where the probe succeeded.

A deposed leader answers reads from the past and does not know it. But it cannot complete a write any more: that
takes a quorum of its term. So a server that has completed a write after we began held, at that moment, everything
acknowledged before; a read it serves afterwards holds it too, even if it was deposed in between. (A server that
restarted in between serves reads only as a leader again, with everything acknowledged replayed.)

The probe is a delete of a key that nobody writes: it goes through log and quorum like any write and leaves nothing.

One probe serves everyone who waits, but only one that STARTED after they came proves anything to them; so arrivals
join the next probe, never the one under way. Probes of a shard start at least METADATA_STRICT_PROBE_INTERVAL_MS apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from llog.limits import OXIA_STALL_MS
from llog.stores.metadata.oxia.client import (
    OxiaClient,
    OxiaDelete,
    OxiaError,
    OxiaLink,
    ReadTimeout,
    Unavailable,
    Uncertain,
)

METADATA_STRICT_PROBE_INTERVAL_MS: Final = 50


PROBE_KEY: Final = "__llog/probe"


class StrictGate:
    """One shard's probes."""

    def __init__(self, probe: Callable[[], Awaitable[OxiaLink]]) -> None:
        self._probe = probe
        self._next: asyncio.Task[OxiaLink] | None = None
        self._running: asyncio.Task[OxiaLink] | None = None
        self._started_at = float("-inf")

    async def enter(self) -> OxiaLink:
        """The server to read from, proven by a write that began after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_look)
        return await asyncio.shield(self._next)

    async def _run(self) -> OxiaLink:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._started_at + METADATA_STRICT_PROBE_INTERVAL_MS / 1_000 - loop.time()))
        if self._running is not None:
            # One at a time, but a probe that hangs does not hold up the next for long.
            await asyncio.wait([self._running], timeout=OXIA_STALL_MS / 1_000)
        self._running, self._next = self._next, None
        self._started_at = loop.time()
        return await self._probe()

    async def close(self) -> None:
        tasks = [task for task in (self._next, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _look(task: asyncio.Task[OxiaLink]) -> None:
    """Whoever waited has the error; when nobody did any more, nobody needs it."""
    if not task.cancelled():
        task.exception()


async def probe(client: OxiaClient, shard: int) -> OxiaLink:
    """Complete a write on `shard`, whoever leads it; repeated until the deadline, because repeating it is harmless."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + client.options.request_timeout_ms / 1_000
    while True:
        submission = await client.submit(shard, [OxiaDelete(PROBE_KEY)])
        [outcome] = submission.outcomes
        if not isinstance(outcome, OxiaError):
            assert submission.link is not None, "an answered write knows who answered"
            return submission.link
        if not isinstance(outcome, Uncertain | Unavailable):
            raise outcome
        if loop.time() >= deadline:
            raise ReadTimeout(f"no write completed on shard {shard}: {outcome}")
