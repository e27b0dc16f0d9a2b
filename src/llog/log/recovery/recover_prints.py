"""Which batches of a blob a log has already, told by their bytes alone.

Why it exists: a merged segment names the segments it was made of, and those named the blobs. When the ones in between
are gone, a blob that other logs still need looks unknown to this one, and its records would come back a second time.
But rewriting changes no batch beyond its offsets, which its checksum does not cover: so the same batch is known again.

What must stay true: a batch counts as often as the segments hold it. What key compaction rewrote has other bytes, and
what it dropped has none: of blobs that are older than such a segment nobody can tell, and they are left, and told of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import BatchRule, TimestampType, walk
from llog.formats.records.record_columns import columns_from_rows
from llog.limits import LOG_CHECK_READ_BYTES
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of, is_object_id
from llog.log.recovery.recover_find import FoundSegment
from llog.stores.objects.port import ObjectStore

DOUBTFUL = "key compaction took what stood between it and a segment: nobody can tell whether the log has it"

Print = tuple[int, int, int]
"""Of a batch: checksum, bytes, offsets."""


class KnownBatches:
    """Of one log."""

    def __init__(self) -> None:
        self._counts: Counter[Print] = Counter()
        self.doubtful_before_ms = 0
        """Blobs older than this may be in a segment that tells nothing of it."""

    async def add(self, store: ObjectStore, segment: FoundSegment) -> None:
        if not segment.is_dense():
            self.doubtful_before_ms = max(self.doubtful_before_ms, segment.extension.created_at_ms)
        for first, byte_length in reads_of(segment, 0):
            data = await store.get_range(segment.name, first, byte_length)
            self._counts.update(_prints(data, segment.uri, BatchRule.COMPACTED))

    def is_empty(self) -> bool:
        return not self._counts and not self.doubtful_before_ms

    def take(self, body: Buffer, encoding: str, created_at_ms: int, source: str) -> bool:
        """Are these bytes, of one piece, there already?"""
        if encoding == "kafka-v2":
            prints = _prints(body, source, BatchRule.PRODUCED)
        else:
            # As compaction encodes it.
            columns = columns_from_rows(decode_bytes_batch(body, source).to_list(), timestamps_ms=created_at_ms)
            encoded = encode_columns(columns, timestamp_type=TimestampType.LOG_APPEND_TIME)
            prints = _prints(encoded, source, BatchRule.PRODUCED)
        wanted = Counter(prints)
        if not wanted <= self._counts:
            return False
        self._counts -= wanted
        return True


def reads_of(segment: FoundSegment, first: int) -> Iterable[tuple[int, int]]:
    """Byte ranges of whole batches that fit into memory, from batch `first` on."""
    entries, stop = segment.footer.entries, len(segment.footer.entries)
    ends = entries["byte_position"].astype("int64") + entries["batch_length"]
    while first < stop:
        begin, last = int(entries["byte_position"][first]), first + 1
        while last < stop and int(ends[last]) - begin <= LOG_CHECK_READ_BYTES:
            last += 1
        yield begin, int(ends[last - 1]) - begin
        first = last


def is_opaque(context: LogContext, segment: FoundSegment, there: Sequence[FoundSegment], since_ms: int) -> bool:
    """Was it made of a segment that is gone, whose blobs may be there still?"""
    uris = {one.uri for one in there}
    return any(_is_segment(context, uri, since_ms) for uri in segment.extension.sources if uri not in uris)


def _is_segment(context: LogContext, uri: str, since_ms: int) -> bool:
    object_id = uri.rpartition("/")[2]
    if not is_object_id(object_id) or created_at_ms_of(object_id) < since_ms:
        return False  # so are its blobs
    return f"/{context.keys.blobs()}" not in uri


def _prints(data: Buffer, source: str, rule: BatchRule) -> list[Print]:
    batches = walk(data, source, rule=rule)
    counts = batches.last_offset_delta.tolist()
    return list(zip(batches.crc.tolist(), batches.length.tolist(), counts, strict=True))
