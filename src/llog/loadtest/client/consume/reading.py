"""One consuming client: a request at a time to each broker that it reads from, failover, draining.

Every broker that may serve one of the client's partitions has a feed, a loop of requests for the partitions that are
read from that broker now. A broker that fails gives its partitions to the next available one of their readers, and gets
them back when it answers again. Only a partition's own feed moves it, between two requests: so no two requests on their
way ask for the same partition, and nothing is received twice because of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from llog.errors import FormatError
from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume import scan_kernels as kernels
from llog.loadtest.client.consume.link import Asking, Engine, Link, Read, error_name
from llog.loadtest.client.consume.places import UNKNOWN, Longs
from llog.loadtest.client.consume.tally import Tally

RETRY_PAUSE_S: Final = 0.25
"""Between attempts to reach a broker that failed; they go on until the run ends."""
ERROR_PAUSE_S: Final = 0.1
"""After an answer in which a partition failed: such answers come without waiting."""
_FAILURES: Final = (OSError, TimeoutError, FormatError)


class Move(NamedTuple):
    """A partition goes to another of its readers."""

    topic: int
    partition: int
    from_broker: int
    to_broker: int
    reason: str


class Client:
    def __init__(
        self,
        asking: Asking,
        brokers: Mapping[int, BrokerPlace],
        engine: Engine,
        tally: Tally,
        moved: Callable[[Sequence[Move]], None],
    ) -> None:
        self._asking, self._brokers, self._engine, self._tally, self._moved = asking, brokers, engine, tally, moved
        self._places = asking.places
        self._numbers = sorted({number for readers in asking.places.readers for number in readers})
        self._down: set[int] = set()
        self._returning: set[int] = set()
        """Feeds that shall look whether a better reader of their partitions has come back."""
        self._woken = {number: asyncio.Event() for number in self._numbers}
        self._draining = False
        self._ended = asyncio.Event()

    async def warm_up(self) -> None:
        """Load and compile what requests need, before there is anything to measure; `run` deals with failures."""
        with suppress(*_FAILURES):
            link = await self._engine.connect(self._brokers[self._numbers[0]], self._asking)
            try:
                await link.ends(np.zeros(1, np.int64))
            finally:
                link.close()

    async def run(self) -> None:
        """Until all partitions are drained, or this is cancelled."""
        async with asyncio.TaskGroup() as group:
            feeds = [group.create_task(self._feed(number)) for number in self._numbers]
            await self._ended.wait()
            for feed in feeds:
                feed.cancel()

    async def drain(self) -> None:
        """Learn where the logs end now; `run` ends when all of them were read as far."""
        while True:
            missing = np.flatnonzero(self._places.drain_ends == UNKNOWN)
            if not len(missing):
                break
            for number in self._numbers:
                missing = await self._learn_ends(number, missing)
            if len(missing):
                await asyncio.sleep(RETRY_PAUSE_S)
        self._draining = True
        self._end_if_drained()

    async def _learn_ends(self, number: int, rows: Longs) -> Longs:
        """The rows whose end is still unknown."""
        if not len(rows):
            return rows
        link: Link | None = None
        try:
            link = await self._engine.connect(self._brokers[number], self._asking)
            self._places.drain_ends[rows] = await link.ends(rows)
        except _FAILURES as error:
            self._tally.retried[error_name(error)] += 1
        finally:
            if link is not None:
                link.close()
        unknown: Longs = rows[self._places.drain_ends[rows] == UNKNOWN]
        return unknown

    # -- one broker's feed --

    async def _feed(self, number: int) -> None:
        link: Link | None = None
        try:
            while True:
                if number in self._returning:
                    self._returning.discard(number)
                    self._move(number, "a preferred reader is available again")
                rows = self._places.to_ask(number, self._draining)
                if not len(rows) and number not in self._down:
                    self._woken[number].clear()
                    await self._woken[number].wait()
                    continue
                try:
                    if link is None:
                        link = await self._engine.connect(self._brokers[number], self._asking)
                        self._is_back(number)
                    if len(rows):
                        await self._read(link, rows)
                except _FAILURES as error:
                    if link is not None:
                        link.close()
                        link = None
                    self._tally.retried[error_name(error)] += 1
                    self._down.add(number)
                    self._move(number, str(error) or error_name(error))
                    await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            if link is not None:
                link.close()

    async def _read(self, link: Link, rows: Longs) -> None:
        begun_s = self._tally.now_s()
        read = await link.read(rows)
        self._tally.answered(begun_s)
        if self._apply(read):
            await asyncio.sleep(ERROR_PAUSE_S)
        self._end_if_drained()

    def _apply(self, read: Read) -> bool:
        """Whether a partition failed."""
        places, sums = self._places, self._asking.scanner.sums
        places.advance(read.rows, read.next_offsets, read.ends)
        ahead = read.log_starts > places.offsets[read.outside]
        rows, starts = read.outside[ahead], read.log_starts[ahead]
        begun = places.offsets[rows] > 0  # the first request of a log asks from 0, wherever the log begins
        sums[kernels.OFFSET_GAPS] += int((starts - places.offsets[rows])[begun].sum())
        places.offsets[rows] = starts
        behind = len(read.outside) - len(rows)
        if behind:
            self._tally.retried["offset beyond the log"] += behind
        self._tally.retried.update(read.errors)
        return bool(behind or read.errors)

    def _move(self, number: int, reason: str) -> None:
        """Give the partitions of a feed to the first available of their readers, where that is another one."""
        places = self._places
        moves: list[Move] = []
        for row in np.flatnonzero(places.brokers == number).tolist():
            target = first_available(places.readers[row], self._down, number)
            if target != number:
                places.brokers[row] = target
                moves.append(Move(int(places.topics[row]), int(places.numbers[row]), number, target, reason))
        if moves:
            self._moved(moves)
            self._wake({move.to_broker for move in moves})

    def _is_back(self, number: int) -> None:
        if number in self._down:
            self._down.discard(number)
            self._returning = set(self._numbers)
            self._wake(self._numbers)

    def _wake(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._woken[number].set()

    def _end_if_drained(self) -> None:
        if self._draining and self._places.drained().all():
            self._ended.set()


def first_available(readers: Sequence[int], down: set[int], otherwise: int) -> int:
    return next((reader for reader in readers if reader not in down), otherwise)
