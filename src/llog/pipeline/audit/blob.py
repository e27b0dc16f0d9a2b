"""Slices under audit: is a blob's header whole, does it know the slice, and are the records what their entry says?

An entry may name a part of a body only: of a group that many producers share, the pieces that were new. So a slice must
lie inside the body of its log, and the body's checksum is compared once, for all entries in it.

What must stay true: a header of a newer release, or of another program that writes this format, is not called damaged
for fields that are missing here or unknown here. A flipped bit in a field's name makes one of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec

from llog.errors import FormatError, InvalidField, TruncatedInput
from llog.formats.buffers import Buffer, json_decoder, json_value
from llog.formats.records.record_batch import walk
from llog.formats.shared_blob import (
    PREFIX_BYTES,
    BlobHeader,
    BlobPartition,
    BlobSlice,
    header_length,
    parse_header,
    slices_of,
    verify_body,
)
from llog.log.ids import created_at_ms_of, is_object_id
from llog.log.index import Entry
from llog.log.inspect.check_objects import check_records
from llog.log.keys import Log
from llog.pipeline.audit.object import OneObject


class BlobCheck:
    """The entries that name one object. Without a header it is an object of one log (written before blobs were)."""

    def __init__(self, subject: OneObject, *, has_header: bool = True) -> None:
        self._subject, self._has_header = subject, has_header
        self._parts: dict[Log, BlobSlice] | None = None
        self._wrong: FormatError | None = None
        self._bodies: dict[Log, FormatError | None] = {}
        """Whose checksum was compared, and how that ended."""

    async def check(self, log: Log, entry: Entry) -> None:
        """Raises what is wrong."""
        value, subject = entry.value, self._subject
        if value.byte_offset is None or value.byte_length is None:
            check_records(await subject.get(subject.name), entry)
            return
        if self._has_header:
            await self._check_in_header(log, entry)
        data = await subject.get_range(subject.name, value.byte_offset, value.byte_length)
        check_records(data, entry)
        if value.record_count not in (None, value.msg_count):
            reason = f"its index entry counts {value.record_count} records at {value.msg_count} offsets"
            raise InvalidField(subject.object_uri, reason)
        _check_newest(data, entry, subject.object_uri)

    async def _check_in_header(self, log: Log, entry: Entry) -> None:
        value, source = entry.value, self._subject.object_uri
        part = (await self._parsed()).get(log)
        begin, length = value.byte_offset or 0, value.byte_length or 0
        if part is None or not part.byte_offset <= begin < begin + length <= part.byte_offset + part.byte_length:
            raise InvalidField(source, f"its header knows no slice of {log} at byte {begin}")
        if part.encoding != value.encoding:
            reason = f"its header says {part.encoding}, the index entry {value.encoding}"
            raise InvalidField(source, f"slice of {log}: {reason}")
        whole = length == part.byte_length
        if part.msg_count < value.msg_count or (whole and part.msg_count != value.msg_count):
            reason = f"its header counts {part.msg_count} offsets, the index entry {value.msg_count}"
            raise InvalidField(source, f"slice of {log}: {reason}")
        if log not in self._bodies:
            self._bodies[log] = await self._body_error(part)
        wrong = self._bodies[log]
        if wrong is not None:
            raise wrong

    async def check_unnamed(self) -> None:
        """Bodies of logs that name them no more. Nobody reads those; but a store that lost a bit there lost one."""
        for log, part in (await self._parsed()).items():
            wrong = None if log in self._bodies else await self._body_error(part)
            if wrong is not None:
                raise wrong

    async def _body_error(self, part: BlobSlice) -> FormatError | None:
        body = await self._subject.get_range(self._subject.name, part.byte_offset, part.byte_length)
        try:
            verify_body(body, part, self._subject.object_uri)
        except FormatError as error:
            return error
        return None

    async def _parsed(self) -> dict[Log, BlobSlice]:
        if self._wrong is not None:
            raise self._wrong
        if self._parts is None:
            try:
                self._parts = await self._parse()
            except FormatError as error:
                self._wrong = error
                raise
        return self._parts

    async def _parse(self) -> dict[Log, BlobSlice]:
        subject, source = self._subject, self._subject.object_uri
        length = await subject.byte_length()
        if length < PREFIX_BYTES:
            raise TruncatedInput(source, f"{length} bytes are too few for a shared blob")
        bodies_at = header_length(await subject.get_range(subject.name, 0, PREFIX_BYTES), source)
        if length < bodies_at:
            raise TruncatedInput(source, f"the header needs {bodies_at} bytes, {length} are there")
        data = await subject.get_range(subject.name, 0, bodies_at)
        header = parse_header(data, source, object_length=length)
        check_fields(memoryview(data)[PREFIX_BYTES:], header, source)
        _check_instant(header, source)
        return {Log(part.topic, part.partition): part for part in slices_of(header, bodies_at)}


def _check_newest(data: Buffer, entry: Entry, source: str) -> None:
    """Of a group that was cut, an entry may tell the newest record of the whole; one that tells an older instant than
    its records lets retention take them too early."""
    told_ms = entry.value.max_timestamp_ms
    if entry.value.encoding != "kafka-v2" or told_ms < 0:
        return
    newest_ms = int(walk(data, source).max_timestamp.max())
    if newest_ms > told_ms:
        raise InvalidField(source, f"holds a record of {newest_ms}, its index entry says {told_ms} is the newest")


def _check_instant(header: BlobHeader, source: str) -> None:
    """A blob's name begins with the instant that its header tells."""
    object_id = source.rpartition("/")[2]
    if is_object_id(object_id) and header.created_at_ms != created_at_ms_of(object_id):
        raise InvalidField(source, f"its header says that it was made at {header.created_at_ms}, its name differs")


def check_fields(text: Buffer, value: BlobHeader | msgspec.Struct, source: str) -> None:
    """Raises for a field that is unknown where a known one is missing."""
    if msgspec.json.encode(value) == bytes(text):
        return
    written = json_value(_ANY_FIELDS, text, source, type(value).__name__)
    _compare_fields(written, type(value), source)
    if isinstance(value, BlobHeader):
        for part in _dicts(written.get("partitions", ())):
            _compare_fields(part, BlobPartition, source)


def _compare_fields(written: dict[str, Any], kind: type[msgspec.Struct], source: str) -> None:
    known = _names_of(kind)
    unknown, missing = written.keys() - known, known - written.keys()
    if unknown and missing:
        reason = f"has the unknown field {min(unknown)!r:.60} and lacks {min(missing)!r}"
        raise InvalidField(source, f"{kind.__name__}: {reason}")


@cache
def _names_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _dicts(values: Iterable[Any]) -> Iterable[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict))


_ANY_FIELDS: Final = json_decoder(dict[str, Any])
