"""From index entries to the records that readers must get: finds, checks and decodes bytes (I8).

It trusts nothing. A slice must lie in a body of its log, as the blob's header describes it, with the right checksum; a
segment's footer must describe the log, the range and the data; the checksum and the offsets of every batch must fit.
"""

from __future__ import annotations

from collections.abc import Mapping

from llog.errors import LlogError
from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.decode import decode_batches
from llog.formats.records.record_batch import BatchRule, patch_offsets, verify_crcs, walk
from llog.formats.segment import parse_footer, verify_data
from llog.formats.shared_blob import header_length, parse_header, slices_of, verify_body
from llog.formats.values import IndexEntry
from llog.log.keys import Log
from llog.testing.history.image import Covering, DumpedObject


class UnreadableEntry(Exception):
    """Why an entry's records cannot be read."""


Tokens = dict[int, str]


class EntryContents:
    """Decodes entries, each once: objects never change, they only vanish."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int | None, int], tuple[bytes, Tokens]] = {}

    def of(self, log: Log, entry: Covering, objects: Mapping[str, DumpedObject]) -> Tokens:
        """Offset → token. Raises `UnreadableEntry`."""
        name = (entry.value.data_key, entry.value.byte_offset, entry.end_offset)
        stored = objects.get(entry.value.data_key)
        if stored is None:
            raise UnreadableEntry(f"{entry.value.data_key} does not exist")
        known = self._known.get(name)
        if known is not None and known[0] is stored.content:
            return known[1]
        try:
            tokens = _decode(log, entry, stored.content)
        except LlogError as error:
            raise UnreadableEntry(f"{type(error).__name__}: {error}") from error
        self._known[name] = (stored.content, tokens)
        return tokens


def _decode(log: Log, entry: Covering, content: bytes) -> Tokens:
    tokens = _segment(log, entry, content) if entry.value.type == "COMPACTED" else _slice(log, entry, content)
    offsets = list(tokens)
    if offsets != sorted(offsets) or (offsets and not entry.start_offset <= offsets[0] <= offsets[-1]):
        raise UnreadableEntry(f"records of other offsets than {entry.start_offset} … {entry.end_offset}: {offsets}")
    expected = entry.value.msg_count if entry.value.record_count is None else entry.value.record_count
    if len(tokens) != expected or (offsets and offsets[-1] > entry.end_offset):
        raise UnreadableEntry(f"{len(tokens)} records, its entry says {expected}")
    return tokens


def _slice(log: Log, entry: Covering, content: bytes) -> Tokens:
    value, source = entry.value, entry.value.data_key
    header = parse_header(content, source, object_length=len(content))
    for part in slices_of(header, header_length(content, source)):
        if (part.topic, part.partition) == tuple(log):
            break
    else:
        raise UnreadableEntry(f"the blob {source} holds nothing of {log}")
    begin, length = value.byte_offset or 0, value.byte_length or 0
    # An append may take only some of a body's batches: the others were repeats, or refused.
    if not part.byte_offset <= begin < begin + length <= part.byte_offset + part.byte_length:
        raise UnreadableEntry(f"the blob {source} describes {part}, which is not what the entry says")
    verify_body(memoryview(content)[part.byte_offset : part.byte_offset + part.byte_length], part, source)
    body = memoryview(content)[begin : begin + length]
    if value.encoding == "bytes-batch-v1":
        payloads = decode_bytes_batch(body, source).to_list()
        if len(payloads) != value.msg_count:
            raise UnreadableEntry(f"{len(payloads)} records, the entry says {value.msg_count}")
        return {entry.start_offset + i: payload.decode() for i, payload in enumerate(payloads)}
    writable = bytearray(body)
    batches = walk(writable, source)
    verify_crcs(writable, batches, source)
    if batches.offset_count != value.msg_count:
        raise UnreadableEntry(f"{batches.offset_count} offsets, the entry says {value.msg_count}")
    columns = decode_batches(writable, patch_offsets(writable, batches, entry.start_offset, value.epoch), source)
    return _tokens(columns.offsets.tolist(), columns.values.tolist())


def _segment(log: Log, entry: Covering, content: bytes) -> Tokens:
    value, source = entry.value, entry.value.data_key
    footer = parse_footer(content, len(content), source)
    about = footer.extension
    if about is None or (about.topic, about.partition, about.incarnation) != (*log, value.incarnation):
        raise UnreadableEntry(f"the segment {source} is of another log or incarnation")
    if (about.start_offset, about.end_offset, len(content)) != (entry.start_offset, entry.end_offset, _size(value)):
        raise UnreadableEntry(
            f"the segment {source} holds {about.start_offset} … {about.end_offset} in {len(content)} B"
        )
    data = memoryview(content)[: footer.data_length]
    verify_data([data], footer, source)
    if not footer.data_length:
        return {}
    batches = walk(data, source, rule=BatchRule.COMPACTED)
    verify_crcs(data, batches, source)
    columns = decode_batches(data, batches, source, rule=BatchRule.COMPACTED)
    return _tokens(columns.offsets.tolist(), columns.values.tolist())


def _size(value: IndexEntry) -> int:
    return (value.byte_offset or 0) + (value.byte_length or 0)


def _tokens(offsets: list[int], values: list[bytes | None]) -> Tokens:
    return {offset: (value or b"").decode() for offset, value in zip(offsets, values, strict=True)}
