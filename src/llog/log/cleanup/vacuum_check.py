"""Which old objects one log names, and which objects count as old.

    1. raise the log's horizon by compare-and-set, also when it need not move
    2. take the pending append (or the run in flight) from the value just written
    3. scan the index by strict reads

Why the order is safe (R8): after step 1 no object older than the horizon can be committed to this log, or published, so
steps 2 and 3 name all objects of that age that the log will ever name. The write in step 1 proves that step 2 is
current; step 3 must be strict, or vacuum would miss an entry and delete its blob (h03). An entry of a later incarnation
means that this process is stale: there is no answer, and the objects stay (R13, h01b).

Old means older than the earliest of all clocks, less the grace. A single clock that runs ahead would raise horizons
into the future, and the log would refuse appends until then (h17). Clocks that differ by more than a tenth of the grace
make vacuum refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import LogBusy, MetadataUncertain, VacuumRefused, VersionConflict
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.limits import LOG_CAS_ROUNDS_MAX
from llog.log.change import change_value
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.index import EntryVerdict, entry_of, judge
from llog.log.keys import Log
from llog.stores.objects.port import ObjectStore


class NamedObjects(NamedTuple):
    """URIs of objects older than the given horizon that one log names."""

    uris: frozenset[str]
    phantoms_removed: int


async def named_blobs(context: LogContext, log: Log, horizon_ms: int) -> NamedObjects | None:
    """None: the log has no control record here, or its incarnation changed; its blobs stay."""
    control = await _raise_commit_horizon(context, log, horizon_ms)
    if control is None:
        return None
    pending = set() if control.pending is None else {control.pending.data_key}
    return await _scan(context, log, control, pending)


async def named_segments(context: LogContext, log: Log, horizon_ms: int) -> NamedObjects | None:
    found = await context.metadata.get(context.keys.control(log), strict=True)
    if found is None:
        return None
    control = decode_value(ControlRecord, found.value, found.key.path)
    raised = await _raise_segment_horizon(context, log, control, horizon_ms)
    if raised is None and control.log_state != "DELETED":
        return None
    in_flight = None if raised is None else raised.in_flight
    return await _scan(context, log, control, set() if in_flight is None else {in_flight.data_key})


async def _raise_commit_horizon(context: LogContext, log: Log, horizon_ms: int) -> ControlRecord | None:
    def raise_horizon(control: ControlRecord | None) -> ControlRecord | None:
        if control is None:
            return None
        return replace(control, commit_horizon_ms=max(horizon_ms, control.commit_horizon_ms))

    control, _ = await change_value(
        context,
        context.keys.control(log),
        ControlRecord,
        raise_horizon,
        rounds_max=LOG_CAS_ROUNDS_MAX,
        busy=LogBusy(*log, "other processes kept changing its control record; its objects stay for now"),
    )
    return control


async def _raise_segment_horizon(
    context: LogContext, log: Log, control: ControlRecord, horizon_ms: int
) -> CompactionRecord | None:
    """None where no run can be published: there is no compaction record of this incarnation, as after a deletion."""

    def raise_horizon(compaction: CompactionRecord | None) -> CompactionRecord | None:
        if compaction is None or compaction.incarnation < control.incarnation:
            return None
        if compaction.incarnation > control.incarnation:
            raise LogBusy(*log, "the topic was deleted and created again during vacuum; its objects stay for now")
        return replace(compaction, segment_horizon_ms=max(horizon_ms, compaction.segment_horizon_ms))

    compaction, _ = await change_value(
        context,
        context.keys.compaction(log),
        CompactionRecord,
        raise_horizon,
        rounds_max=LOG_CAS_ROUNDS_MAX,
        busy=LogBusy(*log, "other processes kept changing its compaction record; its objects stay for now"),
    )
    return compaction if compaction is not None and compaction.incarnation == control.incarnation else None


async def _scan(context: LogContext, log: Log, control: ControlRecord, named: set[str]) -> NamedObjects | None:
    """The objects of all entries, added to `named`. Phantoms name nothing and are deleted by version."""
    cursor = await cursor_of(context, log, control.incarnation)
    removed = 0
    async for record in context.metadata.scan_all(context.keys.index(log), strict=True):
        entry = entry_of(record)
        verdict = judge(
            entry, incarnation=control.incarnation, cursor=cursor, log_start_offset=control.log_start_offset
        )
        if verdict is EntryVerdict.FROM_THE_FUTURE:
            return None
        if verdict is EntryVerdict.PHANTOM:
            try:
                await context.metadata.delete(record.key, expected=record.version)
                removed += 1
                continue
            except (VersionConflict, MetadataUncertain):
                pass  # the key may hold another entry now: count it until the next vacuum
        named.add(entry.value.data_key)
    return NamedObjects(frozenset(named), removed)


async def cursor_of(context: LogContext, log: Log, incarnation: int) -> int:
    found = await context.metadata.get(context.keys.compaction(log), strict=True)
    if found is None:
        return 0
    compaction = decode_value(CompactionRecord, found.value, found.key.path)
    return compaction.offset if compaction.incarnation == incarnation else 0


# -- which objects are old ---------------------------------------------------------------------------------------------


def plan_now(clocks_ms: Mapping[str, int], *, grace_ms: int) -> int:
    """The time that vacuum uses, from the readings of all clocks by name."""
    earliest, latest = min(clocks_ms, key=clocks_ms.__getitem__), max(clocks_ms, key=clocks_ms.__getitem__)
    apart_ms = clocks_ms[latest] - clocks_ms[earliest]
    if apart_ms > grace_ms // 10:
        raise VacuumRefused(
            f"clocks differ by {apart_ms} ms, more than a tenth of the grace of {grace_ms} ms: "
            f"{latest} is ahead of {earliest}. Set the clocks right"
        )
    return clocks_ms[earliest]


async def read_clocks(context: LogContext) -> dict[str, int]:
    clocks = {"this machine": context.now_ms()}
    server_time_ms = await context.metadata.server_time_ms()
    if server_time_ms is not None:
        clocks["the metadata store"] = server_time_ms
    for store in context.stores():
        clocks[store.url] = await _time_of(context, store)
    return clocks


async def _time_of(context: LogContext, store: ObjectStore) -> int:
    """The store's time of an object just put. After a crash, the next vacuum deletes the object."""
    name = context.keys.clock_object(new_object_id(context.now_ms(), context.random_bits))
    await store.put(name, [])  # empty, so that vacuum works on a full disk too
    try:
        return (await store.head(name)).last_modified_ms
    finally:
        await store.delete(name)
