"""Work items as a data source: Spark makes one task per input partition, and an input partition carries one item.

A data source plans in Python, so it works in classic and in Connect sessions, makes exactly one task per item, and
moves only items and outcomes. (Connect has no RDDs, and mapping over rows does not control how they are split.)

The reader, which Spark sends with every task, carries no items. Options hold no secrets, because Spark shows plans.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from llog.spark.runner.worker import JobHead
from llog.limits import KIB

# What follows an outcome, so that it does not wait in a buffer of 8 KiB.
SPARK_PUSH_BYTES: Final = 16 * KIB

NAME: Final = "llog_tasks"
COLUMNS: Final = "number int, outcome binary"
PUSH: Final = -1
"""The number of a row that is no outcome."""
# Spark's own form of these columns.
_SCHEMA: Final = pa.schema([("number", pa.int32()), ("outcome", pa.binary())])
_ITEMS: Final = msgspec.msgpack.Decoder(list[bytes])


def options_of(head: JobHead, first: int, items: Sequence[bytes], *, pushed: bool) -> dict[str, str]:
    """The options that make this source perform these items, numbered from `first`.

    `pushed`: each outcome reaches the driver as soon as it is known. A classic session sends rows through a buffer
    that keeps what does not fill a block of 8 KiB; so each outcome is followed by a row that pushes it out.
    """
    return {
        "head": base64.b64encode(msgspec.msgpack.encode(head)).decode(),
        "first": str(first),
        "items": base64.b64encode(zlib.compress(msgspec.msgpack.encode(list(items)), 1)).decode(),
        "pushed": "true" if pushed else "false",
    }


class TaskPartition(InputPartition):
    def __init__(self, number: int, item: bytes) -> None:
        super().__init__(number)
        self.number, self.item = number, item


class TaskSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return TaskReader(self.options)


class TaskReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._head = base64.b64decode(options["head"])
        self._pushed = options["pushed"] == "true"
        self._first, self._items = int(options["first"]), str(options["items"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": ""}

    def partitions(self) -> Sequence[InputPartition]:
        items = _ITEMS.decode(zlib.decompress(base64.b64decode(self._items)))
        return [TaskPartition(self._first + place, item) for place, item in enumerate(items)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        # Imported late: processes that plan import this module too, and need no stores and kernels.
        from llog.spark.runner.worker import JobHead, run_item

        head = msgspec.msgpack.decode(self._head, type=JobHead)
        outcome = run_item(head, partition.item)
        rows = [(partition.number, outcome)]
        if self._pushed:
            rows.append((PUSH, b"\0" * SPARK_PUSH_BYTES))
        numbers, outcomes = zip(*rows, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(numbers, pa.int32()), pa.array(outcomes, pa.binary())], schema=_SCHEMA
        )
