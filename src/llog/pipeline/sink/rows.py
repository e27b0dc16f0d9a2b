"""Rows of a table to record groups: which log each row goes to, and the encoded bytes of each log. No I/O.

The columns are those of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `topic`, `partition`,
`timestamp`. A row goes to the partition it names, else to the partition of its key (`partitioner`),
else to the topic's partitions in turn. Rows of one log keep their order. No Python runs per row, and the encoder reads
the rows of a log from where they are: apart from joining the batches, nothing is copied before it is encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llog.errors import InvalidArgument, RecordTooLarge, ValueTooLarge
from llog.formats.arrow import HEADERS_TYPE, from_arrow
from llog.formats.buffers import Buffer
from llog.formats.partitioner import murmur2_partitions
from llog.formats.records.encode import encode_columns, record_bytes
from llog.formats.records.produced import stamp
from llog.formats.records.record_batch import Codec
from llog.formats.records.record_columns import BINARY_COLUMN_BYTES_MAX, NOTHING
from llog.limits import MIB
from llog.log.keys import PARTITION_MAX, Log, check_topic
from llog.log.topics.record_limits import AT_THE_CLOCK, TimestampSpan, span_of

Longs = npt.NDArray[np.int64]

# Encoded size at which the sink ends a RecordBatch and begins the next.
SINK_RECORD_BATCH_BYTES: Final = MIB
COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")
NO_PARTITION: Final = -1


class SinkGroup(NamedTuple):
    """The record group of one log: its rows as RecordBatches."""

    log: Log
    msg_count: int
    body: Sequence[Buffer]
    max_timestamp_ms: int
    largest_record_bytes: int = 0
    """As a batch of its own; 0 when the task already compared it with the topic's limit."""
    span: TimestampSpan = AT_THE_CLOCK
    clock_ms: int = 0


class RoundRobin:
    """The next partition of each topic for rows without a key."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._next: dict[str, int] = {}

    def take(self, topic: str, rows: int, partition_count: int) -> Longs:
        first = self._next.get(topic, self._start)
        self._next[topic] = (first + rows) % partition_count
        return (first + np.arange(rows, dtype=np.int64)) % partition_count


class Router:
    """Assigns each row to a log. A topic that `partition_counts` does not name counts as having one partition."""

    def __init__(self, topic: str | None, partition_counts: Mapping[str, int], round_robin: RoundRobin) -> None:
        self._topic, self._counts, self._round_robin = topic, partition_counts, round_robin

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Log, Longs]]:
        """The row numbers of each log, ascending."""
        if batch.num_rows == 0:
            return
        names, codes = self._topics(batch)
        marks = codes * (PARTITION_MAX + 1) + self._partitions(batch, names, codes)
        order = np.argsort(marks, kind="stable")
        sorted_marks = marks[order]
        ends = np.append(np.flatnonzero(np.diff(sorted_marks)) + 1, len(order))
        start = 0
        for end in ends.tolist():
            code, partition = divmod(int(sorted_marks[start]), PARTITION_MAX + 1)
            yield Log(names[code], partition), order[start:end]
            start = end

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], Longs]:
        """The topic names, and for each row the index of its topic among them."""
        if self._topic is not None:
            return [self._topic], np.zeros(batch.num_rows, np.int64)
        if "topic" not in batch.schema.names:
            raise InvalidArgument("topic", "set the option topic, or give the rows a column topic")
        column = batch.column("topic")
        if column.null_count:
            raise InvalidArgument("topic", f"{column.null_count} rows have null in the column topic")
        encoded = column.cast(pa.string()).dictionary_encode()
        names = [check_topic(name) for name in encoded.dictionary.to_pylist()]
        return names, encoded.indices.to_numpy().astype(np.int64)

    def _partitions(self, batch: pa.RecordBatch, names: Sequence[str], codes: Longs) -> Longs:
        partitions = _named_partitions(batch)
        open_rows = partitions == NO_PARTITION
        if not open_rows.any():
            return partitions
        counts = np.array([self._counts.get(name, 1) for name in names], np.int64)[codes]
        if "key" in batch.schema.names:
            keys = batch.column("key")
            keyed = open_rows & keys.is_valid().to_numpy(zero_copy_only=False)
            if keyed.any():
                partitions = np.where(keyed, _key_partitions(keys, counts), partitions)
                open_rows &= ~keyed
        for code in np.unique(codes[open_rows]).tolist():
            rows = np.flatnonzero(open_rows & (codes == code))
            partitions[rows] = self._round_robin.take(names[code], len(rows), self._counts.get(names[code], 1))
        return partitions


def _named_partitions(batch: pa.RecordBatch) -> Longs:
    """The column `partition`, with `NO_PARTITION` for null; all `NO_PARTITION` without that column."""
    if "partition" not in batch.schema.names:
        return np.full(batch.num_rows, NO_PARTITION, np.int64)
    column = batch.column("partition")
    given = pc.drop_null(column).cast(pa.int64()).to_numpy()
    if len(given) and (int(given.min()) < 0 or int(given.max()) > PARTITION_MAX):
        bad = int(given[(given < 0) | (given > PARTITION_MAX)][0])
        raise InvalidArgument("partition", f"{bad} must be from 0 to {PARTITION_MAX}")
    return np.array(pc.fill_null(column.cast(pa.int64()), NO_PARTITION).to_numpy(), np.int64)


def _key_partitions(keys: pa.Array, counts: Longs) -> Longs:
    """The partition of each key among `counts[row]`; meaningless for rows without a key."""
    keys = keys.cast(pa.binary())
    _, offsets, data = keys.buffers()
    positions = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4)
    return murmur2_partitions(positions, NOTHING if data is None else np.frombuffer(data, np.uint8), counts)


# -- encoding ----------------------------------------------------------------------------------------------------------


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows as one batch with the columns the sink uses, in Arrow types with 32-bit offsets."""
    names = [name for name in COLUMNS if name in batches[0].schema.names]
    whole = pa.Table.from_batches(batches).select(names)
    whole = whole.cast(pa.schema([pa.field(name, _plain(whole.schema.field(name).type)) for name in names]))
    rows = whole.combine_chunks().to_batches()
    if len(rows) > 1:  # a column has more bytes than its offsets can count
        raise ValueTooLarge("rows gathered for one blob", whole.nbytes, BINARY_COLUMN_BYTES_MAX)
    return rows[0] if rows else pa.RecordBatch.from_pylist([], schema=whole.schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return HEADERS_TYPE if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind


def encode_groups(
    batch: pa.RecordBatch,
    router: Router,
    *,
    codec: Codec,
    timestamp_ms: int,
    message_bytes_max: Mapping[str, int] | None = None,
    append_time: Collection[str] = (),
) -> list[SinkGroup]:
    """The record group of each log. Rows without a timestamp get `timestamp_ms`, and all rows of `append_time` topics.

    Raises `RecordTooLarge` for a record over its topic's limit in `message_bytes_max`. The groups of other topics carry
    the size of their largest record, so that the driver can compare it.
    """
    limits = message_bytes_max or {}
    columns = from_arrow(batch, timestamp_ms=timestamp_ms)
    sizes = record_bytes(columns)
    groups = []
    for log, rows in router.split(batch):
        own_sizes = sizes[rows]
        largest, limit = int(own_sizes.max()), limits.get(log.topic)
        if limit is not None and largest > limit:
            raise RecordTooLarge(*log, largest, limit)
        body = [encode_columns(columns, rows=part, codec=codec) for part in _cut(rows, own_sizes)]
        timestamps_ms = columns.timestamps_ms[rows]
        newest_ms, span = int(timestamps_ms.max()), span_of(timestamps_ms, timestamp_ms)
        if log.topic in append_time:
            newest_ms, span = timestamp_ms, AT_THE_CLOCK
            for record_batch in body:
                stamp(record_batch, timestamp_ms, log_append_time=True)
        groups.append(SinkGroup(log, len(rows), body, newest_ms, largest if limit is None else 0, span, timestamp_ms))
    return groups


def _cut(rows: Longs, sizes: Longs) -> Iterator[Longs]:
    """The rows of each RecordBatch; a record larger than `SINK_RECORD_BATCH_BYTES` gets a batch to itself."""
    ends = np.cumsum(sizes)
    start = filled = 0
    while start < len(rows):
        stop = max(int(np.searchsorted(ends, filled + SINK_RECORD_BATCH_BYTES, side="right")), start + 1)
        yield rows[start:stop]
        start, filled = stop, int(ends[stop - 1])
