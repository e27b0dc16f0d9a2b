"""The environment of the log coroutines: stores, keys, clock, randomness and sleep, all passed in as arguments so that
a simulation can replace them.

`get_all` and `write_all` make calls of any size to the metadata store by cutting them to what one call may carry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from llog.concurrency import Backoff, Rounds, batched
from llog.errors import MetadataStoreError
from llog.limits import LOG_BACKOFF_MS_MAX, METADATA_GET_MANY_MAX, METADATA_WRITE_GROUPS_MAX
from llog.log.keys import Keys
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Write
from llog.stores.objects.port import ObjectStore

LOG_BACKOFF_MS_FIRST: Final = 2

FindObject = Callable[[str], Awaitable[tuple[ObjectStore, str]]]
"""From the URI in an index entry to the store that holds the object, and the object's name there."""


class LogChange(NamedTuple):
    """A committed change or deletion that an operator may ask about later."""

    action: str
    """`topic.create`, `log.fence`, …; docs/operate.md lists them."""
    subject: str
    """The name of the topic, log, group or object that was changed."""
    before: Mapping[str, object] = {}
    after: Mapping[str, object] = {}
    certain: bool = True
    """False: the store did not answer, so the change may not have happened."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    writer_id: str = "writer"
    encoding: str = "kafka-v2"
    vacuum_grace_ms: int = 3_600_000
    wal_grace_ms: int | None = None
    """Grace of a separate WAL store; None: `vacuum_grace_ms` applies to it too."""
    auto_create_topics: bool = True
    topic_partitions_max: int = 1_024
    auto_partitions_max: int = 128
    """Most partitions of a topic that writes create or extend."""


@dataclass(frozen=True, slots=True)
class LogContext:
    metadata: MetadataStore
    wal: ObjectStore | None
    """Store for new blobs; None in a process that writes none."""
    find_object: FindObject
    now_ms: Callable[[], int]
    random_bits: Callable[[int], int]
    sleep: Callable[[float], Awaitable[object]]
    segments: ObjectStore | None = None
    """Store for segments; None in a process that does not compact."""
    keys: Keys = field(default_factory=Keys)
    options: LogOptions = field(default_factory=LogOptions)
    on_change: Callable[[LogChange], None] = lambda _: None
    """Called after each change or deletion that a `LogChange` describes; it must not raise."""

    def stores(self) -> list[ObjectStore]:
        """The stores this process puts objects into, each once."""
        return list({store.url: store for store in (self.wal, self.segments) if store is not None}.values())

    async def earliest_now_ms(self) -> int:
        """The earlier of our clock and the metadata store's: a clock that is ahead must not make things due early
        (h28)."""
        server_ms = await self.metadata.server_time_ms()
        return self.now_ms() if server_ms is None else min(self.now_ms(), server_ms)

    async def back_off(self, round_number: int, *, longest_ms: int = LOG_BACKOFF_MS_MAX) -> None:
        """Wait after round `round_number`: exponential with full jitter, bounded (R5)."""
        await self.sleep(Backoff(LOG_BACKOFF_MS_FIRST, longest_ms).seconds(round_number, self.random_bits))

    def rounds(self, rounds_max: int) -> Rounds:
        """The rounds of a bounded retry, with a back-off after each."""
        return Rounds(rounds_max, self.back_off)


def wall_clock_ms() -> int:
    """The clock of a context outside of simulations."""
    return time.time_ns() // 1_000_000


async def write_all(metadata: MetadataStore, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
    """One outcome per group, for any number of groups. A store that does not answer is the outcome of each group of
    that call, never an error for all of them."""

    async def write(chunk: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        try:
            return await metadata.write(chunk)
        except MetadataStoreError as error:
            return [error] * len(chunk)

    if len(groups) <= METADATA_WRITE_GROUPS_MAX:
        return await write(groups) if groups else []
    answers = await asyncio.gather(*(write(chunk) for chunk in batched(groups, METADATA_WRITE_GROUPS_MAX)))
    return [outcome for chunk in answers for outcome in chunk]


async def get_all(metadata: MetadataStore, keys: Sequence[Key], *, strict: bool) -> list[Record | None]:
    """`get_many` for any number of keys."""
    records: list[Record | None] = []
    for chunk in batched(keys, METADATA_GET_MANY_MAX):
        records += await metadata.get_many(chunk, strict=strict)
    return records
