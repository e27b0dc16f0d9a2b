"""I8: is every object that a valid entry names there, and what the entry says of it?

Always: the object exists, the byte range lies inside it, a segment's footer is whole and tells of the same log, life
and offsets as the entry. `deep` also reads the bytes: the slice's checksum in its blob's header, every batch's own, the
count of records, and the checksum of a segment's whole data section.

What must stay true: memory for a few reads at a time, whatever the size of a segment.
"""

from __future__ import annotations

import asyncio
from typing import Final

from llog.errors import (
    ChecksumMismatch,
    FormatError,
    InvalidField,
    ObjectNotFound,
    ObjectRangeInvalid,
    TruncatedInput,
    UnsupportedFormat,
)
from llog.formats.buffers import Buffer, crc32c
from llog.formats.records.record_batch import BatchRule, verify_crcs, walk
from llog.formats.segment import TAIL_BYTES_MIN, SegmentFooter, footer_length, parse_footer
from llog.formats.shared_blob import PREFIX_BYTES, header_length, parse_header, slices_of, verify_body
from llog.formats.values import Pending
from llog.limits import LOG_CHECK_FAULTS_MAX, LOG_CHECK_READ_BYTES, SEGMENT_FOOTER_PROBE_BYTES
from llog.log.context import LogContext
from llog.log.index import Entry, index_entry_of
from llog.log.inspect.faults import Fault
from llog.log.keys import Log
from llog.log.read.slices import check_slices, payload_columns
from llog.stores.objects.port import ObjectStore

LOG_CHECK_OBJECTS_IN_FLIGHT_MAX: Final = 8


class ObjectCheck:
    """Takes entries as they are read; looks at a few objects at a time."""

    def __init__(self, context: LogContext, log: Log, *, deep: bool) -> None:
        self._context, self._log, self._deep = context, log, deep
        self._under_way: set[asyncio.Task[Fault | None]] = set()
        self.faults: list[Fault] = []
        self.checked = 0

    async def add(self, entry: Entry) -> None:
        while len(self._under_way) >= LOG_CHECK_OBJECTS_IN_FLIGHT_MAX:
            await self._collect(asyncio.FIRST_COMPLETED)
        self.checked += 1
        self._under_way.add(asyncio.create_task(object_fault(self._context, self._log, entry, deep=self._deep)))

    async def add_pending(self, pending: Pending) -> None:
        await self.add(Entry(pending.end_offset, index_entry_of(pending), -1))

    async def finish(self) -> None:
        while self._under_way:
            await self._collect(asyncio.ALL_COMPLETED)
        self.faults.sort()

    async def close(self) -> None:
        """Give up what is under way: after an error elsewhere."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._under_way.clear()

    async def _collect(self, until: str) -> None:
        done, self._under_way = await asyncio.wait(self._under_way, return_when=until)
        for task in done:
            fault = task.result()
            if fault is not None and len(self.faults) < LOG_CHECK_FAULTS_MAX:
                self.faults.append(fault)


async def object_fault(context: LogContext, log: Log, entry: Entry, *, deep: bool) -> Fault | None:
    """What is wrong with the object behind an entry. Raises what a store raises that did not answer."""
    try:
        store, name = await context.find_object(entry.value.data_key)
        if entry.value.type == "COMPACTED" and entry.value.encoding == "kafka-v2":
            await check_segment(store, name, log, entry, deep=deep)
        else:
            await _check_slice(context, store, name, log, entry, deep=deep)
    except ObjectNotFound:
        return _fault(entry, "missing object", f"{entry.value.data_key} is not there")
    except ObjectRangeInvalid as error:
        return _fault(entry, "short object", str(error))
    except ChecksumMismatch as error:
        return _fault(entry, "checksum", str(error))
    except UnsupportedFormat as error:
        return _fault(entry, "unsupported", str(error))
    except FormatError as error:
        return _fault(entry, "malformed object", str(error))
    return None


def _fault(entry: Entry, kind: str, reason: str) -> Fault:
    return Fault("I8", kind, entry.start_offset, entry.end_offset, reason)


# -- slices ------------------------------------------------------------------------------------------


async def _check_slice(
    context: LogContext, store: ObjectStore, name: str, log: Log, entry: Entry, *, deep: bool
) -> None:
    value, source = entry.value, entry.value.data_key
    if value.byte_offset is None or value.byte_length is None:
        if deep:
            check_records(await store.get(name), entry)
        else:
            await store.head(name)
        return
    if not deep:
        found = await store.head(name)
        if value.byte_offset + value.byte_length > found.byte_length:
            raise TruncatedInput(source, f"{found.byte_length} bytes; the entry's slice ends beyond them")
        return
    data = await store.get_range(name, value.byte_offset, value.byte_length)
    parsed = context.keys.parse_object(name)
    if parsed is not None and parsed.kind == "blob":
        await _check_in_blob(store, name, log, entry, data)
    check_records(data, entry)


async def _check_in_blob(store: ObjectStore, name: str, log: Log, entry: Entry, data: Buffer) -> None:
    """Does the blob's own header tell of this slice, with this checksum?"""
    source = entry.value.data_key
    bodies_at = header_length(await store.get_range(name, 0, PREFIX_BYTES), source)
    header = parse_header(await store.get_range(name, 0, bodies_at), source)
    place = (entry.value.byte_offset, entry.value.byte_length)
    for part in slices_of(header, bodies_at):
        if (part.topic, part.partition) == log and (part.byte_offset, part.byte_length) == place:
            verify_body(data, part, source)
            return
    raise InvalidField(source, f"its header knows no slice of {log} at byte {place[0]}")


def check_records(data: Buffer, entry: Entry) -> None:
    source, encoding = entry.value.data_key, entry.value.encoding
    if encoding == "kafka-v2":
        check_slices(data, [len(data)], [entry.value.msg_count], source)
    elif encoding == "bytes-batch-v1":
        payload_columns(data, entry.value.msg_count, entry.start_offset, entry.value.created_at_ms, source)
    else:
        raise UnsupportedFormat(source, f"encoding {encoding!r}")


# -- segments ------------------------------------------------------------------------------------------


async def check_segment(store: ObjectStore, name: str, log: Log, entry: Entry, *, deep: bool) -> None:
    source = entry.value.data_key
    footer, length = await read_footer(store, name, entry.value.footer_length, source)
    if entry.value.byte_length is not None and entry.value.byte_length != length:
        raise InvalidField(source, f"has {length} bytes, its index entry says {entry.value.byte_length}")
    extension = footer.extension
    if extension is not None:
        told = (extension.topic, extension.partition, extension.incarnation)
        if told != (*log, entry.value.incarnation):
            raise InvalidField(source, f"tells of {told[0]}:{told[1]} in its life {told[2]}")
        if (extension.start_offset, extension.end_offset) != (entry.start_offset, entry.end_offset):
            told_offsets = f"{extension.start_offset} … {extension.end_offset}"
            raise InvalidField(source, f"holds offsets {told_offsets}, not those of its index entry")
    records = int(footer.entries["record_count"].sum(dtype="int64"))
    if entry.value.record_count is not None and records != entry.value.record_count:
        raise InvalidField(source, f"holds {records} records, its index entry says {entry.value.record_count}")
    if deep:
        await _check_segment_data(store, name, footer, source)


async def read_footer(
    store: ObjectStore, name: str, known_length: int | None, source: str
) -> tuple[SegmentFooter, int]:
    """The footer, and the length of the whole object. Raises `FormatError` for what is not a segment."""
    tail, length = await store.get_tail(name, max(known_length or SEGMENT_FOOTER_PROBE_BYTES, TAIL_BYTES_MIN))
    wanted = footer_length(tail, length, source)
    if wanted > len(tail):
        tail, length = await store.get_tail(name, wanted)
    return parse_footer(tail, length, source), length


async def _check_segment_data(store: ObjectStore, name: str, footer: SegmentFooter, source: str) -> None:
    """All batches, a few megabytes at a time, and then the checksum of all of them."""
    checksum, row, rows = 0, 0, len(footer.entries)
    ends = footer.entries["byte_position"].astype("int64") + footer.entries["batch_length"]
    position = 0
    while row < rows:
        stop = row + 1
        while stop < rows and int(ends[stop]) - position <= LOG_CHECK_READ_BYTES:
            stop += 1
        data = await store.get_range(name, position, int(ends[stop - 1]) - position)
        batches = walk(data, source, rule=BatchRule.COMPACTED)
        verify_crcs(data, batches, source)
        if batches.base_offset.tolist() != footer.entries["base_offset"][row:stop].tolist():
            raise InvalidField(source, "its batches are not where its index says")
        checksum = crc32c(data, checksum)
        row, position = stop, int(ends[stop - 1])
    if footer.extension is not None and checksum != footer.extension.data_crc32c:
        raise ChecksumMismatch(source, "segment data", footer.extension.data_crc32c, checksum)
