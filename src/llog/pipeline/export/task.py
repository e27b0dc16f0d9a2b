"""The task of an export: a split of a topic as Parquet files, one per partition and date.

A file's name follows from the item alone, so a task that runs twice writes the same files. A put is atomic, and no file
counts before the driver commits it. An existing file is not overwritten, because a table may hold its length and row
count already. Memory holds the bytes of the split, some rows that are not encoded yet, and the encoded files. The rows
of a file are in offset order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from llog.errors import ExportRefused, ObjectAlreadyExists
from llog.limits import MIB
from llog.log.read.fetch import Fetcher
from llog.pipeline.export.decode import QUARANTINE_SCHEMA, Decoder, Decoding
from llog.pipeline.export.schema_ids import EXPORT_SCHEMA_IDS_MAX, WriterSchemas
from llog.pipeline.runtime.tasks import Task, TaskTools
from llog.pipeline.scan.split_read import split_batches
from llog.pipeline.scan.splits import Split
from llog.stores.objects.port import Buffer, ObjectStore

# Bytes in memory that are not yet encoded as a row group: of one file, and of all files of a task.
EXPORT_ROW_GROUP_BYTES: Final = 16 * MIB
EXPORT_PENDING_BYTES_MAX: Final = 64 * MIB
# Files, by partition and date, that one task writes: random timestamps would make a file per record.
EXPORT_FILES_PER_TASK_MAX: Final = 16_384
EXPORT_PUTS_IN_FLIGHT_MAX: Final = 8
_DAY_US: Final = 86_400_000_000
# Keys and values rarely repeat, offsets and timestamps never do: a dictionary would be built and discarded.
_PLAIN_COLUMNS: Final = frozenset({"key", "value", "offset", "timestamp", "headers", "_raw_value"})


class ExportItem(msgspec.Struct, frozen=True, kw_only=True):
    split: Split
    decoding: Decoding
    writers: WriterSchemas = WriterSchemas()
    store_url: str
    """`data_prefix` and `quarantine_prefix` are in this store."""
    data_prefix: str
    quarantine_prefix: str
    file_name: str
    """The same for all files of the item, which are in different directories."""
    by_date: bool = True
    path_columns: tuple[str, ...] = ()
    """Left out of the files, because directory names hold them."""


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """In the store."""
    partition: int
    date: str
    """As in the name; empty if files are not divided by date."""
    records: int
    byte_length: int
    first_offset: int
    last_offset: int


class ExportWritten(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[WrittenFile, ...] = ()
    quarantine: tuple[WrittenFile, ...] = ()
    records: int = 0
    """Records read, good or bad."""
    bad_records: int = 0
    """Records with a value that could not be decoded."""
    bytes_read: int = 0
    """Approximate."""
    schema_ids: tuple[int, ...] = ()
    """The ids that values named and that have a schema."""
    unknown_ids: tuple[int, ...] = ()
    """Ids that the driver must look up first, lowest first. If there are any, nothing was written."""


async def export_split(tools: TaskTools, item: ExportItem) -> ExportWritten:
    decoder = Decoder(item.decoding, item.writers)
    store = await tools.open_store(item.store_url)
    good = _Files(decoder.schema, item.data_prefix, item)
    bad = _Files(QUARANTINE_SCHEMA, item.quarantine_prefix, item)
    records = bad_records = 0
    met, unknown = set[int](), set[int]()

    def add(batch: pa.RecordBatch) -> int:
        ids = decoder.schema_ids(batch)
        met.update(ids & item.writers.found.keys())
        unknown.update(item.writers.unknown(ids))
        if len(unknown) > EXPORT_SCHEMA_IDS_MAX:
            # One more than the limit, so that the driver sees that there are too many.
            unknown.intersection_update(sorted(unknown)[: EXPORT_SCHEMA_IDS_MAX + 1])
        if unknown:
            return 0  # this run only gathers ids
        decoded = decoder.decode(batch)
        good.add(decoded.batch)
        if decoded.rejected is not None:
            bad.add(decoded.rejected)
        return decoded.bad_count

    async with aclosing(split_batches(Fetcher(tools.find_object), item.split)) as batches:
        async for batch in batches:
            records += batch.num_rows
            bad_records += await asyncio.to_thread(add, batch)
    if unknown:
        return ExportWritten(unknown_ids=tuple(sorted(unknown)))
    return ExportWritten(
        files=await good.put(store),
        quarantine=await bad.put(store),
        records=records,
        bad_records=bad_records,
        bytes_read=item.split.byte_length,
        schema_ids=tuple(sorted(met)),
    )


def schema_ids_of(written: Sequence[ExportWritten]) -> tuple[int, ...]:
    """The ids that all values of a round named."""
    return tuple(sorted({one for result in written for one in result.schema_ids}))


EXPORT_SPLIT: Final = Task("llog.pipeline.export.task:export_split", ExportItem, ExportWritten)


class _Files:
    """The files that one task writes, by partition and day."""

    def __init__(self, schema: pa.Schema, prefix: str, item: ExportItem) -> None:
        self._schema = pa.schema([field for field in schema if field.name not in item.path_columns])
        self._prefix, self._file_name, self._by_date = prefix, item.file_name, item.by_date
        self._files: dict[tuple[int, int], _File] = {}
        self._dictionary = [name for name in _leaves(self._schema) if name.partition(".")[0] not in _PLAIN_COLUMNS]

    def add(self, batch: pa.RecordBatch) -> None:
        for (partition, day), part in _divided(batch, self._by_date):
            file = self._files.get((partition, day))
            if file is None:
                if len(self._files) == EXPORT_FILES_PER_TASK_MAX:
                    reason = f"one task has records of more than {EXPORT_FILES_PER_TASK_MAX} partitions and dates"
                    raise ExportRefused(self._prefix, f"{reason}; export to another target, without dates")
                file = self._files[partition, day] = _File(self._schema, self._dictionary)
            file.add(part.select(self._schema.names))
        self._flush_longest()

    def _flush_longest(self) -> None:
        """Flush down to half of the limit, so that the next batch does not flush again."""
        pending = sum(file.pending_bytes for file in self._files.values())
        if pending <= EXPORT_PENDING_BYTES_MAX:
            return
        for file in sorted(self._files.values(), key=lambda file: file.pending_bytes, reverse=True):
            if pending <= EXPORT_PENDING_BYTES_MAX // 2:
                return
            pending -= file.pending_bytes
            file.flush()

    async def put(self, store: ObjectStore) -> tuple[WrittenFile, ...]:
        """Put all files, several at a time, and free each one when it is stored."""
        left, written = sorted(self._files, reverse=True), list[WrittenFile]()

        async def work() -> None:
            try:
                while left:
                    key = left.pop()
                    written.append(await self._put_file(store, key, self._files.pop(key)))
            finally:
                left.clear()

        # Wait for all of them, so that none is still running when one fails.
        outcomes = await asyncio.gather(*(work() for _ in range(EXPORT_PUTS_IN_FLIGHT_MAX)), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return tuple(sorted(written, key=lambda file: (file.partition, file.date)))

    async def _put_file(self, store: ObjectStore, key: tuple[int, int], file: _File) -> WrittenFile:
        partition, day = key
        data = await asyncio.to_thread(file.finish)
        date = str(np.datetime64(day, "D")) if self._by_date else ""
        directory = f"{self._prefix}/partition={partition}" + (f"/date={date}" if date else "")
        written = WrittenFile(
            name=f"{directory}/{self._file_name}.parquet",
            partition=partition,
            date=date,
            records=file.records,
            byte_length=data.size,
            first_offset=file.first_offset,
            last_offset=file.last_offset,
        )
        return await _put(store, written, memoryview(data))


async def _put(store: ObjectStore, file: WrittenFile, data: memoryview) -> WrittenFile:
    """Put the file unless one of that name exists; returns the stored one. The two differ only in records that the log
    lost meanwhile (retention, key compaction)."""
    try:
        await store.put(file.name, [data], if_absent=True)
        return file
    except ObjectAlreadyExists:
        existing = await store.get(file.name)
        offsets = await asyncio.to_thread(_offsets_in, existing)
        if offsets:
            ends = {"first_offset": offsets[0], "last_offset": offsets[-1]}
            return replace(file, records=len(offsets), byte_length=memoryview(existing).nbytes, **ends)
        await store.put(file.name, [data])
        return file


def _offsets_in(data: Buffer) -> list[int]:
    """The offsets in an exported file; empty if it is not one, and may be replaced."""
    try:
        offsets: list[int] = pq.read_table(pa.py_buffer(data), columns=["offset"])["offset"].to_pylist()
        return offsets
    except (pa.ArrowException, KeyError):
        return []


def _divided(batch: pa.RecordBatch, by_date: bool) -> list[tuple[tuple[int, int], pa.RecordBatch]]:
    """The batch by partition and day; not copied if all rows are of one."""
    if batch.num_rows == 0:
        return []
    partitions = batch["partition"].to_numpy()
    days = batch["timestamp"].cast(pa.int64()).to_numpy() // _DAY_US if by_date else np.zeros(len(partitions), np.int64)
    if bool(np.all(partitions == partitions[0]) and np.all(days == days[0])):
        return [((int(partitions[0]), int(days[0])), batch)]
    pairs, which = np.unique(np.stack([partitions.astype(np.int64), days]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    # A stable sort keeps the rows of a pair in offset order.
    rows = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    return [
        ((int(pairs[0, number]), int(pairs[1, number])), batch.take(pa.array(picked)))
        for number, picked in enumerate(rows)
    ]


class _File:
    def __init__(self, schema: pa.Schema, dictionary: list[str]) -> None:
        self._schema, self._dictionary = schema, dictionary
        self._sink = pa.BufferOutputStream()
        self._writer: Any = None
        """Created with the first row group: a task may have many files, most of them short."""
        self._pending: list[pa.RecordBatch] = []
        self.pending_bytes = 0
        self.records = 0
        self.first_offset = self.last_offset = -1

    def add(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self.pending_bytes += batch.nbytes
        if self.records == 0:
            self.first_offset = batch["offset"][0].as_py()
        self.records += batch.num_rows
        self.last_offset = batch["offset"][-1].as_py()
        if self.pending_bytes >= EXPORT_ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows as a row group."""
        if self._pending:
            table = pa.Table.from_batches(self._pending, self._schema)
            self._pending, self.pending_bytes = [], 0
            if self._writer is None:
                how = {"compression": "zstd", "use_dictionary": self._dictionary}
                self._writer = pq.ParquetWriter(self._sink, self._schema, **how)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self) -> pa.Buffer:
        self.flush()
        self._writer.close()
        return self._sink.getvalue()


def _leaves(schema: pa.Schema) -> list[str]:
    """The leaf columns in Parquet, by path."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    return [column.path for column in pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema]
