"""Frames: one committed append in a file of the shared tail cache.

    4s magic "LLT1" · u32 CRC-32C of the rest · u32 body length · u16 topic length · i32 partition ·
    i64 start offset · i64 end offset · i32 epoch · i64 incarnation (-1: unknown) · i64 creation time of the blob
    (-1: unknown) · f64 commit time, milliseconds of the machine's monotonic clock · u8 encoding · topic · body

A process reads the file while another writes it. A frame counts only if it is complete and its checksum matches; an
incomplete frame at the end is not written yet (or never will be, if its writer died).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import ChecksumMismatch, InvalidField
from llog.formats.buffers import Buffer, crc32c, crc32c_of, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.log.keys import Log

MAGIC: Final = b"LLT1"
_PREFIX: Final = struct.Struct(">4sI")
_FIELDS: Final = struct.Struct(">IHiqqiqqdB")
HEADER_BYTES: Final = _PREFIX.size + _FIELDS.size
_ENCODINGS: Final = ("kafka-v2", BYTES_BATCH)
_UNKNOWN: Final = -1


class Frame(NamedTuple):
    log: Log
    start_offset: int
    end_offset: int
    encoding: str
    body: Sequence[Buffer]
    epoch: int
    incarnation: int | None
    created_at_ms: int | None
    committed_at_ms: float
    payload_bytes: int = _UNKNOWN
    """Of the records' values; other processes do not learn it."""


def is_shareable(encoding: str) -> bool:
    return encoding in _ENCODINGS


def encode_frame(frame: Frame) -> list[Buffer]:
    topic = frame.log.topic.encode()
    fields = _FIELDS.pack(
        total_length(frame.body),
        len(topic),
        frame.log.partition,
        frame.start_offset,
        frame.end_offset,
        frame.epoch,
        _UNKNOWN if frame.incarnation is None else frame.incarnation,
        _UNKNOWN if frame.created_at_ms is None else frame.created_at_ms,
        frame.committed_at_ms,
        _ENCODINGS.index(frame.encoding),
    )
    checksum = crc32c_of((fields, topic, *frame.body))
    return [_PREFIX.pack(MAGIC, checksum) + fields + topic, *frame.body]


class ParsedFrames(NamedTuple):
    frames: list[Frame]
    byte_length: int
    """Length of the complete frames."""
    missing_bytes: int
    """At least so many more complete the next frame; 0 if the data ends with a frame."""


def parse_frames(data: bytes, source: str) -> ParsedFrames:
    """Raises `FormatError` if the first frame is invalid. A later one ends the parse; the next call raises."""
    frames: list[Frame] = []
    view, position = memoryview(data), 0
    while position < len(view):
        if len(view) - position < HEADER_BYTES:
            return ParsedFrames(frames, position, HEADER_BYTES - (len(view) - position))
        magic, checksum = _PREFIX.unpack_from(view, position)
        fields = _FIELDS.unpack_from(view, position + _PREFIX.size)
        body_length, topic_length = fields[0], fields[1]
        end = position + HEADER_BYTES + topic_length + body_length
        if magic == MAGIC and end > len(view):
            return ParsedFrames(frames, position, end - len(view))
        try:
            frames.append(_frame(view, position, end, magic, checksum, fields, source))
        except (ChecksumMismatch, InvalidField):
            if not frames:
                raise
            break
        position = end
    return ParsedFrames(frames, position, 0)


def _frame(
    view: memoryview, position: int, end: int, magic: bytes, checksum: int, fields: tuple[int, ...], source: str
) -> Frame:
    if magic != MAGIC:
        raise InvalidField(source, f"no frame at byte {position}")
    computed = crc32c(view[position + _PREFIX.size : end])
    if computed != checksum:
        raise ChecksumMismatch(source, f"frame at byte {position}", checksum, computed)
    _, topic_length, partition, start, last, epoch, incarnation, created_at_ms, committed_at_ms, encoding = fields
    topic_at = position + HEADER_BYTES
    topic = bytes(view[topic_at : topic_at + topic_length])
    if encoding >= len(_ENCODINGS) or last < start or not topic.isascii():
        raise InvalidField(source, f"frame at byte {position}: encoding {encoding}, offsets {start} … {last}")
    return Frame(
        Log(topic.decode(), partition),
        start,
        last,
        _ENCODINGS[encoding],
        [view[topic_at + topic_length : end]],
        epoch,
        None if incarnation == _UNKNOWN else incarnation,
        None if created_at_ms == _UNKNOWN else created_at_ms,
        committed_at_ms,
    )
