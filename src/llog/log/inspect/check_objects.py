"""I8: check that every object that a valid entry references exists and matches the entry.

Always checked: the object exists, the byte range lies inside it, and the footer of a segment is complete and names the
log, incarnation and offsets of the entry. `deep` also reads the bytes: the checksum of the slice in the header of its
blob, the checksums of all batches, the count of records, and the checksum of a segment's data section. Memory holds a
few reads at a time, whatever the size of a segment.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

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
from llog.log.control import index_entry_of
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.read.slices import check_slices, payload_columns
from llog.stores.objects.port import ObjectStore

# Objects of one log that are checked at the same time.
LOG_CHECK_OBJECTS_IN_FLIGHT_MAX: Final = 8


class LogFault(NamedTuple):
    """An invariant that does not hold, and where."""

    invariant: str
    """`I4` … `I12`"""
    kind: str
    start_offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.kind} at {self.start_offset} … {self.end_offset}: {self.reason}"


class ObjectCheck:
    """Checks the objects of entries as they are added, a few at a time."""

    def __init__(self, context: LogContext, log: Log, *, deep: bool) -> None:
        self._context, self._log, self._deep = context, log, deep
        self._running: set[asyncio.Task[LogFault | None]] = set()
        self.faults: list[LogFault] = []
        self.checked = 0

    async def add(self, entry: Entry) -> None:
        while len(self._running) >= LOG_CHECK_OBJECTS_IN_FLIGHT_MAX:
            await self._collect(asyncio.FIRST_COMPLETED)
        self.checked += 1
        self._running.add(asyncio.create_task(object_fault(self._context, self._log, entry, deep=self._deep)))

    async def add_pending(self, pending: Pending) -> None:
        await self.add(Entry(pending.end_offset, index_entry_of(pending), -1))

    async def finish(self) -> None:
        while self._running:
            await self._collect(asyncio.ALL_COMPLETED)
        self.faults.sort()

    async def close(self) -> None:
        """Cancel the checks in progress, after an error elsewhere."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    async def _collect(self, until: str) -> None:
        done, self._running = await asyncio.wait(self._running, return_when=until)
        for task in done:
            fault = task.result()
            if fault is not None and len(self.faults) < LOG_CHECK_FAULTS_MAX:
                self.faults.append(fault)


async def object_fault(context: LogContext, log: Log, entry: Entry, *, deep: bool) -> LogFault | None:
    """The fault of the object that an entry references; None when it is sound. Store errors are raised."""
    try:
        store, name = await context.find_object(entry.value.data_key)
        if entry.value.type == "COMPACTED" and entry.value.encoding == "kafka-v2":
            await check_segment(store, name, log, entry, deep=deep)
        else:
            await _check_slice(context, store, name, log, entry, deep=deep)
    except ObjectNotFound:
        return _fault(entry, "missing object", f"{entry.value.data_key} does not exist")
    except ObjectRangeInvalid as error:
        return _fault(entry, "short object", str(error))
    except ChecksumMismatch as error:
        return _fault(entry, "checksum", str(error))
    except UnsupportedFormat as error:
        return _fault(entry, "unsupported", str(error))
    except FormatError as error:
        return _fault(entry, "malformed object", str(error))
    return None


def _fault(entry: Entry, kind: str, reason: str) -> LogFault:
    return LogFault("I8", kind, entry.start_offset, entry.end_offset, reason)


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
            raise TruncatedInput(source, f"has {found.byte_length} bytes, and the slice of the entry ends beyond them")
        return
    data = await store.get_range(name, value.byte_offset, value.byte_length)
    parsed = context.keys.parse_object(name)
    if parsed is not None and parsed.kind == "blob":
        await _check_in_blob(store, name, log, entry, data)
    check_records(data, entry)


async def _check_in_blob(store: ObjectStore, name: str, log: Log, entry: Entry, data: Buffer) -> None:
    """Check that the header of the blob lists this slice with this checksum."""
    source = entry.value.data_key
    bodies_at = header_length(await store.get_range(name, 0, PREFIX_BYTES), source)
    header = parse_header(await store.get_range(name, 0, bodies_at), source)
    span = (entry.value.byte_offset, entry.value.byte_length)
    for part in slices_of(header, bodies_at):
        if (part.topic, part.partition) == log and (part.byte_offset, part.byte_length) == span:
            verify_body(data, part, source)
            return
    raise InvalidField(source, f"the header lists no slice of {log} at byte {span[0]}")


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
        owner = (extension.topic, extension.partition, extension.incarnation)
        if owner != (*log, entry.value.incarnation):
            raise InvalidField(source, f"belongs to {owner[0]}:{owner[1]}, incarnation {owner[2]}")
        if (extension.start_offset, extension.end_offset) != (entry.start_offset, entry.end_offset):
            offsets = f"{extension.start_offset} … {extension.end_offset}"
            raise InvalidField(source, f"holds offsets {offsets}, not those of its index entry")
    records = int(footer.entries["record_count"].sum(dtype="int64"))
    if entry.value.record_count is not None and records != entry.value.record_count:
        raise InvalidField(source, f"holds {records} records, its index entry says {entry.value.record_count}")
    if deep:
        await _check_segment_data(store, name, footer, source)


async def read_footer(
    store: ObjectStore, name: str, known_length: int | None, source: str
) -> tuple[SegmentFooter, int]:
    """The footer and the length of the object. Raises `FormatError` for an object that is not a segment."""
    tail, length = await store.get_tail(name, max(known_length or SEGMENT_FOOTER_PROBE_BYTES, TAIL_BYTES_MIN))
    wanted = footer_length(tail, length, source)
    if wanted > len(tail):
        tail, length = await store.get_tail(name, wanted)
    return parse_footer(tail, length, source), length


async def _check_segment_data(store: ObjectStore, name: str, footer: SegmentFooter, source: str) -> None:
    """Check all batches, a few megabytes at a time, then the checksum of the data section."""
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
            raise InvalidField(source, "its batches do not match its footer")
        checksum = crc32c(data, checksum)
        row, position = stop, int(ends[stop - 1])
    if footer.extension is not None and checksum != footer.extension.data_crc32c:
        raise ChecksumMismatch(source, "segment data", footer.extension.data_crc32c, checksum)
