"""The backup of a cluster's metadata: lines of JSON in zstd frames with checksums and an end line.

    per frame: 0x184D2A5B · u32 8 · u32 length · u32 CRC-32C of the frame       (little-endian; zstd skips it)
               a zstd frame that holds whole lines

`zstd -dc FILE` prints a backup for a person or another program, a reader needs memory for one frame, and every flipped
bit or missing end is detected. A backup is one file, or several parts to be concatenated.

    header                      time, root and origin of the copy
    begin, record …, commit     a group of records that belong together (the cluster's keys, one log, the topics)
    begin, record …, discard    a group that changed while it was copied; ignore it, a new copy follows
    end                         number of lines and records, and the checksum of all lines before it

A backup without its `end` line is torn and refused. Only records of committed groups count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from llog.errors import BadMagic, ChecksumMismatch, InvalidField, TruncatedInput, UnsupportedFormat
from llog.formats.buffers import Buffer, crc32c, json_decoder, json_value
from llog.formats.records.compression import compress, decompress
from llog.formats.records.record_batch import Codec
from llog.formats.values import Count, Value
from llog.limits import MIB

# Frames hold lines of about this size before compression …
BACKUP_FRAME_BYTES: Final = MIB
# … and at least one line, which may be a value with every character escaped.
BACKUP_FRAME_BYTES_MAX: Final = 16 * MIB

VERSION: Final = 1
FRAME_MAGIC: Final = 0x184D2A5B
_PREFIX: Final = struct.Struct("<IIII")
_PREFIX_PAYLOAD_BYTES: Final = 8

GroupKind = Literal["cluster", "log", "topics"]


class _BackupLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", omit_defaults=True):
    pass


class Header(_BackupLine, frozen=True, kw_only=True, tag="header"):
    v: Count = VERSION
    backup_id: str
    root: str
    started_at_ms: Count
    cluster_id: str = ""
    store: str = ""
    """The kind of the original store (`lmdb`, `oxia`, …), for information."""


class Begin(_BackupLine, frozen=True, kw_only=True, tag="begin"):
    kind: GroupKind
    topic: str = ""
    partition: Count = 0


class BackedUp(_BackupLine, frozen=True, kw_only=True, tag="record"):
    """One key and its value, which is stored as text if it is text, so that people can read it."""

    path: str
    version: int
    text: str | None = None
    data: bytes | None = None

    @classmethod
    def of(cls, path: str, version: int, value: bytes) -> BackedUp:
        try:
            return cls(path=path, version=version, text=value.decode())
        except UnicodeDecodeError:
            return cls(path=path, version=version, data=value)

    @property
    def value(self) -> bytes:
        return self.text.encode() if self.text is not None else self.data or b""


class Commit(_BackupLine, frozen=True, kw_only=True, tag="commit"):
    records: Count


class Discard(_BackupLine, frozen=True, kw_only=True, tag="discard"):
    reason: str


class End(_BackupLine, frozen=True, kw_only=True, tag="end"):
    lines: Count
    """Number of lines before this one."""
    crc32c: Count
    """CRC-32C of all bytes before this line."""
    records: Count
    logs: Count
    highest_version: int
    finished_at_ms: Count


Line = Header | Begin | BackedUp | Commit | Discard | End


class BackupPart(msgspec.Struct, frozen=True, kw_only=True):
    byte_length: Count
    crc32c: Count


class BackupManifest(Value, frozen=True, kw_only=True):
    """The last object of a backup in parts; without it the backup does not exist."""

    backup_id: str
    root: str
    cluster_id: str = ""
    started_at_ms: Count
    finished_at_ms: Count
    records: Count
    logs: Count
    highest_version: int
    parts: tuple[BackupPart, ...]


class VacuumHold(Value, frozen=True, kw_only=True):
    """While this record exists, vacuum deletes nothing. A restore writes it first and records its progress in it."""

    reason: str
    held_at_ms: Count
    """Also the time of the restore: older blobs cannot be committed, older segments not be published."""
    backup_id: str = ""
    recover_since_ms: Count = 0
    """Blobs with ids from this time on may hold records that are not in the backup."""
    versions_raised: bool = False
    """All versions assigned since are higher than any version before the loss."""
    state: Literal["HELD", "RESTORING", "RESTORED"] = "HELD"


_LINE: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line, strict=True)
_MANIFEST: Final = json_decoder(BackupManifest)
_HOLD: Final = json_decoder(VacuumHold)
_ENCODER: Final = msgspec.json.Encoder()


def decode_manifest(data: Buffer, source: str) -> BackupManifest:
    manifest = json_value(_MANIFEST, data, source, "backup manifest")
    if manifest.v > manifest.known_version:
        raise UnsupportedFormat(source, f"a backup manifest of version {manifest.v}")
    return manifest


def decode_hold(data: Buffer, source: str) -> VacuumHold:
    return json_value(_HOLD, data, source, "vacuum hold")


class BackupEncoder:
    """Collects lines into frames; holds at most one frame in memory."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._crc = self._lines = 0

    def add(self, line: Line) -> bytes:
        """A complete frame, or no bytes."""
        if isinstance(line, End):
            line = msgspec.structs.replace(line, lines=self._lines, crc32c=self._crc)
        data = _ENCODER.encode(line) + b"\n"
        self._raw += data
        self._crc = crc32c(data, self._crc)
        self._lines += 1
        return self.flush() if len(self._raw) >= BACKUP_FRAME_BYTES or isinstance(line, End) else b""

    def flush(self) -> bytes:
        if not self._raw:
            return b""
        frame = bytes(compress(Codec.ZSTD, bytes(self._raw)))
        self._raw.clear()
        return _PREFIX.pack(FRAME_MAGIC, _PREFIX_PAYLOAD_BYTES, len(frame), crc32c(frame)) + frame


class BackupDecoder:
    """Takes bytes in pieces of any size and returns checked lines. `close` raises if the backup is incomplete."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._waiting = bytearray()
        self._crc = self._lines = 0
        self._records = self._in_group = 0
        self._open: Begin | None = None
        self._end: End | None = None

    def feed(self, data: Buffer) -> Iterator[Line]:
        self._waiting += data
        while (frame := self._next_frame()) is not None:
            yield from self._lines_of(frame)

    def close(self) -> End:
        if self._end is None or self._waiting:
            raise TruncatedInput(
                self._source, "the backup is incomplete: its end line is missing; it cannot be restored"
            )
        return self._end

    def _next_frame(self) -> bytes | None:
        if len(self._waiting) < _PREFIX.size:
            return None
        magic, payload, length, stored = _PREFIX.unpack_from(self._waiting)
        if magic != FRAME_MAGIC or payload != _PREFIX_PAYLOAD_BYTES:
            raise BadMagic(self._source, "not a backup of llog's metadata, or damaged")
        if length > BACKUP_FRAME_BYTES_MAX:
            raise InvalidField(self._source, f"a frame of {length} bytes; at most {BACKUP_FRAME_BYTES_MAX}")
        end = _PREFIX.size + length
        if len(self._waiting) < end:
            return None
        frame = bytes(self._waiting[_PREFIX.size : end])
        del self._waiting[:end]
        computed = crc32c(frame)
        if computed != stored:
            raise ChecksumMismatch(self._source, "backup frame", stored, computed)
        return frame

    def _lines_of(self, frame: bytes) -> Iterator[Line]:
        raw = decompress(Codec.ZSTD, frame, self._source, bytes_max=BACKUP_FRAME_BYTES_MAX)
        for text in bytes(raw).splitlines(keepends=True):
            line = json_value(_LINE, text, self._source, "a line")
            self._check(line)
            self._crc = crc32c(text, self._crc)
            self._lines += 1
            yield line

    def _check(self, line: Line) -> None:
        """Check that this line is allowed at this place."""
        place = f"line {self._lines + 1}"
        if self._end is not None or isinstance(line, Header) != (self._lines == 0):
            raise InvalidField(self._source, f"{place}: {type(line).__name__} does not belong here")
        if isinstance(line, Header):
            if line.v > VERSION:
                raise UnsupportedFormat(self._source, f"a backup of version {line.v}; this release reads {VERSION}")
        elif isinstance(line, End):
            self._check_end(line)
            self._end = line
        elif isinstance(line, Begin):
            if self._open is not None:
                raise InvalidField(self._source, f"{place}: a group begins inside another")
            self._open, self._in_group = line, 0
        elif self._open is None:
            raise InvalidField(self._source, f"{place}: {type(line).__name__} outside of a group")
        elif isinstance(line, BackedUp):
            self._in_group += 1
        else:
            if isinstance(line, Commit):
                if line.records != self._in_group:
                    raise InvalidField(self._source, f"{place}: {self._in_group} records, {line.records} announced")
                self._records += line.records
            self._open = None

    def _check_end(self, end: End) -> None:
        if self._open is not None or end.lines != self._lines or end.records != self._records:
            stated = f"{end.records} records in {end.lines} lines"
            raise InvalidField(
                self._source, f"the end line states {stated}, but there are {self._records} in {self._lines}"
            )
        if end.crc32c != self._crc:
            raise ChecksumMismatch(self._source, "the backup's lines", end.crc32c, self._crc)
