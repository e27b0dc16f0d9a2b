"""The task of an export: a split of a topic as Parquet files, one per partition and date.

What must stay true: a file's name follows from the item alone, so a task that runs twice makes the same files (a put is
atomic; nobody sees half of one), and none counts until the driver has committed it; a file that is there is not written
over, for a table may have its length and its rows by now; memory holds the bytes of the split, some rows that are not
encoded yet, and the encoded files; rows of a file stand in offset order.
"""

from __future__ import annotations

import asyncio
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
from llog.pipeline.runtime.tasks import Task, TaskTools
from llog.pipeline.scan.split_read import split_batches
from llog.pipeline.scan.splits import Split
from llog.stores.objects.port import Buffer, ObjectStore

# Of one file in memory before it is encoded as a row group; of all files of a task together.
EXPORT_ROW_GROUP_BYTES: Final = 16 * MIB
EXPORT_PENDING_BYTES_MAX: Final = 64 * MIB
# Partitions and dates that one task writes; clocks gone wild would make a file per record.
EXPORT_FILES_PER_TASK_MAX: Final = 16_384
# Of these, how many are on their way into the store at a time.
EXPORT_PUTS_IN_FLIGHT_MAX: Final = 8


_DAY_US: Final = 86_400_000_000
# Values and keys rarely repeat, offsets and timestamps never do: a dictionary of them would be built and thrown away.
_PLAIN_COLUMNS: Final = frozenset({"key", "value", "offset", "timestamp", "headers", "_raw_value"})


class ExportItem(msgspec.Struct, frozen=True, kw_only=True):
    split: Split
    decoding: Decoding
    store_url: str
    """Where files go; `data_prefix` and `quarantine_prefix` are inside."""
    data_prefix: str
    quarantine_prefix: str
    file_name: str
    """The same for all files of the item: they lie in directories of their own."""
    by_date: bool = True
    path_columns: tuple[str, ...] = ()
    """Left out of the files: their directories tell."""


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """In the store."""
    partition: int
    date: str
    """As in the name; empty where files are not divided by date."""
    records: int
    byte_length: int
    first_offset: int
    last_offset: int


class ExportWritten(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[WrittenFile, ...] = ()
    quarantine: tuple[WrittenFile, ...] = ()
    records: int = 0
    """That were read, good or bad."""
    bad_records: int = 0
    """Whose value could not be decoded."""
    bytes_read: int = 0
    """About."""


async def export_split(tools: TaskTools, item: ExportItem) -> ExportWritten:
    decoder = Decoder(item.decoding)
    store = await tools.open_store(item.store_url)
    good = _Files(decoder.schema, item.data_prefix, item)
    bad = _Files(QUARANTINE_SCHEMA, item.quarantine_prefix, item)
    records = bad_records = 0

    def add(batch: pa.RecordBatch) -> int:
        decoded = decoder.decode(batch)
        good.add(decoded.batch)
        if decoded.rejected is not None:
            bad.add(decoded.rejected)
        return decoded.bad_count

    async with aclosing(split_batches(Fetcher(tools.find_object), item.split)) as batches:
        async for batch in batches:
            records += batch.num_rows
            bad_records += await asyncio.to_thread(add, batch)
    return ExportWritten(
        files=await good.put(store),
        quarantine=await bad.put(store),
        records=records,
        bad_records=bad_records,
        bytes_read=item.split.byte_length,
    )


EXPORT_SPLIT: Final = Task("llog.pipeline.export.task:export_split", ExportItem, ExportWritten)


class _Files:
    """The files of one task that are being written, by partition and day."""

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
                    reason = f"records of more than {EXPORT_FILES_PER_TASK_MAX} partitions and dates in one task"
                    raise ExportRefused(self._prefix, f"{reason}: export into another place, without dates")
                file = self._files[partition, day] = _File(self._schema, self._dictionary)
            file.add(part.select(self._schema.names))
        self._flush_longest()

    def _flush_longest(self) -> None:
        """Half of what may be pending stays, so that the next batch does not come here again."""
        pending = sum(file.pending_bytes for file in self._files.values())
        if pending <= EXPORT_PENDING_BYTES_MAX:
            return
        for file in sorted(self._files.values(), key=lambda file: file.pending_bytes, reverse=True):
            if pending <= EXPORT_PENDING_BYTES_MAX // 2:
                return
            pending -= file.pending_bytes
            file.flush()

    async def put(self, store: ObjectStore) -> tuple[WrittenFile, ...]:
        """All files, several at a time; each is forgotten as soon as it lies there."""
        left, written = sorted(self._files, reverse=True), list[WrittenFile]()

        async def work() -> None:
            try:
                while left:
                    key = left.pop()
                    written.append(await self._put_file(store, key, self._files.pop(key)))
            finally:
                left.clear()

        # All are waited for, so that none is left under way when one fails.
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
        mine = WrittenFile(
            name=f"{directory}/{self._file_name}.parquet",
            partition=partition,
            date=date,
            records=file.records,
            byte_length=data.size,
            first_offset=file.first_offset,
            last_offset=file.last_offset,
        )
        return await _put(store, mine, memoryview(data))


async def _put(store: ObjectStore, mine: WrittenFile, data: memoryview) -> WrittenFile:
    """The file that lies there afterwards: of two of one name the first. What one of them lacks, the log has lost
    meanwhile (retention, key compaction)."""
    try:
        await store.put(mine.name, [data], if_absent=True)
        return mine
    except ObjectAlreadyExists:
        there = await store.get(mine.name)
        offsets = await asyncio.to_thread(_offsets_in, there)
        if offsets:
            ends = {"first_offset": offsets[0], "last_offset": offsets[-1]}
            return replace(mine, records=len(offsets), byte_length=memoryview(there).nbytes, **ends)
        await store.put(mine.name, [data])
        return mine


def _offsets_in(data: Buffer) -> list[int]:
    """Nothing where it is no file of an export: that gives way to one."""
    try:
        found: list[int] = pq.read_table(pa.py_buffer(data), columns=["offset"])["offset"].to_pylist()
        return found
    except (pa.ArrowException, KeyError):
        return []


def _divided(batch: pa.RecordBatch, by_date: bool) -> list[tuple[tuple[int, int], pa.RecordBatch]]:
    """The batch by partition and day; nothing is copied where it is all of one."""
    if batch.num_rows == 0:
        return []
    partitions = batch["partition"].to_numpy()
    days = batch["timestamp"].cast(pa.int64()).to_numpy() // _DAY_US if by_date else np.zeros(len(partitions), np.int64)
    if bool(np.all(partitions == partitions[0]) and np.all(days == days[0])):
        return [((int(partitions[0]), int(days[0])), batch)]
    pairs, which = np.unique(np.stack([partitions.astype(np.int64), days]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    # Stable: the rows of a pair stay in offset order.
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
        """Made with the first row group: a task may have many files, most of them short."""
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
        """What is pending becomes a row group."""
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
    """The columns as Parquet has them: a struct's or list's members each by its path."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    return [column.path for column in pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema]
