"""Strict reads, which see every acknowledged write: a probe, then the read at the server of the probe.

A deposed leader does not know that it was deposed and answers reads with old state. But it cannot complete a write,
because that needs a quorum of its term. So a server that completed a write which began after our call held every write
acknowledged before the call, and a later read from it sees them, even if it was deposed in between. (A server that
restarted serves reads only as a leader, after it replayed every acknowledged write.)

The probe deletes a key that does not exist: it passes log and quorum like any write and changes nothing. Only a probe
that STARTED after a call proves anything to that call, so calls join the next probe, not the current one. Probes of a
shard start at least METADATA_STRICT_PROBE_INTERVAL_MS apart.
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
    """The probes of one shard."""

    def __init__(self, probe: Callable[[], Awaitable[OxiaLink]]) -> None:
        self._probe = probe
        self._next: asyncio.Task[OxiaLink] | None = None
        self._running: asyncio.Task[OxiaLink] | None = None
        self._started_at = float("-inf")

    async def enter(self) -> OxiaLink:
        """A server that completed a write which began after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_look)
        return await asyncio.shield(self._next)

    async def _run(self) -> OxiaLink:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._started_at + METADATA_STRICT_PROBE_INTERVAL_MS / 1_000 - loop.time()))
        if self._running is not None:
            # One at a time, but a stalled probe does not delay the next for long.
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
    """Consume the error of the task: callers that still wait have received it."""
    if not task.cancelled():
        task.exception()


async def probe(client: OxiaClient, shard: int) -> OxiaLink:
    """Complete a write at the leader of `shard`; repeated until the deadline, which is harmless."""
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
