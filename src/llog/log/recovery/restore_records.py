"""Put the records of a backup back: many at a time, each only where no record exists, and changed where that is needed.

What happened between the backup and the loss is unknown. Where that could do harm, a value changes to one that is safe
in every case:

- horizons rise to the time of the restore. Vacuum may have raised them, and deleted objects, since the backup, so no
  object created before may be committed or published by a process that slept (R8);
- a run in flight gets the version that its end key has now, or a version that no key has if the end key was not what
  the run was planned on: then the run is abandoned, as it would have been;
- the next producer id leaps ahead, because clients use ids that were given since the backup;
- producer snapshots say that producers were forgotten: those that began since the backup, which may go on writing;
- the logs of a topic that was deleted while the backup was taken become tombstones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from llog.errors import MetadataStoreError, MetadataUnavailable, RestoreRefused, VersionConflict
from llog.formats.backup import BackedUp, BackupDecoder, Begin, Commit, Line
from llog.formats.values import (
    ClusterId,
    CompactionRecord,
    ControlRecord,
    ProducerIdBlock,
    ProducerSnapshot,
    TopicRecord,
    decode_value,
    encode_value,
)
from llog.limits import MIB, RESTORE_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.keys import Log, ParsedKey
from llog.log.producer_ids import PRODUCER_ID_FIRST
from llog.log.recovery.backup_places import BackupPlace
from llog.stores.metadata.port import ABSENT, Key, Put

if TYPE_CHECKING:
    from llog.log.recovery.restore import BackupContents

# One write to the store takes about this many records or bytes, of one large log or of many small ones.
RESTORE_BATCH_RECORDS: Final = 4_096
RESTORE_BATCH_BYTES: Final = 8 * MIB
# How far the next producer id moves: more than were given since the backup.
RESTORE_PRODUCER_ID_LEAP: Final = 2**32
# A version that no store ever gives.
NO_VERSION: Final = 2**63 - 1


async def put_back(
    context: LogContext, place: BackupPlace, contents: BackupContents, restored_at_ms: int, puts: RestorePuts
) -> None:
    """Put back the logs, then the topics, then the identity of the cluster."""
    identity: BackedUp | None = None
    ids_seen = False
    log: _LogRestore | None = None
    logs = _LogRestores(context, puts)
    async for line in _counting_lines(place, contents):
        if isinstance(line, Begin):
            log = None
            if line.kind == "log":
                name = Log(line.topic, line.partition)
                log = _LogRestore(context, name, contents.topics.get(line.topic), restored_at_ms)
            elif line.kind == "topics":
                await logs.flush()
        elif isinstance(line, Commit):
            if log is not None:
                await logs.add_complete(log)
        elif isinstance(line, BackedUp):
            if log is not None:
                await logs.add(log.take(line))
                continue
            parsed = context.keys.parse(line.path)
            if parsed is not None and parsed.kind == "cluster_id":
                identity = line
            else:
                ids_seen = ids_seen or (parsed is not None and parsed.kind == "producer_ids")
                await logs.add((context.keys.key_of(line.path), _shared_value(parsed, line)))
    if not ids_seen:  # the first ids were given after the backup, or none were
        key, none_given = context.keys.producer_ids(), ProducerIdBlock(next_producer_id=PRODUCER_ID_FIRST)
        await logs.add((key, encode_value(plan_producer_ids(none_given), key.path)))
    await logs.flush()
    if identity is not None:
        # The disk of the WAL may be lost too, so every store joins the cluster again, with or without a marker.
        cluster = replace(decode_value(ClusterId, identity.value, identity.path), stores=())
        puts.add(context.keys.cluster_id(), encode_value(cluster, identity.path))
        await puts.flush()


def _shared_value(parsed: ParsedKey | None, line: BackedUp) -> bytes:
    if parsed is None or parsed.kind != "producer_ids":
        return line.value
    block = decode_value(ProducerIdBlock, line.value, line.path)
    return encode_value(plan_producer_ids(block), line.path)


async def _counting_lines(place: BackupPlace, contents: BackupContents) -> AsyncIterator[Line]:
    """The lines of the groups that were not discarded."""
    decoder = BackupDecoder(place.where)
    group = -1
    async for piece in place.parts():
        for line in decoder.feed(piece):
            if isinstance(line, Begin):
                group += 1
            if group not in contents.discarded:
                yield line
    decoder.close()


class _LogRestore:
    """One log: its guarding records, which are kept until all its other records are written."""

    def __init__(self, context: LogContext, log: Log, topic: TopicRecord | None, restored_at_ms: int) -> None:
        self._keys, self._log, self._topic = context.keys, log, topic
        self._restored_at_ms = restored_at_ms
        self._control: ControlRecord | None = None
        self._compaction: CompactionRecord | None = None
        self.end_key: Key | None = None
        """The index entry at the end of the run in flight."""
        self._end_key_version: int | None = None
        self._control_key, self._compaction_key = context.keys.control(log), context.keys.compaction(log)
        self._producers_key = context.keys.producers(log)
        self.guard_bytes = 0

    def take(self, line: BackedUp) -> tuple[Key, bytes] | None:
        """What to put back for this line now."""
        if line.path == self._control_key.path:
            self._control = decode_value(ControlRecord, line.value, line.path)
        elif self._topic is not None and self._topic.state == "DELETED":
            return None  # deleted while the backup was taken: only the tombstone is restored
        elif line.path == self._compaction_key.path:
            self._compaction = decode_value(CompactionRecord, line.value, line.path)
            run = self._compaction.in_flight
            self.end_key = None if run is None else self._keys.index_entry(self._log, run.end_offset)
        elif line.path == self._producers_key.path:
            head = decode_value(ProducerSnapshot, line.value, line.path)
            return self._producers_key, encode_value(replace(head, forgot=True), line.path)
        else:
            if self.end_key is not None and line.path == self.end_key.path:
                self._end_key_version = line.version
            return Key(line.path, self._control_key.route), line.value
        self.guard_bytes += len(line.value)
        return None

    def compaction(self, end_key_version_now: int | None) -> tuple[Key, bytes] | None:
        if self._compaction is None:
            return None
        planned = plan_compaction(
            self._compaction,
            restored_at_ms=self._restored_at_ms,
            end_key_version_then=self._end_key_version,
            end_key_version_now=end_key_version_now,
        )
        return self._compaction_key, encode_value(planned, self._compaction_key.path)

    def control(self) -> tuple[Key, bytes] | None:
        if self._control is None:
            return None
        planned = plan_control(self._control, self._topic, restored_at_ms=self._restored_at_ms)
        return self._control_key, encode_value(planned, self._control_key.path)


class _LogRestores:
    """Writes the records of many logs together, in an order that is safe for each: its compaction record after all
    others, then its control record, which means that the log is complete."""

    def __init__(self, context: LogContext, puts: RestorePuts) -> None:
        self._context, self._puts = context, puts
        self._complete: list[_LogRestore] = []
        self._guard_bytes = 0

    async def add(self, put: tuple[Key, bytes] | None) -> None:
        if put is not None:
            self._puts.add(*put)
            await self._flush_if_full()

    async def add_complete(self, log: _LogRestore) -> None:
        """All records of the log were added, so its guarding records may follow."""
        self._complete.append(log)
        self._guard_bytes += log.guard_bytes
        await self._flush_if_full()

    async def _flush_if_full(self) -> None:
        records = len(self._puts) + len(self._complete)
        if records >= RESTORE_BATCH_RECORDS or self._puts.byte_length + self._guard_bytes >= RESTORE_BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        await self._puts.flush()
        logs, self._complete, self._guard_bytes = self._complete, [], 0
        versions = await self._end_key_versions(logs)
        await self._write([log.compaction(versions.get(log.end_key)) for log in logs])
        await self._write([log.control() for log in logs])

    async def _end_key_versions(self, logs: Sequence[_LogRestore]) -> dict[Key | None, int]:
        keys = [log.end_key for log in logs if log.end_key is not None]
        found = await self._context.metadata.get_many(keys, strict=True) if keys else []
        return {key: record.version for key, record in zip(keys, found, strict=True) if record is not None}

    async def _write(self, guards: Sequence[tuple[Key, bytes] | None]) -> None:
        for guard in guards:
            if guard is not None:
                self._puts.add(*guard)
        await self._puts.flush()


# -- values that change -----------------------------------------------------------------------------------------------


def plan_control(control: ControlRecord, topic: TopicRecord | None, *, restored_at_ms: int) -> ControlRecord:
    raised = replace(control, commit_horizon_ms=max(control.commit_horizon_ms, restored_at_ms))
    return replace(raised, log_state="DELETED", pending=None) if is_dead(control, topic) else raised


def is_dead(control: ControlRecord, topic: TopicRecord | None) -> bool:
    """The log belongs to an incarnation that the topic record says is deleted."""
    if control.log_state == "DELETED":
        return True
    return topic is not None and topic.state == "DELETED" and control.incarnation <= topic.incarnation


def plan_compaction(
    record: CompactionRecord,
    *,
    restored_at_ms: int,
    end_key_version_then: int | None,
    end_key_version_now: int | None,
) -> CompactionRecord:
    """`then` and `now` are the versions of the key at the end of the run, in the backup and after its restore."""
    raised = replace(record, segment_horizon_ms=max(record.segment_horizon_ms, restored_at_ms))
    run = record.in_flight
    if run is None:
        return raised
    as_planned = end_key_version_then == run.end_version and end_key_version_now is not None
    version = end_key_version_now if as_planned and end_key_version_now is not None else NO_VERSION
    return replace(raised, in_flight=replace(run, end_version=version))


def plan_producer_ids(block: ProducerIdBlock) -> ProducerIdBlock:
    return replace(block, next_producer_id=block.next_producer_id + RESTORE_PRODUCER_ID_LEAP)


# -- writes ----------------------------------------------------------------------------------------------------------


class RestorePuts:
    """Collects puts; `flush` returns once all of them are written.

    Nothing is overwritten. A key that exists is fine when it has the same value (after a lost answer, or a crash of the
    same restore); another value means that another process writes to the store, and the restore stops.
    """

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._waiting: dict[Key, bytes] = {}
        self.byte_length = 0
        self.written = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, value: bytes) -> None:
        self._waiting[key] = value
        self.byte_length += len(value)

    async def flush(self) -> None:
        self.written += len(self._waiting)
        last_error: MetadataStoreError | None = None
        for round_number in range(RESTORE_ROUNDS_MAX):
            if not self._waiting:
                self.byte_length = 0
                return
            if round_number:
                await self._context.back_off(round_number)
            last_error = await self._write_all()
        raise last_error or MetadataUnavailable("restore", next(iter(self._waiting)).path, "no answer")

    async def _write_all(self) -> MetadataStoreError | None:
        """One attempt at all waiting puts; the last retriable error."""
        groups = [(Put(key, value, ABSENT),) for key, value in self._waiting.items()]
        last_error: MetadataStoreError | None = None
        unsettled: list[Key] = []
        for (put,), outcome in zip(groups, await self._context.metadata.write(groups), strict=True):
            if isinstance(outcome, tuple):
                del self._waiting[put.key]
            elif outcome.retriable or isinstance(outcome, VersionConflict):
                last_error = outcome
                unsettled.append(put.key)
            else:
                raise outcome
        if unsettled:
            await self._compare(unsettled)
        return last_error

    async def _compare(self, keys: list[Key]) -> None:
        """Forget refused or unanswered puts that the store already has."""
        try:
            found = await self._context.metadata.get_many(keys, strict=True)
        except MetadataStoreError as error:
            if error.retriable:
                return
            raise
        for key, record in zip(keys, found, strict=True):
            if record is None:
                continue
            if record.value != self._waiting[key]:
                raise RestoreRefused(
                    f"{key.path} already has another value, so another process writes to this store: stop every "
                    "broker, compactor and job, empty the store below the root, and restore again"
                )
            del self._waiting[key]
