"""The task of an audit: is each object what the entries that name it say?

It reads an object once, for all entries of all logs that name it, in chunks if it is too large to hold. It compares
existence and length; a blob's header, slices and checksums; the checksum of each batch; a segment's data, index and
footer; counts of records and offsets, levels and instants. With `fast` it only asks for the length.

A wrong object is an answer, not an error; an object that could not be read is reported as neither wrong nor right. The
task reads no metadata: the driver decides whether a suspicion still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from llog.concurrency import gather_bounded
from llog.errors import (
    ChecksumMismatch,
    FormatError,
    InvalidArgument,
    LlogError,
    ObjectNotFound,
    ObjectRangeInvalid,
    UnsupportedFormat,
)
from llog.formats.values import IndexEntry
from llog.limits import MIB
from llog.log.index import Entry
from llog.log.keys import Keys, Log
from llog.pipeline.audit.objects import BlobCheck, Catalogued, OneObject, check_segment
from llog.pipeline.runtime.tasks import Task, TaskTools

AUDIT_OBJECTS_IN_FLIGHT_MAX: Final = 4
# Larger objects are read in ranges: a segment in several, a blob slice by slice.
AUDIT_OBJECT_HELD_BYTES_MAX: Final = 32 * MIB
# Suspicions in one task's result; the others are only counted.
AUDIT_TASK_SUSPECTS_MAX: Final = 1_000


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one entry claims about the bytes it names."""

    topic: str
    partition: int
    end_offset: int
    entry: IndexEntry
    """Without its producers, which are not compared."""
    catalogued: Catalogued | None = None

    @property
    def log(self) -> Log:
        return Log(self.topic, self.partition)

    @property
    def start_offset(self) -> int:
        return self.end_offset - self.entry.msg_count + 1


class ClaimedObject(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    claims: tuple[Claim, ...]


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    objects: tuple[ClaimedObject, ...]
    fast: bool = False


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that its object contradicts, by their numbers in the item."""

    object: int
    claim: int
    kind: str
    reason: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    objects: int
    bytes_read: int
    requests: int
    suspects: tuple[Suspect, ...] = ()
    suspects_left_out: int = 0
    unread: tuple[tuple[str, str], ...] = ()
    """URI and error of each object that could not be read."""


COMPARE_OBJECTS: Final = Task("llog.pipeline.audit.task:compare_objects", Objects, Compared)


async def compare_objects(tools: TaskTools, item: Objects) -> Compared:
    keys = Keys(item.root)
    done = [_Comparison(keys, number, claimed) for number, claimed in enumerate(item.objects)]
    await gather_bounded(done, lambda one: one.compare(tools, fast=item.fast), limit=AUDIT_OBJECTS_IN_FLIGHT_MAX)
    suspects = [suspect for one in done for suspect in one.suspects]
    return Compared(
        objects=len(done),
        bytes_read=sum(one.bytes_read for one in done),
        requests=sum(one.requests for one in done),
        suspects=tuple(suspects[:AUDIT_TASK_SUSPECTS_MAX]),
        suspects_left_out=max(0, len(suspects) - AUDIT_TASK_SUSPECTS_MAX),
        unread=tuple((one.claimed.uri, one.unread) for one in done if one.unread),
    )


class _Comparison:
    """One object compared with its claims."""

    def __init__(self, keys: Keys, number: int, claimed: ClaimedObject) -> None:
        self._keys, self._number, self.claimed = keys, number, claimed
        self.suspects: list[Suspect] = []
        self.unread = ""
        self.bytes_read = self.requests = 0

    async def compare(self, tools: TaskTools, *, fast: bool) -> None:
        uri, claims = self.claimed.uri, self.claimed.claims
        try:
            store, name = await tools.find_object(uri)
            parsed = self._keys.parse_object(name)
            subject = OneObject(store, name, uri)
            try:
                if fast:
                    await self._compare_length(subject)
                else:
                    if bytes_claimed(claims) <= AUDIT_OBJECT_HELD_BYTES_MAX:
                        await subject.hold()
                    is_blob = parsed is not None and parsed.kind == "blob"
                    await self._compare_bytes(subject, BlobCheck(subject) if is_blob else None)
            finally:
                self.bytes_read, self.requests = subject.bytes_read, subject.requests
        except (ObjectNotFound, InvalidArgument) as error:
            kind = "missing object" if isinstance(error, ObjectNotFound) else "bad address"
            for number in range(len(claims)):
                self._suspect(number, kind, str(error))
        except LlogError as error:
            self.unread = f"{type(error).__name__}: {error}"

    async def _compare_length(self, subject: OneObject) -> None:
        length = (await subject.head(subject.name)).byte_length
        for number, claim in enumerate(self.claimed.claims):
            entry = claim.entry
            if entry.byte_length is None:
                continue
            end = (entry.byte_offset or 0) + entry.byte_length
            whole = entry.type == "COMPACTED" and entry.encoding == "kafka-v2"
            if end > length or (whole and end != length):
                reason = f"has {length} bytes, where its index entry ends at byte {end}"
                self._suspect(number, "short object" if end > length else "malformed object", reason)

    async def _compare_bytes(self, subject: OneObject, blob: BlobCheck | None) -> None:
        for number, claim in enumerate(self.claimed.claims):
            entry = Entry(claim.end_offset, claim.entry, -1)
            try:
                if entry.value.type == "COMPACTED" and entry.value.encoding == "kafka-v2":
                    await check_segment(subject, claim.log, entry, claim.catalogued)
                else:
                    await (blob or BlobCheck(subject, has_header=False)).check(claim.log, entry)
            except ObjectRangeInvalid as error:
                self._suspect(number, "short object", str(error))
            except FormatError as error:
                self._suspect(number, _kind_of(error), str(error))
        if blob is not None and subject.held and not self.suspects:
            try:
                await blob.check_unnamed()
            except FormatError as error:
                self._suspect(0, _kind_of(error), str(error))

    def _suspect(self, claim: int, kind: str, reason: str) -> None:
        self.suspects.append(Suspect(object=self._number, claim=claim, kind=kind, reason=reason))


def bytes_claimed(claims: Sequence[Claim]) -> int:
    """The shortest length that the object may have."""
    return max(((claim.entry.byte_offset or 0) + (claim.entry.byte_length or 0) for claim in claims), default=0)


def _kind_of(error: FormatError) -> str:
    if isinstance(error, ChecksumMismatch):
        return "checksum"
    return "unsupported" if isinstance(error, UnsupportedFormat) else "malformed object"
