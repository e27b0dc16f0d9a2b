"""`llog.scan`: a topic's records as Arrow record batches, without Spark, with the same planner and kernels.

    for batch in llog.scan("orders"):
        ...
    table = llog.scan("orders", columns=["key", "value"], starting_timestamp=yesterday).to_arrow()
    duckdb.sql("select count(*) from scan")            # scan = llog.scan("orders"): an Arrow stream

Each iteration plans anew from the current log, and reads up to the end the log had when it was planned. A few threads
read splits concurrently; batches come in order: by topic, partition and offset for compacted records, by time of
writing for slices of shared blobs. Stores and threads live as long as an iteration, and the batches that wait for the
caller are bounded.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from operator import index
from typing import Final, SupportsIndex

import pyarrow as pa

from llog.errors import InvalidArgument
from llog.limits import SPLIT_BYTES_DEFAULT, SPLIT_BYTES_MAX, SPLIT_BYTES_MIN
from llog.log.keys import OFFSET_MAX, Log, check_topic
from llog.log.metrics import LogMetrics
from llog.log.read.fetch import Fetcher
from llog.pipeline.scan.plan import ScanRequest, plan_again, plan_scan
from llog.pipeline.scan.pump import LoopThread, pump
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.split_read import split_batches
from llog.pipeline.scan.splits import ScanRange, Split
from llog.pipeline.scan.subscription import EARLIEST, LATEST, ReadBound, Subscription
from llog.settings import Settings
from llog.wiring import OpenedLog, open_log

# Splits that a scan reads at the same time.
SCAN_THREADS_DEFAULT: Final = 2
SCAN_THREADS_MAX: Final = 32

Offsets = str | int | Mapping[int, int] | Mapping[str, Mapping[int, int]]
Instant = int | datetime
_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}


def scan(
    topic: str | Sequence[str] | None = None,
    *,
    partitions: Sequence[int] | None = None,
    pattern: str | None = None,
    starting_offsets: Offsets = "earliest",
    ending_offsets: Offsets = "latest",
    starting_timestamp: Instant | None = None,
    ending_timestamp: Instant | None = None,
    columns: Sequence[str] | None = None,
    split_bytes: int = SPLIT_BYTES_DEFAULT,
    fail_on_data_loss: bool = True,
    threads: int = SCAN_THREADS_DEFAULT,
    settings: Settings | None = None,
    metrics: LogMetrics | None = None,
    **overrides: object,
) -> Scan:
    """The records of a topic, of several topics, or of all topics with a name that matches `pattern`.

    `partitions` limits the scan to some partitions. Offsets are `earliest`, `latest`, an offset for all partitions,
    `{partition: offset}`, or `{topic: {partition: offset}}`; the ending offset is excluded. Timestamps are milliseconds
    since 1970 or a datetime with a time zone, mean the first record at least as new, and take precedence over offsets.
    Further keywords are settings: `metadata_url=…`, `objects_url=…`; the default is the environment.
    """
    _check_number("threads", threads, 1, SCAN_THREADS_MAX)
    _check_number("split_bytes", split_bytes, SPLIT_BYTES_MIN, SPLIT_BYTES_MAX)
    if isinstance(columns, str):
        raise InvalidArgument("columns", f"{columns!r} is one string; give a list of column names")
    topics = _topics(topic)
    request = ScanRequest(
        subscription=_subscription(topics, partitions, pattern),
        starting=_bound("starting_offsets", starting_offsets, "starting_timestamp", starting_timestamp, topics),
        ending=_bound("ending_offsets", ending_offsets, "ending_timestamp", ending_timestamp, topics),
        split_bytes=split_bytes,
        fail_on_data_loss=fail_on_data_loss,
        shape=Shape(None if columns is None else tuple(columns)),
    )
    in_force = Settings.from_env(None, **overrides) if settings is None else settings.replaced(**overrides)
    return Scan(request, in_force, threads, metrics)


class Scan:
    """Iterate over it, or pass it to any consumer of Arrow streams, as often as needed."""

    def __init__(self, request: ScanRequest, settings: Settings, threads: int, metrics: LogMetrics | None) -> None:
        self._request, self._settings, self._threads, self._metrics = request, settings, threads, metrics

    @property
    def schema(self) -> pa.Schema:
        return self._request.shape.schema

    def plan(self) -> list[Split]:
        """The splits that an iteration would read now."""
        with self._opened() as (loop, opened):
            return loop.run(plan_scan(opened.context, self._request))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        request, context_metrics = self._request, self._metrics
        with (
            self._opened() as (loop, opened),
            ThreadPoolExecutor(self._threads, thread_name_prefix="llog-scan") as decoders,
        ):
            context = opened.context
            fetcher = Fetcher(context.find_object, context_metrics)

            async def replan(ranges: Sequence[ScanRange]) -> list[Split]:
                return await plan_again(
                    context, ranges, split_bytes=request.split_bytes, fail_on_data_loss=request.fail_on_data_loss
                )

            splits = loop.run(plan_scan(context, request))
            yield from pump(
                loop,
                lambda split: split_batches(fetcher, split, shape=request.shape, replan=replan, decode_in=decoders),
                splits,
                at_once=self._threads,
            )

    def reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_arrow(self) -> pa.Table:
        """All records as one table in memory."""
        return pa.Table.from_batches(list(self), self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        wanted = self._request.subscription
        of = wanted.topics or (wanted.pattern,) if not wanted.assigned else wanted.assigned
        return f"<llog.scan of {', '.join(map(str, of))}>"

    @contextmanager
    def _opened(self) -> Generator[tuple[LoopThread, OpenedLog], None, None]:
        loop = LoopThread("llog-scan-loop")
        try:
            opened = loop.run(open_log(self._settings))
            try:
                yield loop, opened
            finally:
                loop.run(opened.close())
        finally:
            loop.stop()


def _subscription(topics: tuple[str, ...], partitions: Sequence[int] | None, pattern: str | None) -> Subscription:
    if partitions is None:
        return Subscription(topics, pattern)
    if not isinstance(partitions, Iterable):
        raise InvalidArgument("partitions", f"{partitions!r} must be a list of partition numbers")
    if pattern is not None or not topics:
        raise InvalidArgument("partitions", "need topics by name; a pattern or no topic was given")
    numbers = [_partition("partitions", number) for number in partitions]
    if not numbers:
        raise InvalidArgument("partitions", "the list is empty")
    return Subscription(assigned=tuple(Log(check_topic(topic), number) for topic in topics for number in numbers))


def _bound(
    offsets_option: str, offsets: Offsets, time_option: str, instant: Instant | None, topics: tuple[str, ...]
) -> ReadBound:
    ending = offsets_option.startswith("ending")
    if instant is not None:
        # Newer than every record: a start there reads nothing yet, an end there reads everything.
        return ReadBound(time_option, timestamp_ms=_milliseconds(time_option, instant), newer_than_all="latest")
    if isinstance(offsets, str):
        if offsets not in _NAMED:
            raise InvalidArgument(offsets_option, f"{offsets!r} is neither 'earliest' nor 'latest'")
        return ReadBound(offsets_option, all_logs=_NAMED[offsets])
    if (offset := _whole(offsets)) is not None:
        if not EARLIEST <= offset <= OFFSET_MAX:
            raise InvalidArgument(offsets_option, f"{offset} must be an offset, -1 (latest) or -2 (earliest)")
        return ReadBound(offsets_option, all_logs=offset)
    if not isinstance(offsets, Mapping):
        raise InvalidArgument(
            offsets_option, f"{offsets!r} must be 'earliest', 'latest', an offset, or offsets by partition"
        )
    by_topic = {key: value for key, value in offsets.items() if isinstance(key, str) and isinstance(value, Mapping)}
    if len(by_topic) != len(offsets):
        if by_topic or len(topics) != 1:
            raise InvalidArgument(offsets_option, "several topics need {topic: {partition: offset}}")
        by_topic = {topics[0]: offsets}  # type: ignore[dict-item]
    by_log = {
        Log(topic, _partition(offsets_option, number)): offset
        for topic, of in by_topic.items()
        for number, offset in of.items()
    }
    for log, value in by_log.items():
        if _whole(value) is None:
            raise InvalidArgument(
                offsets_option, f"{log}: {value!r} is neither an offset nor -1 (latest) or -2 (earliest)"
            )
    return ReadBound(offsets_option, by_log=by_log, all_logs=LATEST if ending else EARLIEST)


def _milliseconds(option: str, instant: Instant) -> int:
    if (milliseconds := _whole(instant)) is not None:
        return milliseconds
    if not isinstance(instant, datetime):
        raise InvalidArgument(option, f"{instant} must be milliseconds since 1970 or a datetime")
    if instant.tzinfo is None:
        raise InvalidArgument(option, f"{instant} needs a time zone")
    microseconds = round(instant.timestamp() * 1_000_000)
    return -(-microseconds // 1_000)


# -- checks of arguments -----------------------------------------------------------------------------------------------


def _topics(topic: object) -> tuple[str, ...]:
    if topic is None or isinstance(topic, str):
        return () if topic is None else (topic,)
    if not isinstance(topic, Iterable):
        raise InvalidArgument("topic", f"{topic!r} must be a topic name or a list of topic names")
    return tuple(check_topic(name) for name in topic)


def _whole(value: object) -> int | None:
    """An integer of any kind, numpy's included; None for anything else."""
    if isinstance(value, bool):
        return None
    return index(value) if isinstance(value, SupportsIndex) else None


def _partition(argument: str, value: object) -> int:
    number = _whole(value)
    if number is None:
        raise InvalidArgument(argument, f"{value!r} must be a partition number")
    return number


def _check_number(argument: str, value: object, least: int, most: int) -> None:
    number = _whole(value)
    if number is None or not least <= number <= most:
        raise InvalidArgument(argument, f"{value!r} must be an integer from {least} to {most}")
