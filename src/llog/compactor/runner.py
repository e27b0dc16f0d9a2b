"""Who does the work: a small interface, and the runner that does it in this process.

Why it exists: jobs that run elsewhere (on a Spark cluster, say) stand behind the same methods; the service plans,
claims and counts, and does not know the difference. A runner speaks the protocol through functions that are safe
whoever else runs them, so nothing here needs a claim to be safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from llog.errors import InvalidArgument
from llog.formats.backup import BackupManifest
from llog.limits import COMPACTOR_KEYS_BYTES_MAX, COMPACTOR_MERGES_AT_ONCE
from llog.log.cleanup.retention import Retained, configured_limits, retain
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_places import BackupObjects
from llog.log.rewrite.publish import Compacted
from llog.log.topics.delete import TopicDeleted, delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.key_compact.report import KeyCompactOptions, KeyCompactReport
from llog.pipeline.runtime.work import InProcessRunner as TasksHere
from llog.pipeline.runtime.work import tools_of
from llog.pipeline.vacuum.job import VacuumReport, vacuum_here


class JobRunner(Protocol):
    @property
    def logs_per_worker(self) -> int:
        """How many visits to logs one worker may have under way: more than one where they are worked off together."""

    @property
    def spark_state(self) -> str | None:
        """`starting`, `ready` or `unavailable (why)`; None where Spark plays no part."""

    async def compact(self, log: Log, *, max_offsets: int, target_bytes: int, min_age_ms: int) -> Compacted | None:
        """Finish the run in flight, or compact the next; None when there is nothing to do."""

    async def merge(self, log: Log, *, target_bytes: int, min_inputs: int) -> Compacted | None: ...

    async def retain(self, log: Log) -> Retained:
        """Apply the limits of the topic's config, and remove what earlier calls left."""

    async def key_compact(self, logs: Sequence[Log], *, bytes_per_second: int | None) -> KeyCompactReport:
        """Clean those of them that are worth a pass, reading so fast at most. What fails a log stands in the report."""

    async def vacuum(self) -> VacuumReport: ...

    async def delete_topic(self, topic: str, incarnation: int) -> TopicDeleted:
        """Finish deleting this life of the topic."""

    async def backup(self) -> BackupManifest:
        """Copy the metadata to the object store, marked as made on a schedule."""

    async def close(self) -> None: ...


class InProcessRunner:
    """Does everything on this event loop, log by log."""

    logs_per_worker = 1

    @property
    def spark_state(self) -> str | None:
        return None

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._merges = asyncio.Semaphore(COMPACTOR_MERGES_AT_ONCE)

    async def compact(self, log: Log, *, max_offsets: int, target_bytes: int, min_age_ms: int) -> Compacted | None:
        return await compact_once(
            self._context, log, max_offsets=max_offsets, target_bytes=target_bytes, min_age_ms=min_age_ms
        )

    async def merge(self, log: Log, *, target_bytes: int, min_inputs: int) -> Compacted | None:
        async with self._merges:
            return await merge_once(self._context, log, target_bytes=target_bytes, min_inputs=min_inputs)

    async def retain(self, log: Log) -> Retained:
        return await retain(self._context, log, await configured_limits(self._context, log.topic))

    async def key_compact(self, logs: Sequence[Log], *, bytes_per_second: int | None) -> KeyCompactReport:
        await asyncio.to_thread(import_module, "llog.pipeline.key_compact.job")  # heavy, and most have no use for it
        from llog.pipeline.key_compact.aggregate import InProcessAggregate
        from llog.pipeline.key_compact.job import key_compact

        tools, options = tools_of(self._context), KeyCompactOptions(bytes_per_second=bytes_per_second)
        aggregate = InProcessAggregate(tools, bytes_max=COMPACTOR_KEYS_BYTES_MAX)
        return await key_compact(self._context, TasksHere(tools), aggregate, logs, options=options)

    async def vacuum(self) -> VacuumReport:
        return await vacuum_here(self._context)

    async def delete_topic(self, topic: str, incarnation: int) -> TopicDeleted:
        return await delete_topic(self._context, topic, expected_incarnation=incarnation)

    async def backup(self) -> BackupManifest:
        context = self._context
        if context.segments is None:
            raise InvalidArgument("context", "has no object store to put a backup into")
        backup_id = new_object_id(context.now_ms(), context.random_bits)
        # The mark comes first: whatever is left of an interrupted backup is found by it, and removed.
        await context.segments.put(context.keys.backup_schedule_object(backup_id), [b"{}"])
        place = BackupObjects(context.segments, context.keys, backup_id)
        return await write_backup(context, place, backup_id)

    async def close(self) -> None:
        """Nothing is held between calls."""
