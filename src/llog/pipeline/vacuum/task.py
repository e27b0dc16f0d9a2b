"""The task of vacuum: whose are these blobs? Reads the headers of some, and tells the logs that each names.

What must stay true: a header that cannot be read is told as such, never as "no log": its blob stays.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from llog.limits import VACUUM_READS_IN_FLIGHT_MAX
from llog.log.cleanup.vacuum import with_logs as candidate_of
from llog.log.keys import Log
from llog.pipeline.runtime.survey import Seen
from llog.pipeline.runtime.tasks import Task, TaskTools
from llog.stores.objects.port import ObjectMeta


class Blobs(msgspec.Struct, frozen=True, kw_only=True):
    store_url: str
    blobs: tuple[Seen, ...]


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """Logs are told once and then by their number: thousands of blobs name the same ones."""

    logs: tuple[tuple[str, int], ...]
    """Topic and partition."""
    of_blobs: tuple[tuple[int, ...] | None, ...]
    """In the order of the blobs; None: its header cannot be read."""

    def of_blob(self, number: int) -> frozenset[Log] | None:
        named = self.of_blobs[number]
        return None if named is None else frozenset(Log(*self.logs[index]) for index in named)


READ_OWNERS: Final = Task("llog.pipeline.vacuum.task:read_owners", Blobs, Owners)


async def read_owners(tools: TaskTools, item: Blobs) -> Owners:
    slots = asyncio.Semaphore(VACUUM_READS_IN_FLIGHT_MAX)

    async def logs_of(blob: Seen) -> frozenset[Log] | None:
        async with slots:
            store, name = await tools.find_object(f"{item.store_url}/{blob.name}")
            found = await candidate_of(store, ObjectMeta(name, blob.byte_length, blob.last_modified_ms))
            return None if found is None else found.logs

    owners = await asyncio.gather(*(logs_of(blob) for blob in item.blobs))
    numbers: dict[Log, int] = {}
    of_blobs = tuple(
        None if logs is None else tuple(numbers.setdefault(log, len(numbers)) for log in sorted(logs))
        for logs in owners
    )
    return Owners(logs=tuple((log.topic, log.partition) for log in numbers), of_blobs=of_blobs)
