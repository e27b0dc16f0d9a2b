"""A small log and places to export it to, for the tests of exports."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llog.formats.arrow import SCHEMA
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appender, EncodedGroup
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.iceberg import IcebergTarget, open_catalogue
from llog.pipeline.export.job import ExportReport, export
from llog.pipeline.export.parquet import ParquetTarget
from llog.pipeline.export.plan import ExportTarget
from llog.pipeline.runtime.tasks import LocalTasks, TaskTools
from llog.settings import Settings
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from llog.wiring import open_object_store
from tests.contract.log_suite import context_on

DAY_MS = 86_400_000
DAY_0_MS = 20_000 * DAY_MS


def raw_rows(records: Sequence[tuple[int, int, bytes | None]]) -> pa.RecordBatch:
    """Records (partition, offset, value) as the reader of splits gives them."""
    count = len(records)
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(count, pa.binary()),
            pa.array([value for _, _, value in records], pa.binary()),
            pa.array(["orders"] * count),
            pa.array([partition for partition, _, _ in records], pa.int32()),
            pa.array([offset for _, offset, _ in records], pa.int64()),
            pa.array([0] * count, SCHEMA.field("timestamp").type),
            pa.array([0] * count, pa.int32()),
            pa.array([[]] * count, SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )


KINDS = ["parquet", "iceberg"]
ORDER_SCHEMA = json.dumps(
    {"type": "object", "properties": {"id": {"type": "integer"}, "item": {"type": "string"}}, "required": ["id"]}
)


class Exporting:
    """One topic in memory, and exports of it."""

    def __init__(self, directory: Path, *, context: LogContext | None = None) -> None:
        self.directory = directory
        self.objects = MemoryObjectStore(f"memory://export-{uuid.uuid4().hex}")
        store = MemoryStore(MemoryBacking(shards=1, atomic_groups=True))
        self.context = context or context_on(store, self.objects, 1)
        self.settings = Settings.from_env(
            {}, data_dir=str(directory / "data"), objects_url=f"file://{directory}/objects"
        )
        self.opened: dict[str, ObjectStore] = {}
        self.wrote: dict[tuple[int, int], bytes | None] = {}
        self._rng = random.Random(5)

    async def open_store(self, url: str) -> ObjectStore:
        if url not in self.opened:
            self.opened[url] = await open_object_store(url, self.settings, writing=True)
        return self.opened[url]

    def runner(self) -> LocalTasks:
        return LocalTasks(TaskTools(self.context.find_object, self.open_store))

    async def create(self, partitions: int = 2) -> None:
        await create_topic(self.context, "orders", partitions=partitions)

    async def write(
        self,
        count: int,
        *,
        partition: int = 0,
        value: Any = None,
        days: int = 2,
        batch: int = 10,
        key: bytes | None = None,
    ) -> None:
        """`count` records with timestamps over `days` days; `value` makes each of its number."""
        appender, log = Appender(self.context), Log("orders", partition)
        for first in range(0, count, batch):
            numbers = range(first, min(count, first + batch))
            values = [b"%d-%d" % (partition, n) if value is None else value(n) for n in numbers]
            stamps = [DAY_0_MS + (n * days // count) * DAY_MS + n for n in numbers]
            body = encode_records(values, timestamps_ms=stamps, keys=[key] * len(values) if key else None)
            group = EncodedGroup(log, len(values), "kafka-v2", [body], max(stamps))
            [done] = await appender.append([group])
            start: int = done.start_offset  # type: ignore[union-attr]
            self.wrote |= {(partition, start + i): one for i, one in enumerate(values)}

    async def parquet(self) -> ParquetTarget:
        return ParquetTarget(await self.open_store(f"file://{self.directory}/parquet"), "orders")

    async def iceberg(self, decoding: Decoding | None = None, *, by_date: bool = True) -> IcebergTarget:
        schema = Decoder(decoding or Decoding()).schema
        catalogue = open_catalogue(self.settings)
        return await IcebergTarget.open(catalogue, "shop.orders", schema, self._rng.getrandbits, by_date=by_date)

    async def run(self, target: ExportTarget, **options: Any) -> ExportReport:
        return await export(self.context, self.runner(), "orders", target, **options)

    def table(self) -> Any:
        return open_catalogue(self.settings).load_table("shop.orders")

    def found(self, kind: str) -> list[tuple[int, int, bytes | None]]:
        """Every record (partition, offset, value) that a reader of the directory, or of the table, sees."""
        if kind == "iceberg":
            rows = self.table().scan().to_arrow()
        else:
            root = self.directory / "parquet" / "orders"
            rows = pq.read_table(root) if root.exists() else pa.Table.from_batches([], SCHEMA)
        columns = rows["partition"].to_pylist(), rows["offset"].to_pylist(), rows["value"].to_pylist()
        return sorted(zip(*columns, strict=True))

    def check(self, kind: str) -> None:
        assert self.found(kind) == sorted((*place, value) for place, value in self.wrote.items())

    async def close(self) -> None:
        for store in self.opened.values():
            await store.close()


async def target_of(exporting: Exporting, kind: str, decoding: Decoding | None = None) -> ExportTarget:
    return await exporting.iceberg(decoding) if kind == "iceberg" else await exporting.parquet()
