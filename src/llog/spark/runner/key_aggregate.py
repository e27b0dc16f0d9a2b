"""The aggregation of key compaction as a DataFrame: the last offset of each key, for any number of keys.

    objects of the scans → rows (log, segment, key, offset)    a data source; some objects per input partition
    group by log and key, keep the highest offset              Spark: spills, scales
    by segment, in rising order → one object of offsets each   the same data source, written to; tasks put objects,
                                                               its commit puts the list of them

The distinct keys of a log may exceed the memory of a process. Only keys and offsets travel through Spark, which scans
have already reduced to one row per key and segment.

Workers read and write objects with the stores' own client; the driver gets names, counts and checksums. The survivors
of a segment are in one object, or the job fails. A task that ran twice leaves an object that nothing names.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from llog.errors import ChecksumMismatch, SparkJobFailed
from llog.formats.buffers import crc32c
from llog.pipeline.key_compact.aggregate import (
    Longs,
    ScratchPart,
    ScratchPlace,
    SegmentKeys,
    get_part,
    keys_in,
    put_survivors,
)
from llog.pipeline.runtime.tasks import Item, Result, Task, TaskFailed, TaskTools, decoded_outcome, encoded_item
from llog.settings import Settings
from llog.spark.runner.tasks import failure_of, interrupt, tagged
from llog.spark.runner.worker import JobHead, run_item, sent_settings
from llog.spark.sessions.session import make_active, own_interpreter
from llog.stores.metering import OnRequests, OperationCounts, StoreCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from llog.limits import MIB

# Of these, what one task of the aggregation on Spark reads (unless one object is larger).
KEY_AGGREGATE_TASK_BYTES: Final = 16 * MIB

NAME: Final = "llog_key_scans"
PLACE: Final = "llog.spark.runner.key_aggregate"
_ROWS: Final = "log int, segment int, key binary, offset bigint"
# Spark's own form of these columns.
_ROWS_ARROW: Final = pa.schema(
    [("log", pa.int32()), ("segment", pa.int32()), ("key", pa.binary()), ("offset", pa.int64())]
)
_CRC_BYTES: Final = 4

Sent = dict[str, str | int]


# -- in the worker: objects in and out ---------------------------------------------------------------------------------


class FetchKeys(msgspec.Struct, frozen=True):
    place: ScratchPlace
    part: ScratchPart


class FetchedKeys(msgspec.Struct, frozen=True):
    data: bytes


class PutSurvivors(msgspec.Struct, frozen=True):
    place: ScratchPlace
    offsets: bytes
    """64 bits each, in this machine's order: they do not leave it."""


class Survivors(msgspec.Struct, frozen=True):
    """Those of some segments: by segment number."""

    by_segment: tuple[tuple[int, ScratchPart], ...]


class PutList(msgspec.Struct, frozen=True):
    place: ScratchPlace
    name: str
    survivors: Survivors


class ListPut(msgspec.Struct, frozen=True):
    pass


async def fetch_keys(tools: TaskTools, item: FetchKeys) -> FetchedKeys:
    return FetchedKeys(bytes(await get_part(tools, item.place, item.part)))


async def store_survivors(tools: TaskTools, item: PutSurvivors) -> ScratchPart:
    return await put_survivors(tools, item.place, np.frombuffer(item.offsets, np.int64))


async def put_list(tools: TaskTools, item: PutList) -> ListPut:
    """Commits may be repeated; they say the same."""
    data = msgspec.msgpack.encode(item.survivors)
    store = await tools.open_store(item.place.store_url)
    await store.put(item.name, [crc32c(data).to_bytes(_CRC_BYTES, "big"), data])
    return ListPut()


async def get_list(tools: TaskTools, place: ScratchPlace, name: str) -> Survivors:
    store = await tools.open_store(place.store_url)
    whole = memoryview(await store.get(name))
    stored, computed = int.from_bytes(whole[:_CRC_BYTES], "big"), crc32c(whole[_CRC_BYTES:])
    if stored != computed:
        raise ChecksumMismatch(name, "list of survivors", stored, computed)
    return msgspec.msgpack.decode(whole[_CRC_BYTES:], type=Survivors)


FETCH_KEYS: Final = Task(f"{PLACE}:fetch_keys", FetchKeys, FetchedKeys)
STORE_SURVIVORS: Final = Task(f"{PLACE}:store_survivors", PutSurvivors, ScratchPart)
PUT_LIST: Final = Task(f"{PLACE}:put_list", PutList, ListPut)


def _perform(task: Task[Item, Result], sent: Sent, item: Item) -> Result:
    """Within a task of Spark's: on this worker's loop and stores. What fails fails the task, so that Spark tries it
    again."""
    head = JobHead(task.place, f"{task.item.__module__}:{task.item.__qualname__}", sent)
    outcome = decoded_outcome(task, run_item(head, encoded_item(item)))
    if isinstance(outcome, TaskFailed):
        raise SparkJobFailed(task.place, f"{outcome.error_type}: {outcome.error}")
    return outcome


class _Helping(msgspec.Struct, frozen=True):
    """Objects that one input partition reads: (log, segment, object) each."""

    parts: tuple[tuple[int, int, ScratchPart], ...]


class _Plan(msgspec.Struct, frozen=True):
    place: ScratchPlace
    sent: Sent
    list_name: str
    """Of the object that in the end says where the survivors are."""
    helpings: tuple[_Helping, ...] = ()

    def packed(self) -> str:
        return base64.b64encode(zlib.compress(msgspec.msgpack.encode(self), 1)).decode()

    @classmethod
    def unpacked(cls, text: str) -> _Plan:
        return _PLANS.decode(zlib.decompress(base64.b64decode(text)))


_PLANS: Final = msgspec.msgpack.Decoder(_Plan)
_HELPINGS: Final = msgspec.msgpack.Decoder(_Helping)


class KeyScanSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return _ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        return KeyScanReader(_Plan.unpacked(str(self.options["plan"])))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return SurvivorWriter(_Plan.unpacked(str(self.options["plan"])))


class _HelpingPartition(InputPartition):
    def __init__(self, helping: bytes) -> None:
        super().__init__(None)
        self.helping = helping


class KeyScanReader(DataSourceReader):
    def __init__(self, plan: _Plan) -> None:
        self._helpings = [msgspec.msgpack.encode(helping) for helping in plan.helpings]
        self._head = msgspec.msgpack.encode(msgspec.structs.replace(plan, helpings=()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_helpings": []}  # Spark sends the reader with every task

    def partitions(self) -> Sequence[InputPartition]:
        return [_HelpingPartition(helping) for helping in self._helpings]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _HelpingPartition)
        head = _PLANS.decode(self._head)
        for log, segment, part in _HELPINGS.decode(partition.helping).parts:
            fetched = _perform(FETCH_KEYS, head.sent, FetchKeys(head.place, part))
            for batch in keys_in(fetched.data, part).to_batches():
                numbers = (pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows) for number in (log, segment))
                yield pa.RecordBatch.from_arrays([*numbers, *batch.columns], schema=_ROWS_ARROW)


class _Parts(WriterCommitMessage):
    def __init__(self, survivors: bytes) -> None:
        self.survivors = survivors


class SurvivorWriter(DataSourceArrowWriter):
    """From rows (segment, offset) that come segment by segment, in rising order, to one object per segment."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = msgspec.msgpack.encode(plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        plan, current, held = _PLANS.decode(self._plan), -1, list[Longs]()
        written: list[tuple[int, ScratchPart]] = []
        for batch in iterator:
            segments, offsets = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
            begins = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist()] if len(segments) else []
            for begin, end in zip(begins, [*begins[1:], len(segments)], strict=False):
                if int(segments[begin]) != current:
                    written += _stored(plan, current, held)
                    current, held = int(segments[begin]), []
                held.append(np.array(offsets[begin:end], np.int64))
        written += _stored(plan, current, held)
        return _Parts(msgspec.msgpack.encode(Survivors(tuple(written))))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        plan, found = _PLANS.decode(self._plan), list[tuple[int, ScratchPart]]()
        for message in messages:
            assert isinstance(message, _Parts)
            found += msgspec.msgpack.decode(message.survivors, type=Survivors).by_segment
        _perform(PUT_LIST, plan.sent, PutList(plan.place, plan.list_name, Survivors(tuple(sorted(found)))))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was put goes with the pass."""


def _stored(plan: _Plan, segment: int, held: list[Longs]) -> list[tuple[int, ScratchPart]]:
    if not held:
        return []
    item = PutSurvivors(plan.place, np.concatenate(held).tobytes())
    return [(segment, _perform(STORE_SURVIVORS, plan.sent, item))]


# -- in the driver -----------------------------------------------------------------------------------------------------


class SparkKeyAggregate:
    """On a session of the caller's; `tools` are those of the driver, which reads where the survivors are.

    Tasks of the aggregation return rows, so they cannot return what they counted. `on_requests` receives the requests
    that the aggregation consists of, without latencies and repeats.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        tools: TaskTools,
        on_requests: OnRequests = lambda _: None,
    ) -> None:
        self._spark, self._sent, self._tools, self._on_requests = spark, sent_settings(settings), tools, on_requests
        with own_interpreter(spark):
            spark.dataSource.register(KeyScanSource)

    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> dict[int, ScratchPart]:
        list_name = f"{place.prefix}survivors-{secrets.token_hex(8)}"
        plan = _Plan(place, self._sent, list_name, tuple(helpings_of(scanned)))
        if not plan.helpings:
            return {}
        tag = f"llog-keys-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(self._aggregate, plan, tag)
        except asyncio.CancelledError:
            with suppress(Exception):  # what is being raised already matters more
                await asyncio.to_thread(interrupt, self._spark, tag)
            raise
        found = (await get_list(self._tools, place, list_name)).by_segment
        if len(dict(found)) != len(found):
            raise SparkJobFailed(PLACE, "the survivors of a segment came from two tasks")
        self._on_requests({place.store_url: requests_of(scanned, [part for _, part in found])})
        return dict(found)

    def _aggregate(self, plan: _Plan, tag: str) -> None:
        from pyspark.sql import functions

        head = msgspec.structs.replace(plan, helpings=())
        try:
            make_active(self._spark)
            with tagged(self._spark, tag):
                rows = self._spark.read.format(NAME).option("plan", plan.packed()).load()
                # Segments of a log rise with its offsets: the highest segment is the one of the highest offset.
                last = rows.groupBy("log", "key").agg(
                    functions.max("offset").alias("offset"), functions.max("segment").alias("segment")
                )
                by_segment = last.select("segment", "offset").repartition("segment")
                ordered = by_segment.sortWithinPartitions("segment", "offset")
                ordered.write.format(NAME).mode("append").option("plan", head.packed()).save()
        except Exception as error:
            raise failure_of(PLACE, error) from error


def requests_of(scanned: Sequence[SegmentKeys], written: Sequence[ScratchPart]) -> StoreCounts:
    """Each object of keys is read once; each object of survivors, and their list, is put once."""
    read = [part.byte_length for keys in scanned for part in keys.parts]
    return {
        "get": OperationCounts({"ok": len(read)}, len(read), sum(read)),
        "put": OperationCounts({"ok": len(written) + 1}, len(written) + 1, sum(part.byte_length for part in written)),
    }


def helpings_of(scanned: Sequence[SegmentKeys]) -> Iterator[_Helping]:
    """Objects in order, some per task; a larger one is a task of its own."""
    held: list[tuple[int, int, ScratchPart]] = []
    size_bytes = 0
    for keys in scanned:
        for part in keys.parts:
            if held and size_bytes + part.byte_length > KEY_AGGREGATE_TASK_BYTES:
                yield _Helping(tuple(held))
                held, size_bytes = [], 0
            held.append((keys.log, keys.segment, part))
            size_bytes += part.byte_length
    if held:
        yield _Helping(tuple(held))
