"""The sink's task, from rows of a table to the blobs of many logs, compared with encoding alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pyarrow as pa

from llog.formats.arrow import from_arrow
from llog.formats.buffers import Buffer
from llog.formats.records.encode import encode_columns
from llog.formats.warm_up import warm_up
from llog.pipeline.runtime.tasks import TaskTools
from llog.pipeline.sink.task import SinkOrder, SinkTarget, Uploader
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.benchmarks.harness import Duel, benchmark

ROWS = 16_384
VALUE_BYTES = 1_000
BATCH_ROWS = 4_000
PARTITIONS = 10
NOW_MS = 1_800_000_000_000


class Nowhere(MemoryObjectStore):
    """Accepts puts and stores nothing."""

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        assert buffers


def rows() -> pa.RecordBatch:
    """Rows with a short key and a value of 1,000 bytes."""
    data = np.random.default_rng(1).integers(0, 256, ROWS * VALUE_BYTES, dtype=np.uint8)
    offsets = np.arange(ROWS + 1, dtype=np.int32) * VALUE_BYTES
    values = pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    keys = pa.array([b"%d" % row for row in range(ROWS)], pa.binary())
    return pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


@benchmark("sink_task", against="encoding the same rows as they lie", at_least=0.4, rounds=21, goal="≥ 300 MB/s")
@asynccontextmanager
async def sink_task() -> AsyncIterator[Duel]:
    """Partition by key, split, encode, checksum and frame for ten logs; the baseline only encodes, a megabyte at a
    time, and keeps what a blob would hold."""
    warm_up()
    table = rows()
    batches = [table.slice(at, BATCH_ROWS) for at in range(0, ROWS, BATCH_ROWS)]
    pieces = [table.slice(at, 1_000) for at in range(0, ROWS, 1_000)]
    store = Nowhere("memory://nowhere")

    async def open_store(_: str) -> ObjectStore:
        return store

    async def find_object(uri: str) -> tuple[ObjectStore, str]:
        return store, uri

    tools = TaskTools(find_object, open_store, lambda: NOW_MS)
    targets = {"orders": SinkTarget(incarnation=1, partition_count=PARTITIONS, message_bytes_max=1_048_588)}
    order = SinkOrder(store_url=store.url, root_prefix="llog", writer_id="bench", topic="orders", targets=targets)

    async def ours() -> None:
        uploader = Uploader(tools, order)
        for batch in batches:
            await uploader.add(batch)
        assert (await uploader.finish()).records == ROWS

    def baseline() -> None:
        body = [encode_columns(from_arrow(piece, timestamp_ms=NOW_MS)) for piece in pieces]
        assert len(body) == len(pieces)

    await ours()
    yield Duel(ours, baseline, ROWS * VALUE_BYTES / 1e6, "MB")
