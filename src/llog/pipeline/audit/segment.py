"""A segment under audit: data, index and footer, held against its index entry and its place in the catalogue."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Self

import msgspec

from llog.errors import InvalidField, UnsupportedFormat
from llog.formats.segment import SegmentExtension, SegmentFooter
from llog.formats.values import SegmentRecord
from llog.log.ids import created_at_ms_of, is_object_id
from llog.log.index import Entry
from llog.log.inspect.check_objects import check_segment as check_bytes
from llog.log.inspect.check_objects import read_footer
from llog.log.keys import Log
from llog.pipeline.audit.blob import check_fields
from llog.pipeline.audit.object import OneObject

_EXTENSION_VERSION: Final = 1
_EXTENSION_PREFIX_BYTES: Final = 8


class Catalogued(msgspec.Struct, frozen=True, kw_only=True):
    """What the catalogue tells of a segment beside its entry, in few bytes: sources may be thousands."""

    epochs: dict[int, int] = {}
    sources: str = ""
    """Their digest; "": not told."""

    @classmethod
    def of(cls, record: SegmentRecord) -> Self:
        return cls(epochs=record.epochs, sources=_digest(record.sources))


def _digest(sources: Iterable[str]) -> str:
    names = sorted(set(sources))
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else ""


async def check_segment(subject: OneObject, log: Log, entry: Entry, catalogued: Catalogued | None) -> None:
    """Raises what is wrong."""
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
        reason = f"its newest record is of {newest_ms}, its index entry says {entry.value.max_timestamp_ms}"
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
        reason = f"says that it was made at {extension.created_at_ms}, neither its name nor its index entry does"
        raise InvalidField(source, reason)


def _check_catalogued(extension: SegmentExtension, catalogued: Catalogued, source: str) -> None:
    """Where both tell it, footer and catalogue tell the same."""
    if catalogued.epochs and extension.epochs and catalogued.epochs != extension.epochs:
        raise InvalidField(source, f"tells of epochs {extension.epochs}, the catalogue of {catalogued.epochs}")
    if catalogued.sources and extension.sources and catalogued.sources != _digest(extension.sources):
        raise InvalidField(source, "tells of other sources than the catalogue")
