"""What runs in a Python worker of Spark to read a split: this process's loop, stores and fetcher.

Why it exists: a worker reads one split after the other, and connections and segment footers are good for all of them.
Records are decoded on a thread of their own while the worker's main thread hands them to Spark.

What must stay true: nothing is opened before the fork; the sets of stores are bounded. An executor needs the object
store alone. Only where an object of the plan is gone (R10) is the metadata store asked, if this process can reach it,
and only if it is the one the read was planned from (an empty one would make records look lost). Where it cannot, the
read ends with an error that says so, and running the query again plans anew.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
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
from llog.opening import opened_log
from llog.pipeline.scan.plan import ScanRequest, plan_again
from llog.pipeline.scan.pump import LoopThread, pump
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.split_read import split_batches
from llog.pipeline.scan.splits import ScanRange, Split
from llog.settings import Settings
from llog.settings.urls import mask_url, scheme_of
from llog.spark.runner.worker import keep_freed_memory, sent_settings, settings_in_worker, tools_on
from llog.wiring import ObjectStores

_NAMES_METADATA: Final = ("LLOG_METADATA_URL", "LLOG_OXIA_SERVICE_ADDRESS")


class SplitWork(msgspec.Struct, frozen=True):
    """A split on its way to an executor, with what names its stores."""

    split: Split
    shape: Shape
    sent: dict[str, str | int]
    split_bytes: int
    fail_on_data_loss: bool
    metadata_url: str | None
    """None: it holds a secret, which is not sent; the executor's own LLOG_METADATA_URL counts."""
    cluster_id: str | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SplitWork)


async def encoded_works(
    context: LogContext, settings: Settings, request: ScanRequest, splits: Sequence[Split]
) -> list[bytes]:
    """The splits of a request, as they travel."""
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
    found = await context.metadata.get(context.keys.cluster_id(), strict=True)
    return None if found is None else decode_value(ClusterId, found.value, found.key.path).cluster_id


class _Opened(NamedTuple):
    objects: ObjectStores
    fetcher: Fetcher


class _Process:
    def __init__(self) -> None:
        self.number = os.getpid()
        keep_freed_memory()
        self.loop = LoopThread("llog-source")
        self._opened: OrderedDict[bytes, _Opened] = OrderedDict()

    def opened(self, work: SplitWork) -> _Opened:
        key = msgspec.msgpack.encode(work.sent, order="sorted")
        if key not in self._opened:
            while len(self._opened) >= SPARK_WORKER_TOOLS_MAX:
                self.loop.run(self._opened.popitem(last=False)[1].objects.close())
            objects = ObjectStores(settings_in_worker(work.sent, os.environ))
            self._opened[key] = _Opened(objects, Fetcher(tools_on(objects).find_object))
        self._opened.move_to_end(key)
        return self._opened[key]


_process: _Process | None = None


def read_work(encoded: bytes) -> Iterator[pa.RecordBatch]:
    """The records of a split, as Spark wants them."""
    global _process
    if _process is None or _process.number != os.getpid():
        _process = _Process()
    work = _DECODER.decode(encoded)
    fetcher = _process.opened(work).fetcher

    async def replan(ranges: Sequence[ScanRange]) -> list[Split]:
        return await _planned_again(work, ranges)

    return pump(
        _process.loop,
        lambda split: split_batches(fetcher, split, shape=work.shape, replan=replan),
        [work.split],
        at_once=1,
    )


async def _planned_again(work: SplitWork, ranges: Sequence[ScanRange]) -> list[Split]:
    try:
        async with opened_log(_settings_to_plan(work)) as opened:
            if work.cluster_id is None or await _cluster_id(opened.context) != work.cluster_id:
                raise ClusterMismatch(mask_url(opened.context.metadata.url), "the read was planned from another")
            return await plan_again(
                opened.context, ranges, split_bytes=work.split_bytes, fail_on_data_loss=work.fail_on_data_loss
            )
    except RecordsLost:
        raise
    except LlogError as error:
        where = ", ".join(str(wanted.log) for wanted in ranges[:3])
        reason = (
            "it was there when the read was planned, and this executor cannot plan again: run the query again"
            f" ({type(error).__name__}: {error})"
        )
        raise ObjectNotFound("read", f"an object of {where}", reason) from error


def _settings_to_plan(work: SplitWork) -> Settings:
    """Those of the plan, with this process's secrets; a store is never made where there is none."""
    if work.metadata_url is None and not any(os.environ.get(name) for name in _NAMES_METADATA):
        raise InvalidArgument("metadata_url", "holds a secret, so it was not sent, and LLOG_METADATA_URL is not set")
    named = {} if work.metadata_url is None else {"metadata_url": work.metadata_url}
    settings = Settings.from_env(None, **work.sent, **named)
    url = settings.metadata_url
    if scheme_of(url) == "lmdb" and not Path(url.removeprefix("lmdb://")).is_dir():
        raise InvalidArgument("metadata_url", f"{url} is not on this machine")
    return settings
