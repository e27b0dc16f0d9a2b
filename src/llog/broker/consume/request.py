"""A consume request, its answer per partition, and the answer while it is being filled.

Limits mean what they mean in Kafka: whole batches are returned, in request order, up to `max_bytes` in total and
`partition_max_bytes` per log; the first batch of the answer is returned whatever its size, so every consumer advances.
With less than `min_bytes` the answer waits up to `max_wait_ms`. An error is answered at once, for its own partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from llog.broker.tail.batches import CachedBatch, clip
from llog.errors import FormatError, InvalidArgument, LlogError
from llog.formats.buffers import Buffer
from llog.formats.records.decode import decode_batches, decode_in_chunks
from llog.formats.records.record_batch import CODEC_MASK, CRC_START, BatchColumns, BatchRule, walk
from llog.formats.records.record_columns import RecordColumns
from llog.limits import MIB, RECORDS_CHUNK_BYTES
from llog.log.keys import Log
from llog.log.read.records import RecordRun
from llog.log.read.slices import runs_of

# Partitions of one consume request.
CONSUME_PARTITIONS_MAX: Final = 10_000
# One answer holds at most this much, unless a single batch is larger; Kafka brokers have a similar limit.
CONSUME_BYTES_MAX: Final = 64 * MIB
# Decoding stops after the run of records that passes this; the rest is for the next request.
CONSUME_DECODED_BYTES_MAX: Final = 128 * MIB
assert CONSUME_BYTES_MAX <= CONSUME_DECODED_BYTES_MAX
# Memory of a decoded record besides its bytes, until it is text again.
CONSUME_RECORD_BYTES: Final = 256

_ATTRIBUTES_LOW: Final = CRC_START + 1
"""Position of the byte of a batch that holds its codec."""
_INFLATION: Final = 16
"""Assumed ratio of decompressed to compressed bytes."""

Source = Literal["cache", "empty", "store"]


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    log: Log
    fetch_offset: int
    partition_max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    partitions: Sequence[PartitionFetch]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = CONSUME_BYTES_MAX
    decode: bool = True
    """False: only `batches` is wanted; no record is decoded."""
    quick: Callable[[Sequence[PartitionFetched]], int | None] | None = None
    """Called before decoding uncompressed batches: builds the front end's answer directly from the batches, in
    `quick_bytes` of memory, and returns the number of records; None if the batches must be decoded after all."""
    hold: Callable[[int], None] | None = None
    """Called with the memory of the answer as it grows; raises if there is no room for it."""

    def __post_init__(self) -> None:
        if len(self.partitions) > CONSUME_PARTITIONS_MAX:
            raise InvalidArgument("partitions", f"{len(self.partitions)}; at most {CONSUME_PARTITIONS_MAX} at once")
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
    """Whole RecordBatches with their offsets; the first may begin below `fetch_offset`."""
    error: LlogError | None = None
    log_start_offset: int = -1
    """-1 if unknown: an answer from the cache does not need it."""


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
        self.cache_result: Literal["hit", "empty", "miss"] = "miss"
        self.unconfirmed = False
        """A cache holds an answer that the control record must confirm."""
        self.incarnation: int | None = None
        """Incarnation of the records taken so far."""
        self.full = False
        """Its limit is reached: waiting adds nothing."""
        self.ended = False
        """The request is answered now."""

    @property
    def open(self) -> bool:
        return not self.full and self.answer.error is None

    def fail(self, error: LlogError) -> None:
        """End with an error. Records already taken are answered instead; the next request meets the error."""
        self.full = self.ended = True
        if not self.answer.batches:
            self.answer.error = error


class AnswerFill:
    """An answer that is being filled, in request order."""

    def __init__(self, request: ConsumeRequest) -> None:
        self.parts = [PartitionFill(fetch) for fetch in request.partitions]
        self.bytes_left = min(request.max_bytes, CONSUME_BYTES_MAX)
        self._bytes_min = min(request.min_bytes, self.bytes_left)
        self.byte_length = 0
        self.at_ms = 0.0
        """When the request arrived or was woken; caches answer as of this time."""
        self.source: Source = "cache"
        self.quick, self._hold = request.quick, request.hold

    def hold(self, byte_length: int) -> None:
        if self._hold is not None and byte_length:
            self._hold(byte_length)

    def is_done(self) -> bool:
        """Whether the answer has `min_bytes` or an error, or waiting can add nothing."""
        ended = any(part.ended for part in self.parts)
        return ended or self.byte_length >= self._bytes_min or not any(part.open for part in self.parts)

    def next_offsets(self) -> dict[Log, int]:
        """The next offset of each log that may still add to the answer."""
        offsets: dict[Log, int] = {}
        for part in self.parts:
            if part.open:
                offsets[part.log] = min(part.offset, offsets.get(part.log, part.offset))
        return offsets

    def wanted_bytes(self, part: PartitionFill) -> int:
        return min(part.bytes_left, self.bytes_left)

    def store_bytes(self, first: PartitionFill) -> int:
        """Bytes left for logs read from the stores, without what the partitions before them take from memory."""
        left = self.bytes_left
        for part in self.parts:
            if part is first:
                break
            left -= min(sum(item.byte_length for item in part.batches), part.bytes_left)
        return max(left, 0 if self.byte_length else 1)

    def take(self, part: PartitionFill, item: CachedBatch) -> bool:
        """Add a batch; returns whether the partition can take more."""
        assert item.chunk is not None
        if part.incarnation is not None and item.incarnation not in (None, part.incarnation):
            part.full = part.ended = True  # the topic was re-created: not in the same answer
            return False
        part.incarnation = item.incarnation
        taken = clip(item.chunk, part.offset, self.wanted_bytes(part), at_least_one=self.byte_length == 0)
        if taken is None:
            part.full = True
            return False
        size = len(taken.data)
        if size:
            part.answer.batches.append(taken.data)
        part.bytes_left -= size
        self.bytes_left -= size
        self.byte_length += size
        part.offset = max(part.offset, taken.next_offset)
        part.answer.next_fetch_offset = part.offset
        part.full = taken.more or part.bytes_left <= 0 or self.bytes_left <= 0
        return not part.full


# -- decoding an answer ------------------------------------------------------------------------------------------------


class DecodedPartition(NamedTuple):
    runs: list[RecordRun]
    record_count: int
    next_offset: int
    """Behind the decoded records; below the end of the batches if they inflate to too much."""


def decoded_bytes_estimate(batches: Sequence[Buffer]) -> int:
    """Estimated bytes of the decoded batches: compressed ones inflate."""
    return sum(len(data) * (_INFLATION if data[_ATTRIBUTES_LOW] & CODEC_MASK else 1) for data in batches)


def decode_partition(answer: PartitionFetched) -> DecodedPartition | FormatError:
    """The records of an answer's batches, from its offset on. The batches are joined and decoded in one pass."""
    source, next_offset = str(answer.log), answer.next_fetch_offset
    data = answer.batches[0] if len(answer.batches) == 1 else b"".join(answer.batches)
    runs: list[RecordRun] = []
    size = records = 0
    try:
        batches = walk(data, source, rule=BatchRule.COMPACTED)
        for run in runs_of(_columns(data, batches, source), answer.fetch_offset, next_offset):
            if len(run.columns) == 0:
                continue
            runs.append(run)
            records += len(run.columns)
            size += run.columns.values.data.nbytes + run.columns.keys.data.nbytes
            size += len(run.columns) * CONSUME_RECORD_BYTES
            if size >= CONSUME_DECODED_BYTES_MAX:
                return DecodedPartition(runs, records, run.next_offset)
    except FormatError as error:
        return error
    return DecodedPartition(runs, records, next_offset)


def _columns(data: Buffer, batches: BatchColumns, source: str) -> Iterable[RecordColumns]:
    if len(data) <= RECORDS_CHUNK_BYTES and not batches.codec.any():
        return (decode_batches(data, batches, source, rule=BatchRule.COMPACTED),)
    return decode_in_chunks(data, batches, source, rule=BatchRule.COMPACTED)
