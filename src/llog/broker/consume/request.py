"""A consume request, its answer per partition, and the answer while it is being filled.

Limits count the bytes of records: key, value and headers. Records are returned in request order as long as the next one
fits, up to `max_bytes` in total and `partition_max_bytes` per log; the first record of the answer is returned whatever
its size, so every consumer advances. How the records are stored does not matter: a batch is divided where a limit ends
inside it. With less than `min_bytes` the answer waits up to `max_wait_ms`. An error is answered at once, for its own
partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from llog.broker.tail.cached_batch import CachedBatch
from llog.errors import FormatError, InvalidArgument, LlogError
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.cut import Cut, CutEnd, cut
from llog.formats.records.decode import decode_batches, decode_in_chunks
from llog.formats.records.record_batch import BatchColumns, BatchRule, walk
from llog.formats.records.record_columns import RecordColumns
from llog.limits import MIB, RECORDS_CHUNK_BYTES
from llog.log.keys import Log
from llog.log.read.records import RecordRun
from llog.log.read.slices import runs_of

# Partitions of one consume request, and of one for whole batches, which costs less for each.
CONSUME_PARTITIONS_MAX: Final = 10_000
CONSUME_RAW_PARTITIONS_MAX: Final = 100_000
# Bytes of records in one answer, and bytes of the batches that hold them, unless a single record is larger; Kafka
# brokers have a similar limit.
CONSUME_BYTES_MAX: Final = 64 * MIB
# Decoding stops after the run of records that passes this; the rest is for the next request.
CONSUME_DECODED_BYTES_MAX: Final = 128 * MIB
assert CONSUME_BYTES_MAX <= CONSUME_DECODED_BYTES_MAX
# Memory of a decoded record besides its bytes, until it is text again.
CONSUME_RECORD_BYTES: Final = 256

_INFLATION: Final = 16
"""Assumed ratio of decompressed to compressed bytes."""
_WALK_BYTES: Final = 32
"""What counting a record costs, in bytes of other work."""
_SPARE: Final = 8
"""Batches are looked up for an eighth more bytes than records may have, because a batch adds some to its records."""

Source = Literal["cache", "empty", "store"]


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    log: Log
    fetch_offset: int
    partition_max_bytes: int | None = None
    incarnation: int | None = None
    """Records of another incarnation of the topic are not wanted; None: of any."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    partitions: Sequence[PartitionFetch]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = CONSUME_BYTES_MAX
    raw: bool = False
    """Whole batches as stored are wanted: only `batches` is filled, limits count batch bytes, and no record is looked
    at (`raw`)."""
    quick: Callable[[Sequence[PartitionFetched]], int | None] | None = None
    """Called before decoding uncompressed batches: builds the front end's answer directly from the batches, in
    `quick_bytes` of memory, and returns the number of records; None if the batches must be decoded after all."""
    hold: Callable[[int], None] | None = None
    """Called with the memory of the answer as it grows; raises if there is no room for it."""

    def __post_init__(self) -> None:
        partitions_max = CONSUME_RAW_PARTITIONS_MAX if self.raw else CONSUME_PARTITIONS_MAX
        if len(self.partitions) > partitions_max:
            raise InvalidArgument("partitions", f"{len(self.partitions)}; at most {partitions_max} at once")
        for name in ("max_wait_ms", "min_bytes", "max_bytes"):
            if getattr(self, name) < 0:
                raise InvalidArgument(name, f"{getattr(self, name)} is negative")


@dataclass(slots=True)
class PartitionFetched:
    log: Log
    fetch_offset: int
    high_watermark: int = -1
    """The last readable offset; -1 if unknown because of an error."""
    next_fetch_offset: int = -1
    runs: list[RecordRun] = field(default_factory=list)
    batches: list[Buffer] = field(default_factory=list)
    """RecordBatches with exactly the records of the answer and their offsets, not compressed; of a raw request, the
    batches as stored, the first of which may begin below the wanted offset."""
    error: LlogError | None = None
    log_start_offset: int = -1
    """-1 if unknown: an answer to decode, from the cache, does not need it."""


def quick_bytes(batch_bytes: int) -> int:
    """Memory that `ConsumeRequest.quick` may take for an answer of so many batch bytes."""
    return 2 * batch_bytes


# -- filling an answer -------------------------------------------------------------------------------------------------


class PartitionFill:
    """One partition of an answer that is being filled."""

    def __init__(self, fetch: PartitionFetch) -> None:
        self.fetch, self.log, self.offset = fetch, fetch.log, fetch.fetch_offset
        self.bytes_left = CONSUME_BYTES_MAX if fetch.partition_max_bytes is None else fetch.partition_max_bytes
        self.answer = PartitionFetched(fetch.log, fetch.fetch_offset, next_fetch_offset=fetch.fetch_offset)
        self.batches: Sequence[CachedBatch] = ()
        """Batches to take next."""
        self.wanted_bytes = 0
        """Bytes of batches that were looked up."""
        self.passed_over = False
        """The stores hold records that were not read, because the logs before this one seemed to fill the answer."""
        self.delivered: Sequence[CachedBatch] = ()
        """Batches that records were taken of in the last round."""
        self.cache_result: Literal["hit", "empty", "miss"] = "miss"
        self.unconfirmed = False
        """A cache holds an answer that the control record must confirm."""
        self.incarnation = fetch.incarnation
        """Incarnation of the records taken so far, or of those that are wanted."""
        self.full = False
        """Its limit is reached: waiting adds nothing."""
        self.ended = False
        """The request is answered now."""

    @property
    def open(self) -> bool:
        return not self.full and self.answer.error is None

    @property
    def found_bytes(self) -> int:
        return sum(item.byte_length for item in self.batches)

    def fail(self, error: LlogError) -> None:
        """End with an error. Records already taken are answered instead; the next request meets the error."""
        self.full = self.ended = True
        if not self.answer.batches:
            self.answer.error = error


class TakeCost(NamedTuple):
    """What `AnswerFill.take_all` will do; nothing where all batches are taken whole."""

    walked_bytes: int
    """Bytes that it reads to count records; those of whole records are not touched."""
    inflated_bytes: int
    """Bytes that compressed batches may have."""


class AnswerFill:
    """An answer that is being filled, in request order."""

    def __init__(self, request: ConsumeRequest, parts: list[PartitionFill]) -> None:
        self.raw, self.parts = request.raw, parts
        self.bytes_left = min(request.max_bytes, CONSUME_BYTES_MAX)
        self._bytes_min = min(request.min_bytes, self.bytes_left)
        self._batch_bytes_left = CONSUME_BYTES_MAX
        self.byte_length = 0
        """Bytes of the batches in the answer."""
        self.record_count = self.record_bytes = 0
        self.payload_bytes = 0
        """Of the records' values, for the metrics; counted at the end where records are decoded."""
        self.full = False
        """`max_bytes` is reached, or the next record does not fit."""
        self.at_ms = 0.0
        """When the request arrived or was woken; caches answer as of this time."""
        self.source: Source = "cache"
        self.quick, self._hold = request.quick, request.hold

    def hold(self, byte_length: int) -> None:
        if self._hold is not None and byte_length:
            self._hold(byte_length)

    def is_done(self) -> bool:
        """Whether the answer has `min_bytes` or an error, or waiting can add nothing."""
        if self.full or any(part.ended for part in self.parts) or not any(part.open for part in self.parts):
            return True
        # A record without a key and a value counts as one byte here: there is no reason to wait with it.
        return max(self.record_bytes, min(self.record_count, 1)) >= self._bytes_min

    def next_offsets(self) -> dict[Log, int]:
        """The next offset of each log that may still add to the answer."""
        offsets: dict[Log, int] = {}
        for part in self.parts:
            if part.open:
                offsets[part.log] = min(part.offset, offsets.get(part.log, part.offset))
        return offsets

    # -- how much to look up ---------------------------------------------------------------------------------------
    def wanted_bytes(self, part: PartitionFill) -> int:
        """Bytes of batches that probably hold the records that still fit."""
        return self._batch_bytes(min(part.bytes_left, self.bytes_left))

    def store_bytes(self, first: PartitionFill) -> int:
        """Bytes left for logs read from the stores, without what the partitions before them take from memory."""
        left = self._batch_bytes(self.bytes_left)
        for part in self.parts:
            if part is first:
                break
            left -= min(part.found_bytes, self._batch_bytes(part.bytes_left))
        return max(left, 0 if self.record_count else 1)

    def _batch_bytes(self, record_bytes: int) -> int:
        """By the batches in the answer so far; without any, records are assumed to be most of a batch."""
        record_bytes = max(record_bytes, 0)
        if self.record_bytes:
            record_bytes = record_bytes * max(self.byte_length, self.record_bytes) // self.record_bytes
        return min(record_bytes + record_bytes // _SPARE, self._batch_bytes_left)

    def wants_more(self, part: PartitionFill) -> bool:
        """Whether the limits allow further records that exist and were not looked up: the batches found for the
        partition were as long as wanted, and yet their records were not."""
        if self.full or not part.open or part.offset > part.answer.high_watermark:
            return False
        return part.passed_over or part.found_bytes >= part.wanted_bytes

    def take_cost(self, parts: Sequence[PartitionFill]) -> TakeCost:
        walked = packed = 0
        left = self.bytes_left
        for part in parts:
            count = size = 0
            for item in part.batches:
                if item.sums is None:
                    packed += item.byte_length
                else:
                    count += item.sums.records.record_count
                    size += item.sums.records.byte_length
            left -= size
            begins_inside = bool(part.batches) and part.offset > part.batches[0].start_offset
            if begins_inside or left < 0 or size > part.bytes_left:
                walked += count
        return TakeCost(walked * _WALK_BYTES, packed * _INFLATION)

    # -- taking ----------------------------------------------------------------------------------------------------
    def take_all(self, parts: Sequence[PartitionFill]) -> None:
        for part in parts:
            taken: list[CachedBatch] = []
            for item in part.batches:
                before = self.byte_length
                more = self._take(part, item)
                if self.byte_length > before:
                    taken.append(item)
                if not more:
                    break
            part.delivered = taken

    def _take(self, part: PartitionFill, item: CachedBatch) -> bool:
        """Add the records of a batch that fit; returns whether the partition can take more."""
        assert item.chunk is not None
        if part.incarnation is not None and item.incarnation not in (None, part.incarnation):
            part.full = part.ended = True  # the topic was re-created: not in the same answer
            return False
        part.incarnation = item.incarnation
        left = min(part.bytes_left, self.bytes_left)
        if self.full or (self.record_count and left <= 0):
            part.full = True
            return False
        taken = self._whole(part, item, left) or cut(
            item.chunk.data,
            item.chunk.batches,
            part.offset,
            str(part.log),
            record_bytes_max=left,
            batch_bytes_max=self._batch_bytes_left,
            at_least_one=not self.record_count,
            sums=item.sums,
        )
        if taken.end is CutEnd.UNSOUND:
            part.full = part.ended = True
            if part.answer.batches and not taken.records.record_count:
                return False  # the next request meets the error
        self._add(part, item, taken)
        if taken.end is CutEnd.TOO_LONG or (taken.end is CutEnd.LIMIT and self.bytes_left <= part.bytes_left):
            self.full = True
        self.full = self.full or self.bytes_left <= 0
        part.full = part.full or self.full or taken.end is CutEnd.LIMIT or part.bytes_left <= 0
        return not part.full

    def _whole(self, part: PartitionFill, item: CachedBatch, left: int) -> Cut | None:
        """The usual case: everything fits, and nothing is looked at."""
        chunk, sums = item.chunk, item.sums
        if chunk is None or sums is None or part.offset > chunk.start_offset:
            return None
        # Where the limit ends with the batch, records without bytes may be at its end.
        if sums.records.byte_length >= left or len(chunk.data) > self._batch_bytes_left:
            return None
        return Cut([chunk.data] if sums.records.record_count else [], sums.records, CutEnd.ALL)

    def _add(self, part: PartitionFill, item: CachedBatch, taken: Cut) -> None:
        size, (count, record_bytes) = total_length(taken.batches), taken.records
        part.answer.batches += taken.batches
        part.bytes_left -= record_bytes
        self.bytes_left -= record_bytes
        self._batch_bytes_left -= size
        self.byte_length += size
        self.record_count += count
        self.record_bytes += record_bytes
        next_offset = item.end_offset + 1 if taken.end is CutEnd.ALL else taken.next_offset
        part.offset = part.answer.next_fetch_offset = max(part.offset, next_offset)


# -- decoding an answer ------------------------------------------------------------------------------------------------


class DecodedPartition(NamedTuple):
    runs: list[RecordRun]
    record_count: int
    value_bytes: int
    next_offset: int
    """Behind the decoded records; below the end of the batches if they inflate to too much."""


def decode_partition(answer: PartitionFetched) -> DecodedPartition | FormatError:
    """The records of an answer's batches, from its offset on. The batches are joined and decoded in one pass."""
    source, next_offset = str(answer.log), answer.next_fetch_offset
    data = answer.batches[0] if len(answer.batches) == 1 else b"".join(answer.batches)
    runs: list[RecordRun] = []
    size = records = value_bytes = 0
    try:
        batches = walk(data, source, rule=BatchRule.COMPACTED)
        for run in runs_of(_columns(data, batches, source), answer.fetch_offset, next_offset):
            if len(run.columns) == 0:
                continue
            runs.append(run)
            records += len(run.columns)
            value_bytes += int(run.columns.values.offsets[-1] - run.columns.values.offsets[0])
            size += run.columns.values.data.nbytes + run.columns.keys.data.nbytes
            size += len(run.columns) * CONSUME_RECORD_BYTES
            if size >= CONSUME_DECODED_BYTES_MAX:
                return DecodedPartition(runs, records, value_bytes, run.next_offset)
    except FormatError as error:
        return error
    return DecodedPartition(runs, records, value_bytes, next_offset)


def _columns(data: Buffer, batches: BatchColumns, source: str) -> Iterable[RecordColumns]:
    if len(data) <= RECORDS_CHUNK_BYTES:
        return (decode_batches(data, batches, source, rule=BatchRule.COMPACTED),)
    return decode_in_chunks(data, batches, source, rule=BatchRule.COMPACTED)
