"""Reading a split in a Python worker of Spark, and what such a worker keeps from task to task.

A worker handles one task after the other; connections and segment footers serve all of them. A thread decodes records
while the worker's main thread passes them to Spark.

An executor needs the object store only. If an object of the plan is gone (R10) it asks the metadata store, provided
that it can reach it and that it is the cluster the read was planned from: an empty store would make records look lost.
Otherwise the read ends with an error that says so, and running the query again plans anew.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from llog.errors import ClusterMismatch, InvalidArgument, LlogError, ObjectNotFound, RecordsLost
from llog.formats.values import ClusterId, decode_value
from llog.limits import SPARK_WORKER_TOOLS_MAX
from llog.log.context import LogContext
from llog.log.read.fetch import Fetcher
from llog.pipeline.runtime.tasks import TaskTools
from llog.pipeline.scan.plan import ScanRequest, plan_again
from llog.pipeline.scan.pump import LoopThread, pump
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.split_read import split_batches
from llog.pipeline.scan.splits import ScanRange, Split
from llog.settings import Settings
from llog.settings.urls import mask_url, scheme_of
from llog.spark.runner.worker import keep_worker_memory, sent_settings, settings_in_worker, tools_on
from llog.wiring import ObjectStores, opened_log

_NAMES_METADATA: Final = ("LLOG_METADATA_URL", "LLOG_OXIA_SERVICE_ADDRESS")


class SplitWork(msgspec.Struct, frozen=True):
    """A split as it travels to an executor, with the settings that name its stores."""

    split: Split
    shape: Shape
    sent: dict[str, str | int]
    split_bytes: int
    fail_on_data_loss: bool
    metadata_url: str | None
    """None: it contains a secret, which is not sent; the executor's own LLOG_METADATA_URL counts."""
    cluster_id: str | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SplitWork)


async def encode_works(
    context: LogContext, settings: Settings, request: ScanRequest, splits: Sequence[Split]
) -> list[bytes]:
    """The splits of a request, encoded for executors."""
    sent, url = sent_settings(settings), settings.metadata_url
    head = SplitWork(
        split=Split((), 0),
        shape=request.shape,
        sent=sent,
        split_bytes=request.split_bytes,
        fail_on_data_loss=request.fail_on_data_loss,
        metadata_url=url if mask_url(url) == url else None,
        cluster_id=await _cluster_id(context),
    )
    return [_ENCODER.encode(replace(head, split=split)) for split in splits]


async def _cluster_id(context: LogContext) -> str | None:
    record = await context.metadata.get(context.keys.cluster_id(), strict=True)
    return None if record is None else decode_value(ClusterId, record.value, record.key.path).cluster_id


class WorkerStores(NamedTuple):
    objects: ObjectStores
    tools: TaskTools
    fetcher: Fetcher


class WorkerProcess:
    """What a Python worker of Spark keeps from task to task: an event loop, and a bounded number of sets of stores."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        keep_worker_memory()
        self.loop = LoopThread("llog-worker")
        self._stores: OrderedDict[bytes, WorkerStores] = OrderedDict()

    def stores(self, sent: Mapping[str, str | int]) -> WorkerStores:
        key = msgspec.msgpack.encode(sent, order="sorted")
        if key not in self._stores:
            while len(self._stores) >= SPARK_WORKER_TOOLS_MAX:
                self.loop.run(self._stores.popitem(last=False)[1].objects.close())
            objects = ObjectStores(settings_in_worker(sent, os.environ))
            tools = tools_on(objects)
            self._stores[key] = WorkerStores(objects, tools, Fetcher(tools.find_object))
        self._stores.move_to_end(key)
        return self._stores[key]


_process: WorkerProcess | None = None


def worker_process() -> WorkerProcess:
    """The one of this process: nothing is opened before a fork."""
    global _process
    if _process is None or _process.pid != os.getpid():
        _process = WorkerProcess()
    return _process


def read_work(encoded: bytes) -> Iterator[pa.RecordBatch]:
    """The records of a split as Arrow batches."""
    work, process = _DECODER.decode(encoded), worker_process()
    fetcher = process.stores(work.sent).fetcher

    async def replan(ranges: Sequence[ScanRange]) -> list[Split]:
        return await _plan_again(work, ranges)

    return pump(
        process.loop,
        lambda split: split_batches(fetcher, split, shape=work.shape, replan=replan),
        [work.split],
        at_once=1,
    )


async def _plan_again(work: SplitWork, ranges: Sequence[ScanRange]) -> list[Split]:
    try:
        async with opened_log(_settings_to_plan(work)) as opened:
            if work.cluster_id is None or await _cluster_id(opened.context) != work.cluster_id:
                raise ClusterMismatch(
                    mask_url(opened.context.metadata.url), "the read was planned from another cluster"
                )
            return await plan_again(
                opened.context, ranges, split_bytes=work.split_bytes, fail_on_data_loss=work.fail_on_data_loss
            )
    except RecordsLost:
        raise
    except LlogError as error:
        where = ", ".join(str(wanted.log) for wanted in ranges[:3])
        reason = (
            "it was removed after the read was planned, and this executor cannot plan again: run the query again"
            f" ({type(error).__name__}: {error})"
        )
        raise ObjectNotFound("read", f"an object of {where}", reason) from error


def _settings_to_plan(work: SplitWork) -> Settings:
    """The settings of the plan with this process's secrets. A metadata store is never created here."""
    if work.metadata_url is None and not any(os.environ.get(name) for name in _NAMES_METADATA):
        raise InvalidArgument(
            "metadata_url", "contains a secret, so it was not sent to this executor; set LLOG_METADATA_URL there"
        )
    named = {} if work.metadata_url is None else {"metadata_url": work.metadata_url}
    settings = Settings.from_env(None, **work.sent, **named)
    url = settings.metadata_url
    if scheme_of(url) == "lmdb" and not Path(url.removeprefix("lmdb://")).is_dir():
        raise InvalidArgument("metadata_url", f"{url} is not on this machine")
    return settings
