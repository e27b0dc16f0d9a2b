"""The final store as the checker sees it: metadata records and objects, decoded by their formats alone.

A checker that asked the log's own code what the store means would share its mistakes. This module uses keys and formats
only, and decides anew which entries count and which offsets they cover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from llog.formats.values import (
    CompactionRecord,
    ControlRecord,
    IndexEntry,
    PartitionDelete,
    ProducerPage,
    ProducerSnapshot,
    SegmentRecord,
    TopicRecord,
    Value,
    decode_value,
)
from llog.log.keys import Keys, Log
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.port import ObjectMeta, ObjectStore

READS_IN_FLIGHT_MAX: Final = 16


class DumpedObject(NamedTuple):
    content: bytes
    modified_at_ms: int = 0


class Dump(NamedTuple):
    """All metadata and objects, while no client is at work."""

    records: Mapping[str, bytes]
    """Metadata values by path."""
    objects: Mapping[str, DumpedObject]
    """Objects by URI."""
    now_ms: int = 0


class Covering(NamedTuple):
    """An index entry at its place."""

    key: str
    end_offset: int
    value: IndexEntry

    @property
    def start_offset(self) -> int:
        return self.end_offset - self.value.msg_count + 1


@dataclass(slots=True)
class LogImage:
    log: Log
    topic: TopicRecord | None = None
    control: ControlRecord | None = None
    compaction: CompactionRecord | None = None
    head: ProducerSnapshot | None = None
    pages: dict[tuple[int, int], ProducerPage] = field(default_factory=dict)
    entries: list[Covering] = field(default_factory=list)
    """All of them, in order of their end."""
    segments: dict[str, SegmentRecord] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    """Of every value under the log, by key."""

    @property
    def living(self) -> bool:
        """Clients can append to it or read it."""
        control, topic = self.control, self.topic
        return (
            control is not None
            and control.log_state != "DELETED"
            and (topic is None or (topic.state == "LIVE" and topic.incarnation == control.incarnation))
        )

    @property
    def cursor(self) -> int:
        """0 while there is no compaction record of this incarnation."""
        record, control = self.compaction, self.control
        is_current = record is not None and control is not None and record.incarnation == control.incarnation
        return record.offset if is_current and record is not None else 0

    def counting(self) -> list[Covering]:
        """Entries of this incarnation that readers use, in order: not compacted away, not wholly below the start."""
        assert self.control is not None
        start = self.control.log_start_offset
        return [
            entry
            for entry in self.entries
            if entry.value.incarnation == self.control.incarnation
            and entry.end_offset >= start
            and not (entry.value.type == "WAL" and entry.end_offset < self.cursor)
        ]

    def names(self) -> set[str]:
        """URIs that this incarnation needs: of valid entries, of the pending append, of the run in flight."""
        if self.control is None or self.control.log_state == "DELETED":
            return set()
        found = {entry.value.data_key for entry in self.counting()}
        if self.control.pending is not None:
            found.add(self.control.pending.data_key)
        if self.compaction is not None and self.compaction.incarnation == self.control.incarnation:
            run = self.compaction.in_flight
            found |= {run.data_key} if run is not None else set()
        return found


class Image(NamedTuple):
    logs: dict[Log, LogImage]
    topics: dict[str, TopicRecord]
    strangers: list[str]
    """Keys below the root that have no known form."""


_IN_LOG: Final[dict[str, type[Value]]] = {
    "control": ControlRecord,
    "compaction": CompactionRecord,
    "producers": ProducerSnapshot,
    "producer_page": ProducerPage,
    "index_entry": IndexEntry,
    "segment": SegmentRecord,
    "partition_delete": PartitionDelete,
}


def image_of(records: Mapping[str, bytes], keys: Keys) -> Image:
    found = Image({}, {}, [])
    for path in sorted(records):
        parsed = keys.parse(path)
        if parsed is None:
            found.strangers.append(path)
        elif parsed.kind == "topic":
            found.topics[parsed.topic] = decode_value(TopicRecord, records[path], path)
        elif parsed.log is not None and parsed.kind in _IN_LOG:
            image = found.logs.setdefault(parsed.log, LogImage(parsed.log))
            value = decode_value(_IN_LOG[parsed.kind], records[path], path)
            image.incarnations[path] = value.incarnation  # type: ignore[attr-defined]
            _place(image, path, parsed.offset, parsed.page, value)
    for image in found.logs.values():
        image.topic = found.topics.get(image.log.topic)
    return found


def _place(image: LogImage, path: str, offset: int, page: int, value: Value) -> None:
    match value:
        case ControlRecord():
            image.control = value
        case CompactionRecord():
            image.compaction = value
        case ProducerSnapshot():
            image.head = value
        case ProducerPage():
            image.pages[offset, page] = value
        case IndexEntry():
            image.entries.append(Covering(path, offset, value))
        case SegmentRecord():
            image.segments[path] = value


async def dump_stores(
    metadata: MetadataStore, objects: ObjectStore, keys: Keys, *, now_ms: int, before: Dump | None = None
) -> Dump:
    """Read everything below the root. No client may be at work. Objects of an earlier dump are not read again."""
    records = {record.key.path: record.value async for record in metadata.scan_tree(keys.root)}
    known = {} if before is None else before.objects
    slots = asyncio.Semaphore(READS_IN_FLIGHT_MAX)

    async def stored(meta: ObjectMeta) -> DumpedObject:
        async with slots:
            return known.get(objects.uri(meta.name)) or DumpedObject(
                bytes(await objects.get(meta.name)), meta.last_modified_ms
            )

    metas = [meta async for meta in objects.list(f"{keys.root}/")]
    found = await asyncio.gather(*map(stored, metas))
    return Dump(records, {objects.uri(m.name): one for m, one in zip(metas, found, strict=True)}, now_ms)
