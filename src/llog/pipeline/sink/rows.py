"""Rows of a table to the record groups of logs: which row goes where, and their encoded bytes. Nothing here waits.

The columns are those of Spark's Kafka sink: `value`, and where they are there `key`, `headers`, `topic`, `partition`,
`timestamp`. A row's partition is the one it names, else that of its key (as Kafka's clients compute it), else the
topic's partitions take turns.

What must stay true: no Python per row; rows of one log keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.arrow import HEADERS_TYPE, from_arrow
from llog.formats.records.crc import Buffer
from llog.formats.records.record_batch import Codec
from llog.formats.records.record_columns import BINARY_COLUMN_BYTES_MAX, RecordColumns
from llog.formats.records.records import encode_columns
from llog.limits import MIB
from llog.log.keys import PARTITION_MAX, Log, check_topic
from llog.pipeline.sink.sizes import check_sizes, largest_record_bytes

SINK_RECORD_BATCH_BYTES: Final = MIB


Longs = npt.NDArray[np.int64]

COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")
NOT_NAMED: Final = -1
# What a record takes beside its key, value and headers, at most, and a header beside its own.
_RECORD_OVERHEAD_BYTES: Final = 32
_HEADER_OVERHEAD_BYTES: Final = 10


class Group(NamedTuple):
    """The rows of one log, encoded."""

    log: Log
    msg_count: int
    body: Sequence[Buffer]
    max_timestamp_ms: int
    largest_record_bytes: int = 0
    """As a batch of its own; 0 where it was compared with the topic's limit already."""


class Turns:
    """Whose turn it is among the partitions of each topic, for rows without a key."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._next: dict[str, int] = {}

    def take(self, topic: str, rows: int, partition_count: int) -> Longs:
        first = self._next.get(topic, self._start)
        self._next[topic] = (first + rows) % partition_count
        return (first + np.arange(rows, dtype=np.int64)) % partition_count


class Router:
    """Gives every row its log."""

    def __init__(self, topic: str | None, partition_counts: Mapping[str, int], turns: Turns) -> None:
        self._topic, self._counts, self._turns = topic, partition_counts, turns

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Log, pa.RecordBatch]]:
        """The rows of each log, in their order."""
        if batch.num_rows == 0:
            return
        names, codes = self._topics(batch)
        partitions = self._partitions(batch, names, codes)
        marks = codes * (PARTITION_MAX + 1) + partitions
        if (marks == marks[0]).all():
            yield Log(names[codes[0]], int(partitions[0])), batch
            return
        order = np.argsort(marks, kind="stable")
        sorted_marks = marks[order]
        ends = np.append(np.flatnonzero(np.diff(sorted_marks)) + 1, len(order))
        # Not `pa.array`: it loads pandas, where that is installed, to see whether this is a series.
        rows = batch.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))
        start = 0
        for end in ends.tolist():
            code, partition = divmod(int(sorted_marks[start]), PARTITION_MAX + 1)
            yield Log(names[code], partition), rows.slice(start, end - start)
            start = end

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], Longs]:
        """Names, and the number of its name for each row."""
        if self._topic is not None:
            return [self._topic], np.zeros(batch.num_rows, np.int64)
        if "topic" not in batch.schema.names:
            raise InvalidArgument("topic", "neither an option nor a column says where the rows go")
        column = batch.column("topic")
        if column.null_count:
            raise InvalidArgument("topic", f"{column.null_count} rows have none")
        encoded = column.cast(pa.string()).dictionary_encode()
        names = [check_topic(name) for name in encoded.dictionary.to_pylist()]
        return names, encoded.indices.to_numpy().astype(np.int64)

    def _partitions(self, batch: pa.RecordBatch, names: Sequence[str], codes: Longs) -> Longs:
        partitions = _named_partitions(batch)
        open_rows = partitions == NOT_NAMED
        if not open_rows.any():
            return partitions
        counts = np.array([self._counts.get(name, 1) for name in names], np.int64)[codes]
        if "key" in batch.schema.names:
            keys = batch.column("key")
            keyed = open_rows & keys.is_valid().to_numpy(zero_copy_only=False)
            if keyed.any():
                partitions = np.where(keyed, _by_key(keys, counts), partitions)
                open_rows &= ~keyed
        for code in np.unique(codes[open_rows]).tolist():
            rows = np.flatnonzero(open_rows & (codes == code))
            partitions[rows] = self._turns.take(names[code], len(rows), self._counts.get(names[code], 1))
        return partitions


def _named_partitions(batch: pa.RecordBatch) -> Longs:
    if "partition" not in batch.schema.names:
        return np.full(batch.num_rows, NOT_NAMED, np.int64)
    column = batch.column("partition")
    given = pc.drop_null(column).cast(pa.int64()).to_numpy()
    if len(given) and (int(given.min()) < 0 or int(given.max()) > PARTITION_MAX):
        bad = int(given[(given < 0) | (given > PARTITION_MAX)][0])
        raise InvalidArgument("partition", f"{bad} must be from 0 to {PARTITION_MAX}")
    return np.array(pc.fill_null(column.cast(pa.int64()), NOT_NAMED).to_numpy(), np.int64)


def _by_key(keys: pa.Array, counts: Longs) -> Longs:
    """Also of rows without a key, where it means nothing."""
    from llog.pipeline.sink import kernel as sink_kernel

    keys = keys.cast(pa.binary())
    _, offsets, data = keys.buffers()
    positions = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    partitions = np.empty(len(keys), np.int64)
    bad = sink_kernel.partitions_of_keys(positions, content, counts, partitions)
    if bad >= 0:
        raise InvalidArgument("key", f"row {bad}: the column's offsets contradict each other")
    return partitions


# -- encoding ----------------------------------------------------------------------------------------------------------


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all rows, with the columns a sink knows, in types whose offsets have 32 bits."""
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


def encoded_groups(
    batch: pa.RecordBatch,
    router: Router,
    *,
    codec: Codec,
    timestamp_ms: int,
    message_bytes_max: Mapping[str, int] | None = None,
) -> list[Group]:
    """RecordBatches of about a megabyte for each log. Rows without a timestamp get `timestamp_ms`. Raises
    `RecordTooLarge` for one that passes its topic's limit in `message_bytes_max`; of other topics the largest is told.
    """
    limits = message_bytes_max or {}
    groups = []
    for log, rows in router.split(batch):
        columns = from_arrow(rows, timestamp_ms=timestamp_ms)
        limit = limits.get(log.topic)
        largest = largest_record_bytes(columns) if limit is None else 0
        if limit is not None:
            check_sizes(log, columns, limit)
        cuts = _cuts(columns)
        body: list[Buffer] = []
        for start, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
            part = columns if end - start == rows.num_rows else _columns(rows, start, end, timestamp_ms)
            body.append(encode_columns(part, codec=codec))
        groups.append(Group(log, rows.num_rows, body, int(columns.timestamps_ms.max()), largest))
    return groups


def _columns(rows: pa.RecordBatch, start: int, end: int, timestamp_ms: int) -> RecordColumns:
    return from_arrow(rows.slice(start, end - start), timestamp_ms=timestamp_ms)


def _cuts(columns: RecordColumns) -> list[int]:
    """Rows at which a new RecordBatch begins; a record larger than one is alone in its own."""
    headers, lists = columns.headers, columns.headers.offsets
    sizes: Any = _RECORD_OVERHEAD_BYTES + _HEADER_OVERHEAD_BYTES * np.diff(lists.astype(np.int64))
    for ends_of in (
        columns.values.offsets,
        columns.keys.offsets,
        headers.keys.offsets[lists],
        headers.values.offsets[lists],
    ):
        sizes += np.diff(ends_of.astype(np.int64))
    ends = np.cumsum(sizes)
    if ends[-1] <= SINK_RECORD_BATCH_BYTES:
        return []
    cuts: list[int] = []
    start = filled = 0
    while True:
        stop = max(int(np.searchsorted(ends, filled + SINK_RECORD_BATCH_BYTES, side="right")), start + 1)
        if stop >= len(ends):
            return cuts
        cuts.append(stop)
        start, filled = stop, int(ends[stop - 1])
