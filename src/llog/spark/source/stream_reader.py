"""The data source's streaming reader: how far a query may go, and what a micro-batch reads.

A query has one Python process that plans as long as it runs and opens the stores once. For each trigger Spark asks how
far the next batch goes (`latestOffset`) and for its splits (`partitions`), also for a batch from before a restart. New
topics and partitions are picked up; a new partition is read from its start.

With `groupId` the query commits its progress as positions of that consumer group. When Spark asks how far to go from
`start`, every record below `start` has been processed and its batch committed, so `start` is committed then. (Spark's
own `commit` comes a batch later, and not for the last batch.)

Offsets in a checkpoint keep their meaning for good, whatever was compacted since. Records that retention or a deletion
removed before they were read are an error; with failOnDataLoss=false they are logged and skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from llog.broker.groups.positions import GroupPositions, Position
from llog.errors import GroupHasMembers, InvalidArgument, RecordsLost
from llog.log.keys import Log
from llog.pipeline.scan.plan import splits_between
from llog.pipeline.scan.pump import LoopThread
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.stream_offsets import (
    LAG,
    StreamOffsets,
    from_json,
    is_same_topic,
    lag_of,
    limited_by_bytes,
    limited_by_offsets,
    mismatch,
    stream_at,
)
from llog.pipeline.scan.subscription import LogEnds, find_logs, offsets_at, ranges_between
from llog.spark.principal import act_as_query
from llog.spark.source.metadata_retry import with_metadata_retry
from llog.spark.source.options import SourceOptions
from llog.spark.source.reader import SplitPartition
from llog.spark.source.worker import encode_works, read_work
from llog.spark.user_errors import in_one_sentence
from llog.wiring import OpenedLog, open_log

POSITION: Final = "the stream's position"
"""The name of a checkpoint's offsets in error messages."""
GONE: Final = "its topic was deleted, or is no longer subscribed to"
_log: Final = logging.getLogger("llog.spark")
T = TypeVar("T")


class LlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._request = replace(options.request, shape=Shape(tuple(columns)))
        self._planner: _Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @property
    def _planning(self) -> _Planner:
        if self._planner is None:
            self._planner = _Planner(self._options)
        return self._planner

    @in_one_sentence()
    def initialOffset(self) -> dict[str, Any]:
        return self._planning.run(self._planning.initial).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_per_trigger is not None:
            return ReadMaxRows(options.offsets_per_trigger)
        if options.bytes_per_trigger is not None:
            return ReadMaxBytes(options.bytes_per_trigger)
        return ReadAllAvailable()

    @in_one_sentence()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        planning, begin = self._planning, from_json(start)
        planning.run(lambda: planning.commit_positions(begin))
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows is not None:
            # Spark passes one limit; if both options are given, both hold.
            size = self._options.bytes_per_trigger
        latest = planning.run(lambda: planning.latest(begin, rows, size))
        planning.reached = latest.offsets
        return latest.to_json()

    @in_one_sentence()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of the query: the ends of the logs, and how far the next batch is behind them."""
        planning = self._planning
        ends = planning.run(planning.ends)
        lag = lag_of(planning.reached, ends.offsets)
        return ends.to_json() | ({LAG: lag} if lag else {})

    @in_one_sentence()
    def prepareForTriggerAvailableNow(self) -> None:
        self._planning.run(self._planning.fix_target)

    @in_one_sentence()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planning, begin, stop = self._planning, from_json(start), from_json(end)
        works = planning.run(lambda: planning.works(begin, stop, self._request.shape))
        return [SplitPartition(work) for work in works]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SplitPartition)
        with in_one_sentence():
            yield from read_work(partition.work)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


class RefusingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader for options that cannot be used: each call raises the error that names the option.

    If the data source itself raised it, Spark 4.3 would report an error of its own instead (it stops the reader that it
    did not get).
    """

    def __init__(self, argument: str, reason: str) -> None:
        self._argument, self._reason = argument, reason

    @in_one_sentence()
    def _refuse(self) -> NoReturn:
        raise InvalidArgument(self._argument, self._reason)

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()


class _Planner:
    """The planning of one query: an event loop, the opened log, and the target of AvailableNow."""

    def __init__(self, options: SourceOptions) -> None:
        self._options, self._request = options, options.request
        self._settings = options.settings_in_force()
        self._loop = LoopThread("llog-stream")
        try:
            self._opened: OpenedLog = self._loop.run(open_log(self._settings))
        except BaseException:
            self._loop.stop()
            raise
        self._target: dict[Log, int] | None = None
        self._committed: StreamOffsets | None = None
        self.reached: dict[Log, int] = {}
        """Where the last planned batch ends."""

    def close(self) -> None:
        try:
            self._loop.run(self._opened.close())
        finally:
            self._loop.stop()

    def run(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a request, which may be repeated."""
        return self._loop.run(with_metadata_retry(self._opened.context, request))

    # -- offsets -------------------------------------------------------------------------------------------------------
    async def initial(self) -> StreamOffsets:
        # Nothing can be lost yet: a missing topic means a wrong name.
        ends = await find_logs(self._opened.context, self._request.subscription)
        starts = await offsets_at(self._opened.context, self._request.starting, ends)
        # Errors name the option here; later the offsets are the stream's own.
        latest = {log: at.next_offset for log, at in ends.items()}
        ranges_between(
            starts,
            latest,
            ends,
            starting_option=self._request.starting.option,
            ending_option=self._request.starting.option,
            fail_on_data_loss=self._request.fail_on_data_loss,
        )
        return stream_at({log: min(start, latest[log]) for log, start in starts.items()}, ends)

    async def ends(self) -> StreamOffsets:
        ends = await self._find()
        return stream_at({log: at.next_offset for log, at in ends.items()}, ends)

    async def fix_target(self) -> None:
        self._target = (await self.ends()).offsets

    async def latest(self, begin: StreamOffsets, rows: int | None, size: int | None) -> StreamOffsets:
        ends = await self._find()
        starts = self._starts(begin, ends)
        stops = {log: max(starts[log], self._end(log, at)) for log, at in ends.items()}
        if rows is not None:
            stops = limited_by_offsets(starts, stops, rows)
        if size is not None:
            stops = await limited_by_bytes(self._opened.context, starts, stops, size)
        return stream_at(stops, ends)

    def _end(self, log: Log, at: LogEnds) -> int:
        if self._target is None:
            return at.next_offset
        # A log that was created after the target was fixed is left to the next run.
        return min(at.next_offset, self._target.get(log, at.log_start_offset))

    async def _find(self) -> dict[Log, LogEnds]:
        skip_missing = not self._request.fail_on_data_loss
        return await find_logs(self._opened.context, self._request.subscription, skip_missing=skip_missing)

    def _starts(self, begin: StreamOffsets, ends: Mapping[Log, LogEnds]) -> dict[Log, int]:
        """The next offset of each log; the first one for a log that is new or of a new incarnation."""
        for log in sorted(begin.offsets.keys() - ends.keys()):
            self._report_loss(log, begin.offsets[log], GONE)
        starts: dict[Log, int] = {}
        for log, at in ends.items():
            known = begin.offsets.get(log)
            if known is not None and (reason := mismatch(begin, log, at)):
                self._report_loss(log, known, reason)
                known = None
            if known is not None and known < at.log_start_offset:
                self._report_loss(log, known, f"the log now begins at offset {at.log_start_offset}")
                known = None
            starts[log] = at.log_start_offset if known is None else known
        return starts

    def _report_loss(self, log: Log, offset: int, reason: str) -> None:
        if self._request.fail_on_data_loss:
            error = RecordsLost(*log, offset, reason)
            error.args = (f"{POSITION}: {error}; set failOnDataLoss=false to skip them",)
            raise error
        _log.warning("%s: records from offset %d on are lost: %s", log, offset, reason)

    # -- a micro-batch -------------------------------------------------------------------------------------------------
    async def works(self, begin: StreamOffsets, end: StreamOffsets, shape: Shape) -> list[bytes]:
        ends = {log: at for log, at in (await self._find()).items() if log in end.offsets}
        for log in sorted(end.offsets.keys() - ends.keys()):
            self._report_loss(log, begin.offsets.get(log, 0), GONE)
        for log, at in list(ends.items()):
            if reason := mismatch(end, log, at):
                self._report_loss(log, begin.offsets.get(log, 0), reason)
                del ends[log]
        ranges = ranges_between(
            self._batch_starts(begin, end, ends),
            {log: end.offsets[log] for log in ends},
            ends,
            starting_option=POSITION,
            ending_option=POSITION,
            fail_on_data_loss=self._request.fail_on_data_loss,
        )
        request = replace(self._request, shape=shape)
        splits = await splits_between(self._opened.context, request, ranges)
        return await encode_works(self._opened.context, self._settings, request, splits)

    def _batch_starts(self, begin: StreamOffsets, end: StreamOffsets, ends: Mapping[Log, LogEnds]) -> dict[Log, int]:
        starts: dict[Log, int] = {}
        for log, at in ends.items():
            first = min(at.log_start_offset, end.offsets[log])
            known = begin.offsets.get(log, first) if is_same_topic(begin, end, log.topic) else first
            # A trigger moves no offset back: an offset past the end belongs to an earlier log of that name.
            starts[log] = known if known <= end.offsets[log] else first
        return starts

    # -- progress ------------------------------------------------------------------------------------------------------
    async def commit_positions(self, begin: StreamOffsets) -> None:
        """Commit the offsets as positions of the consumer group, if they moved."""
        if self._options.group is None or begin == self._committed:
            return
        act_as_query(None)
        group = GroupPositions(self._opened.context)
        # Positions of a topic that was created again would skip records that were never read.
        ends = await find_logs(self._opened.context, self._request.subscription, skip_missing=True)
        positions = {
            log: Position(offset)
            for log, offset in sorted(begin.offsets.items())
            if log in ends and mismatch(begin, log, ends[log]) is None
        }
        try:
            outcomes = await group.commit_all(self._options.group, positions)
        except GroupHasMembers as refused:
            _log.warning("the positions of this query are not committed: %s", refused)
            return
        for log, error in outcomes.items():
            if error is not None:
                _log.warning("group %s: cannot commit the position of %s: %s", self._options.group, log, error)
        self._committed = begin
