"""What the coroutines of the log work with: stores, keys, clock, randomness. All of it comes in as arguments (so the
simulation can bring its own), and nothing of it is made here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from llog.limits import LOG_BACKOFF_MS_MAX
from llog.log.keys import Keys
from llog.retry import Backoff, Rounds
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.port import ObjectStore

LOG_BACKOFF_MS_FIRST: Final = 2


FindObject = Callable[[str], Awaitable[tuple[ObjectStore, str]]]
"""From the URI in an index entry to the store that holds it and its name there."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    writer_id: str = "writer"
    encoding: str = "kafka-v2"
    vacuum_grace_ms: int = 3_600_000
    wal_grace_ms: int | None = None
    """Of a WAL store of its own; None: the same as the other."""
    auto_create_topics: bool = True
    topic_partitions_max: int = 1_024


@dataclass(frozen=True, slots=True)
class LogContext:
    metadata: MetadataStore
    wal: ObjectStore | None
    """Where new blobs go; None for a process that writes none."""
    find_object: FindObject
    now_ms: Callable[[], int]
    random_bits: Callable[[int], int]
    sleep: Callable[[float], Awaitable[object]]
    segments: ObjectStore | None = None
    """Where segments go; None for a process that does not compact."""
    keys: Keys = field(default_factory=Keys)
    options: LogOptions = field(default_factory=LogOptions)

    def stores(self) -> list[ObjectStore]:
        """Where this process puts objects, each once."""
        return list({store.url: store for store in (self.wal, self.segments) if store is not None}.values())

    async def earliest_now_ms(self) -> int:
        """Not our clock alone: one that is ahead would do to everybody what is due in its future only (h28)."""
        told = await self.metadata.server_time_ms()
        return self.now_ms() if told is None else min(self.now_ms(), told)

    async def back_off(self, round_number: int, *, longest_ms: int = LOG_BACKOFF_MS_MAX) -> None:
        """Wait after round `round_number`: exponential with full jitter, bounded (R5)."""
        await self.sleep(Backoff(LOG_BACKOFF_MS_FIRST, longest_ms).seconds(round_number, self.random_bits))

    def rounds(self, rounds_max: int) -> Rounds:
        """The rounds of a bounded retry, with a back-off after each."""
        return Rounds(rounds_max, self.back_off)
