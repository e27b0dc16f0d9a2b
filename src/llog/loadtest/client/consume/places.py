"""The partitions of one client: where it stands in each, which broker it asks, what it asks for next.

Columns instead of objects, because a client may have thousands of partitions and asks for all of them in each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

UNKNOWN: Final = -1


class Place(NamedTuple):
    topic: int
    """Position in the scenario's topics."""
    partition: int
    readers: tuple[int, ...]
    """Numbers of brokers, the preferred one first."""


class Places:
    def __init__(self, places: Sequence[Place], partitions_of_topics: Sequence[int]) -> None:
        count = len(places)
        self.topics: Longs = np.array([place.topic for place in places], np.int64)
        self.numbers: Longs = np.array([place.partition for place in places], np.int64)
        self.readers = [place.readers for place in places]
        self.brokers: Longs = np.array([place.readers[0] for place in places], np.int64)
        """The broker that each partition is read from now."""
        self.offsets: Longs = np.zeros(count, np.int64)
        """The next offset to ask for."""
        self.known_ends: Longs = np.full(count, UNKNOWN, np.int64)
        """The offset behind the last record, as the last answer said."""
        self.drain_ends: Longs = np.full(count, UNKNOWN, np.int64)
        """The offset behind the last record when the order to drain came."""
        self.bases: Longs = np.concatenate(([0], np.cumsum(partitions_of_topics)[:-1])).astype(np.int64)
        """Of each topic in `rows`."""
        self.rows: Longs = np.full(sum(partitions_of_topics), UNKNOWN, np.int64)
        """The row of a partition: `rows[bases[topic] + partition]`."""
        self.rows[self.bases[self.topics] + self.numbers] = np.arange(count)
        self._filled: Longs = np.zeros(count, np.int64)
        """When each partition last had records, counted in answers."""
        self._answers = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def row(self, topic: int, partition: int) -> int:
        """-1 for a partition of another client."""
        return int(self.rows[self.bases[topic] + partition])

    def to_ask(self, broker: int, draining: bool) -> Longs:
        """The rows to ask a broker for. An answer is filled in this order up to its size, so partitions that are known
        to have more come first, among them those that have waited longest; while draining, the others are left out."""
        rows = np.flatnonzero((self.brokers == broker) & ~(self.drained() & draining))
        behind = self.offsets[rows] < self.known_ends[rows]
        ordered: Longs = rows[np.lexsort((self._filled[rows], ~behind))]
        return ordered

    def advance(self, rows: Longs, next_offsets: Longs, ends: Longs) -> None:
        """What an answer said of partitions without an error."""
        self._answers += 1
        self._filled[rows[next_offsets > self.offsets[rows]]] = self._answers
        self.offsets[rows] = next_offsets
        self.known_ends[rows] = ends

    def drained(self) -> Flags:
        """The partitions that were read to the end that the order to drain saw."""
        drained: Flags = (self.drain_ends != UNKNOWN) & (self.offsets >= self.drain_ends)
        return drained
