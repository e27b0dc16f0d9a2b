"""Frames: one committed append in a file of the shared tail cache.

    4s magic "LLT1" · u32 CRC-32C of everything behind it · u32 body length · u16 topic length · i32 partition ·
    i64 start offset · i64 end offset · i32 epoch · i64 incarnation (-1: not told) · i64 blob's instant (-1: not told) ·
    f64 commit instant, milliseconds of the machine's monotonic clock · u8 encoding · topic · body as uploaded

Why it exists: another process reads the file while it is written. What must stay true: a frame counts only whole and
with its checksum; what is cut off at the end is not there yet (or never will be: its writer is gone).
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
_NOT_TOLD: Final = -1


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
        _NOT_TOLD if frame.incarnation is None else frame.incarnation,
        _NOT_TOLD if frame.created_at_ms is None else frame.created_at_ms,
        frame.committed_at_ms,
        _ENCODINGS.index(frame.encoding),
    )
    checksum = crc32c_of((fields, topic, *frame.body))
    return [_PREFIX.pack(MAGIC, checksum) + fields + topic, *frame.body]


class Parsed(NamedTuple):
    frames: list[Frame]
    byte_length: int
    """Of the whole frames."""
    missing_bytes: int
    """At least so many more make another one; 0 when the data ends with a frame."""


def parse_frames(data: bytes, source: str) -> Parsed:
    """Raises `FormatError` when the first frame is not sound; behind others, that is for the next call to find."""
    frames: list[Frame] = []
    view, position = memoryview(data), 0
    while position < len(view):
        if len(view) - position < HEADER_BYTES:
            return Parsed(frames, position, HEADER_BYTES - (len(view) - position))
        magic, checksum = _PREFIX.unpack_from(view, position)
        fields = _FIELDS.unpack_from(view, position + _PREFIX.size)
        body_length, topic_length = fields[0], fields[1]
        end = position + HEADER_BYTES + topic_length + body_length
        if magic == MAGIC and end > len(view):
            return Parsed(frames, position, end - len(view))
        try:
            frames.append(_frame(view, position, end, magic, checksum, fields, source))
        except (ChecksumMismatch, InvalidField):
            if not frames:
                raise
            break
        position = end
    return Parsed(frames, position, 0)


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
        None if incarnation == _NOT_TOLD else incarnation,
        None if created_at_ms == _NOT_TOLD else created_at_ms,
        committed_at_ms,
    )
