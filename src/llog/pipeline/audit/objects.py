"""Audit of one object, blob or segment: read once and held, or read in chunks if it is too large; requests are counted.

`OneObject` is a store, so every check that reads from a store works on it unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, Self

import msgspec

from llog.errors import FormatError, InvalidField, ObjectRangeInvalid, TruncatedInput, UnsupportedFormat
from llog.formats.buffers import Buffer, json_decoder, json_value
from llog.formats.records.record_batch import walk
from llog.formats.segment import SegmentExtension, SegmentFooter
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
from llog.formats.values import SegmentRecord
from llog.log.ids import created_at_ms_of, is_object_id
from llog.log.index import Entry
from llog.log.inspect.check_objects import check_records, read_footer
from llog.log.inspect.check_objects import check_segment as check_bytes
from llog.log.keys import Log
from llog.stores.objects.port import ByteRange, ObjectMeta, ObjectStore
from llog.stores.objects.wrappers import ForwardingObjectStore


class OneObject(ForwardingObjectStore):
    def __init__(self, inner: ObjectStore, name: str, uri: str) -> None:
        super().__init__(inner)
        self.name, self.object_uri = name, uri
        self._held: memoryview | None = None
        self._tail: tuple[Buffer, int] | None = None
        self.bytes_read = self.requests = 0

    async def hold(self) -> None:
        """Read the whole object; from here on all reads are answered from memory."""
        if self._held is None:
            self._held = memoryview(self._counted(await self.inner.get(self.name)))

    @property
    def held(self) -> bool:
        return self._held is not None

    async def get(self, name: str) -> Buffer:
        return self._counted(await self.inner.get(name)) if self._held is None else self._held

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        held = self._held
        if held is None:
            return [self._counted(data) for data in await self.inner.get_ranges(name, ranges)]
        for byte_offset, byte_length in ranges:
            if byte_offset + byte_length > len(held):
                reason = f"bytes {byte_offset} to {byte_offset + byte_length} of {len(held)}"
                raise ObjectRangeInvalid("get_ranges", self.object_uri, reason)
        return [held[byte_offset : byte_offset + byte_length] for byte_offset, byte_length in ranges]

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        held = self._held
        if held is not None:
            return held[max(0, len(held) - byte_length) :], len(held)
        if self._tail is None or len(self._tail[0]) < min(byte_length, self._tail[1]):
            tail, length = await self.inner.get_tail(name, byte_length)
            self._tail = self._counted(tail), length
        tail, length = self._tail
        return memoryview(tail)[max(0, len(tail) - byte_length) :], length

    async def head(self, name: str) -> ObjectMeta:
        self.requests += 1
        return await self.inner.head(name)

    async def byte_length(self) -> int:
        return len(self._held) if self._held is not None else (await self.head(self.name)).byte_length

    def _counted(self, data: Buffer) -> Buffer:
        self.requests += 1
        self.bytes_read += len(data)
        return data


# -- segment -----------------------------------------------------------------------------------------------------------

_EXTENSION_VERSION: Final = 1
_EXTENSION_PREFIX_BYTES: Final = 8


class Catalogued(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a segment's catalogue record, in few bytes: there may be thousands of sources."""

    epochs: dict[int, int] = {}
    sources: str = ""
    """Digest of the sources; "": unknown."""

    @classmethod
    def of(cls, record: SegmentRecord) -> Self:
        return cls(epochs=record.epochs, sources=_digest(record.sources))


def _digest(sources: Iterable[str]) -> str:
    names = sorted(set(sources))
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else ""


async def check_segment(subject: OneObject, log: Log, entry: Entry, catalogued: Catalogued | None) -> None:
    """Raises `FormatError` for the first contradiction."""
    await check_bytes(subject, subject.name, log, entry, deep=True)
    source = subject.object_uri
    if entry.value.byte_offset not in (None, 0):
        raise InvalidField(source, f"its index entry begins at byte {entry.value.byte_offset} of it, a segment at 0")
    footer, _ = await read_footer(subject, subject.name, entry.value.footer_length, source)
    if entry.value.footer_length not in (None, footer.footer_length):
        reason = f"its footer has {footer.footer_length} bytes, its index entry says {entry.value.footer_length}"
        raise InvalidField(source, reason)
    newest_ms = int(footer.entries["max_timestamp_ms"].max()) if len(footer.entries) else entry.value.max_timestamp_ms
    if entry.value.max_timestamp_ms != newest_ms:
        reason = f"its newest timestamp is {newest_ms}, its index entry says {entry.value.max_timestamp_ms}"
        raise InvalidField(source, reason)
    if footer.extension is not None:
        await _check_fields(subject, footer)
        _check_extension(footer.extension, entry, source)
        if catalogued is not None:
            _check_catalogued(footer.extension, catalogued, source)


async def _check_fields(subject: OneObject, footer: SegmentFooter) -> None:
    assert footer.extension is not None
    tail, _ = await subject.get_tail(subject.name, footer.footer_length)
    text_length = int.from_bytes(bytes(tail[4:_EXTENSION_PREFIX_BYTES]), "big")
    text = memoryview(tail)[_EXTENSION_PREFIX_BYTES : _EXTENSION_PREFIX_BYTES + text_length]
    check_fields(text, footer.extension, subject.object_uri)


def _check_extension(extension: SegmentExtension, entry: Entry, source: str) -> None:
    if extension.v != _EXTENSION_VERSION:
        raise UnsupportedFormat(source, f"footer of version {extension.v}; this release knows {_EXTENSION_VERSION}")
    if extension.level != entry.value.level:
        raise InvalidField(source, f"is of level {extension.level}, its index entry of level {entry.value.level}")
    object_id = source.rpartition("/")[2]
    instants = {entry.value.created_at_ms} | ({created_at_ms_of(object_id)} if is_object_id(object_id) else set())
    if extension.created_at_ms not in instants:
        reason = f"its footer says created at {extension.created_at_ms}; neither its name nor its index entry does"
        raise InvalidField(source, reason)


def _check_catalogued(extension: SegmentExtension, catalogued: Catalogued, source: str) -> None:
    """Footer and catalogue must agree where both hold a value."""
    if catalogued.epochs and extension.epochs and catalogued.epochs != extension.epochs:
        raise InvalidField(source, f"has epochs {extension.epochs}, the catalogue {catalogued.epochs}")
    if catalogued.sources and extension.sources and catalogued.sources != _digest(extension.sources):
        raise InvalidField(source, "has other sources than the catalogue")


# -- blob --------------------------------------------------------------------------------------------------------------


class BlobCheck:
    """Compares one blob with its entries. An object without a header holds one log, from before shared blobs."""

    def __init__(self, subject: OneObject, *, has_header: bool = True) -> None:
        self._subject, self._has_header = subject, has_header
        self._slices: dict[Log, BlobSlice] | FormatError | None = None
        """Parsed at most once."""
        self._bodies: dict[Log, FormatError | None] = {}
        """The logs of compared checksums, with the error if one differed."""

    async def check(self, log: Log, entry: Entry) -> None:
        """Raises `FormatError` for the first contradiction."""
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
            raise InvalidField(source, f"its header has no slice of {log} at byte {begin}")
        if part.encoding != value.encoding:
            reason = f"its header says {part.encoding}, the index entry {value.encoding}"
            raise InvalidField(source, f"slice of {log}: {reason}")
        whole = length == part.byte_length
        if part.msg_count < value.msg_count or (whole and part.msg_count != value.msg_count):
            reason = f"its header counts {part.msg_count} offsets, the index entry {value.msg_count}"
            raise InvalidField(source, f"slice of {log}: {reason}")
        if log not in self._bodies:
            self._bodies[log] = await self._body_error(part)
        error = self._bodies[log]
        if error is not None:
            raise error

    async def check_unnamed(self) -> None:
        """Check slices that their logs no longer name: no reader needs them, but a wrong bit shows a faulty store."""
        for log, part in (await self._parsed()).items():
            error = None if log in self._bodies else await self._body_error(part)
            if error is not None:
                raise error

    async def _body_error(self, part: BlobSlice) -> FormatError | None:
        body = await self._subject.get_range(self._subject.name, part.byte_offset, part.byte_length)
        try:
            verify_body(body, part, self._subject.object_uri)
        except FormatError as error:
            return error
        return None

    async def _parsed(self) -> dict[Log, BlobSlice]:
        if self._slices is None:
            try:
                self._slices = await self._parse()
            except FormatError as error:
                self._slices = error
        if isinstance(self._slices, FormatError):
            raise self._slices
        return self._slices

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
    """With an entry that is older than its newest record, retention would remove the record too early. A later time is
    valid: the entry of a divided record group keeps the newest time of the whole."""
    entry_ms = entry.value.max_timestamp_ms
    if entry.value.encoding != "kafka-v2" or entry_ms < 0:
        return
    newest_ms = int(walk(data, source).max_timestamp.max())
    if newest_ms > entry_ms:
        raise InvalidField(source, f"its newest timestamp is {newest_ms}, its index entry says {entry_ms}")


def _check_instant(header: BlobHeader, source: str) -> None:
    """A blob's name begins with the instant in its header."""
    object_id = source.rpartition("/")[2]
    if is_object_id(object_id) and header.created_at_ms != created_at_ms_of(object_id):
        raise InvalidField(source, f"its header says created at {header.created_at_ms}, its name differs")


def check_fields(text: Buffer, value: BlobHeader | msgspec.Struct, source: str) -> None:
    """Raises if a field is unknown and a known one is missing: a damaged name."""
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
