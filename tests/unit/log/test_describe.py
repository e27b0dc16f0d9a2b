from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from llog.errors import InvalidArgument, PartitionNotInitialized
from llog.formats.values import CompactionRecord, CompactorClaim, Value, decode_value, encode_value
from llog.log.append.append import Appender
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.fence import fence
from llog.log.inspect.describe import describe_log, describe_record
from llog.log.keys import Log
from llog.log.rewrite import publish
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.port import Key, Record
from llog.stores.objects.memory import MemoryObjectStore
from tests import samples
from tests.contract.backup_suite import memory_context
from tests.contract.log_suite import ORDERS, group


@pytest.fixture
async def context() -> LogContext:
    context = memory_context(MemoryObjectStore(f"memory://describe-{time.time_ns()}"), atomic=False)
    appender = Appender(context)
    for number in range(6):
        await appender.append([group(ORDERS, b"%d" % number, b"x")])
    await appender.close()
    return context


async def test_a_description_counts_what_the_index_holds(context: LogContext) -> None:
    await compact_once(context, ORDERS, max_offsets=4)
    await compact_once(context, ORDERS, max_offsets=4)
    found = await describe_log(context, ORDERS, entries=2)
    assert (found.log_state, found.log_start_offset, found.next_offset, found.cursor) == ("OPEN", 1, 13, 9)
    assert (found.index.valid, found.index.wal, found.index.compacted_by_level) == (4, 2, {1: 2})
    assert found.index.first is not None
    assert found.index.last is not None
    assert (found.index.first.start_offset, found.index.last.end_offset) == (1, 12)
    assert [(row.start_offset, row.end_offset, row.type) for row in found.entries] == [
        (1, 4, "COMPACTED"),
        (5, 8, "COMPACTED"),
    ]
    assert {state: one.count for state, one in found.segments.items()} == {"COPY_SEGMENT_FINISHED": 2}
    assert (found.snapshot_as_of, found.run, found.pending, found.claim) == (9, None, None, None)


async def test_phantoms_and_what_lies_below_the_start_are_told_apart(context: LogContext) -> None:
    record = await context.metadata.get(context.keys.index_entry(ORDERS, 2))
    assert record is not None
    await compact_once(context, ORDERS, max_offsets=6)
    await context.metadata.put(record.key, record.value)
    found = await describe_log(context, ORDERS)
    assert (found.index.entries, found.index.valid, found.index.phantoms) == (5, 4, 1)
    await delete_records(context, ORDERS, 9)
    assert (await describe_log(context, ORDERS)).log_start_offset == 9


async def test_a_run_that_is_swapped_but_whose_cursor_stands_is_updating_the_cursor(
    context: LogContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop(*_: object) -> None:
        raise RuntimeError("stopped before the cursor moved")

    monkeypatch.setattr(publish, "_move", stop)
    with pytest.raises(RuntimeError, match="stopped"):
        await compact_once(context, ORDERS, max_offsets=6)
    found = await describe_log(context, ORDERS)
    assert found.run is not None
    assert (found.run.state, found.run.start_offset, found.run.end_offset) == ("UPDATING_CURSOR", 1, 6)
    key = context.keys.compaction(ORDERS)
    record = await context.metadata.get(key)
    assert record is not None
    value = decode_value(CompactionRecord, record.value, key.path)
    assert value.in_flight is not None
    assert value.in_flight.state == "WRITING_COMPACTED_INDEX"
    unswapped = replace(value, in_flight=replace(value.in_flight, end_offset=8))
    await context.metadata.put(key, encode_value(unswapped))
    again = await describe_log(context, ORDERS)
    assert again.run is not None
    assert again.run.state == "WRITING_COMPACTED_INDEX"


async def test_a_fence_and_a_claim_are_shown(context: LogContext) -> None:
    await fence(context, ORDERS)
    claim = CompactorClaim(compactor_id="c-1", claimed_at_ms=5)
    await context.metadata.put(context.keys.claim(ORDERS), encode_value(claim))
    found = await describe_log(context, ORDERS)
    assert (found.log_state, found.epoch, found.claim) == ("FENCED", 1, claim)


async def test_what_cannot_be_described_is_said(context: LogContext) -> None:
    with pytest.raises(PartitionNotInitialized):
        await describe_log(context, Log("nobody", 0))
    with pytest.raises(InvalidArgument, match="entries"):
        await describe_log(context, ORDERS, entries=10**9)


@pytest.mark.parametrize("value", samples.VALUE_SAMPLES, ids=lambda value: type(value).__name__)
def test_every_kind_of_value_can_be_shown_as_json(value: object) -> None:
    assert isinstance(value, Value)
    record = Record(Key("x"), samples.encoded(value), 7)
    assert describe_record(memory_context(MemoryObjectStore("memory://shown")).keys, record).problem == ""


@pytest.mark.parametrize(
    ("data", "value", "problem"),
    [(b'{"a": 1}', {"a": 1}, "not a ControlRecord"), (b"text", "text", "not a"), (b"\xff\x00", "/wA=", "not a")],
)
def test_a_value_that_is_not_what_its_key_says_is_shown_as_it_is(data: bytes, value: object, problem: str) -> None:
    keys = memory_context(MemoryObjectStore("memory://shown")).keys
    found = describe_record(keys, Record(keys.control(ORDERS), data, 7))
    assert (found.kind, found.value) == ("control", value)
    assert found.problem.startswith(problem)
