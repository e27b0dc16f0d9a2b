"""Which broker of an owner set gets a request, and which brokers are unavailable.

A broker that refuses, loses or does not answer requests is unavailable for all clients of a process until it answers a
probe; its place is taken by another broker of the owner set. Nothing else moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Literal, NamedTuple

from llog.errors import LoadTestError

PROBE_PAUSE_S: Final = 1.0
"""Between two probes of an unavailable broker."""

Select = Literal["round_robin", "least_inflight"]


class Choice(NamedTuple):
    broker: int
    instead_of: int | None
    """The unavailable broker whose turn it was."""


def choose(
    owners: Sequence[int], turn: int, select: Select, in_flight: Sequence[int], unavailable: Collection[int]
) -> Choice:
    """`in_flight` counts unanswered requests by broker. Without an available broker the choice ignores that."""
    preferred = _preferred(owners, turn, select, in_flight)
    if preferred not in unavailable:
        return Choice(preferred, None)
    available = [broker for broker in owners if broker not in unavailable]
    if not available:
        return Choice(preferred, None)
    return Choice(_preferred(available, turn, select, in_flight), preferred)


def _preferred(owners: Sequence[int], turn: int, select: Select, in_flight: Sequence[int]) -> int:
    if select == "round_robin":
        return owners[turn % len(owners)]
    return min(owners, key=lambda broker: in_flight[broker])


class Brokers:
    """What the clients of a process know about brokers together."""

    def __init__(self, count: int, select: Select, probe: Callable[[int], Awaitable[None]]) -> None:
        self.select: Select = select
        self.in_flight = [0] * count
        self._probe = probe
        self._unavailable: dict[int, asyncio.Task[None]] = {}
        self.failures = [0] * count
        """How often each became unavailable."""
        self.reasons = [""] * count
        """Why it did the last time."""

    def choose(self, owners: Sequence[int], turn: int) -> Choice:
        if len(owners) == 1:
            return Choice(owners[0], None)
        return choose(owners, turn, self.select, self.in_flight, self._unavailable.keys())

    def is_available(self, broker: int) -> bool:
        return broker not in self._unavailable

    def mark_unavailable(self, broker: int, reason: str) -> None:
        """Until it answers a probe."""
        if broker not in self._unavailable:
            self.failures[broker] += 1
            self.reasons[broker] = reason
            self._unavailable[broker] = asyncio.create_task(self._probe_until_available(broker))

    def close(self) -> None:
        for task in self._unavailable.values():
            task.cancel()

    async def _probe_until_available(self, broker: int) -> None:
        while True:
            await asyncio.sleep(PROBE_PAUSE_S)
            try:
                await self._probe(broker)
            except (OSError, TimeoutError, LoadTestError):
                continue
            del self._unavailable[broker]
            return
