"""Parquet files in a directory or bucket: `{url}/{topic}/partition=0/date=2026-11-16/….parquet`.

There is no table format, so a reader of the directory sees every file, and that must be each record once. So a round is
recorded before it begins (`_llog/{topic}/….plan`, created if absent), and files are named by plan and split: every
driver that performs a plan, again or concurrently, writes the same files under the same names. A recorded plan that is
not committed is finished first, as it was recorded, before the next plan. (If its options do not fit its records, an
operator discards it.) The commit (`….commit`, created if absent) lists the files and the offsets of the next plan.

    _llog/orders/999999999998.plan      a later plan has a lower name, so a listing begins with the latest;
    _llog/orders/999999999999.commit    and a commit comes before its own plan
    _llog/orders/999999999999.plan
    _llog/orders/999999999999.schemas-000    what drivers learnt of schema ids while they performed the plan

As in Hive, the partition is in the directory name and not in the file, because pyarrow and pandas refuse a column that
is in both. A column `date` of the records would be hidden by the directory's, so it is refused. Readers that skip names
with a leading underscore (Spark, Hive) can read the whole directory.

Later plans may add columns or make them wider (`evolution`). Then the files of a directory differ, and readers must
take the columns of all: the commits hold them, and a file `_common_metadata` in the directory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from llog.errors import (
    ExportRefused,
    InvalidArgument,
    InvalidField,
    ObjectAlreadyExists,
    ObjectNotFound,
    UnsupportedFormat,
)
from llog.pipeline.export.evolution import Columns, unpacked
from llog.pipeline.export.plan import ExportPaths, ExportPlan, Progress, Subject, evolved_subject
from llog.pipeline.export.schema_ids import WriterSchemas
from llog.pipeline.export.task import ExportWritten, WrittenFile, schema_ids_of
from llog.stores.objects.port import Buffer, ObjectStore

STATE_PREFIX: Final = "_llog"
QUARANTINE_PREFIX: Final = "_quarantine"
NEWEST_SCHEMA: Final = "_common_metadata"
_NUMBER_MAX: Final = 10**12 - 1
_FORMAT: Final = 1
# Records of schema ids that one plan may have: one for each time that a driver learnt some.
EXPORT_WRITERS_RECORDED_MAX: Final = 100


class ExportCommit(msgspec.Struct, frozen=True, kw_only=True):
    v: int = _FORMAT
    number: int
    subject: Subject
    next_offsets: dict[int, int]
    files: tuple[WrittenFile, ...]
    quarantine: tuple[WrittenFile, ...]
    created_at_ms: int
    by_date: bool | None = None
    schema_ids: tuple[int, ...] = ()
    """The schema ids that values of this commit named."""


class RecordedWriters(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver learnt of schema ids while it performed a plan."""

    v: int = _FORMAT
    writers: WriterSchemas


S = TypeVar("S", ExportPlan, ExportCommit, RecordedWriters)


class ParquetTarget:
    def __init__(self, store: ObjectStore, topic: str) -> None:
        self._store, self._topic = store, topic
        self.title = f"parquet:{store.url}/{topic}"
        self._by_date: bool | None = None
        """Of the last commit. All files must be equally deep, so that readers know which directories are columns."""
        self._columns: Columns | None = None
        """Of the last commit."""

    def paths(self) -> ExportPaths:
        quarantine = f"{QUARANTINE_PREFIX}/{self._topic}"
        return ExportPaths(self._store.url, self._topic, quarantine, path_columns=("partition",))

    def file_name(self, plan: ExportPlan, split: int) -> str:
        return f"{plan.number:012d}-{split:06d}"

    async def progress(self, subject: Subject) -> Progress:
        latest = await self._latest()
        self._columns = self._by_date = None
        if latest is None:
            return Progress(1, subject, {})
        number, kind = latest
        plan = await self._load_plan(number) if kind == "plan" else None
        committed = await self._load_commit(number if plan is None else number - 1)
        for held in (committed, plan):
            if held is not None:
                subject = evolved_subject(self.title, subject, held.subject)
        reached = {} if committed is None else committed.next_offsets
        schema_ids = () if committed is None else committed.schema_ids
        if committed is not None:
            self._by_date, self._columns = committed.by_date, committed.subject.columns
        return Progress(number + (plan is None), subject, reached, plan, schema_ids)

    async def begin(self, plan: ExportPlan) -> ExportPlan:
        if plan.by_date and any(name.lower() == "date" for name, _ in plan.subject.columns):
            reason = "column 'date' would be hidden by the directories date=…"
            raise InvalidArgument("schema", f"{reason}; set a prefix for the schema's columns, or export without dates")
        if self._by_date not in (None, plan.by_date):
            how = "by partition and date" if self._by_date else "by partition only"
            raise ExportRefused(self.title, f"its files are divided {how}; keep that, or export to another target")
        try:
            await self._store.put(self._name(plan.number, "plan"), [msgspec.json.encode(plan)], if_absent=True)
            return plan
        except ObjectAlreadyExists:
            recorded = await self._load_plan(plan.number)
            evolved_subject(self.title, plan.subject, recorded.subject)
            return recorded

    async def record_writers(self, plan: ExportPlan, writers: WriterSchemas) -> WriterSchemas:
        """A value must be good for every driver that performs the plan, or bad for every one: a record could otherwise
        be neither in the files of the first nor in those of the second."""
        for number in range(EXPORT_WRITERS_RECORDED_MAX):
            name = self._name(plan.number, f"schemas-{number:03d}")
            record = RecordedWriters(writers=writers)
            try:
                await self._store.put(name, [msgspec.json.encode(record)], if_absent=True)
                return writers
            except ObjectAlreadyExists:
                recorded = _decoded(await self._store.get(name), RecordedWriters, name).writers
                writers = recorded.merged(writers, self.title)
                if writers == recorded:
                    return writers
        raise ExportRefused(self.title, f"plan {plan.number} has {number + 1} records of schema ids; discard the plan")

    async def commit(self, plan: ExportPlan, written: Sequence[ExportWritten]) -> bool:
        commit = ExportCommit(
            number=plan.number,
            subject=plan.subject,
            next_offsets=plan.next_offsets,
            files=tuple(file for one in written for file in one.files),
            quarantine=tuple(file for one in written for file in one.quarantine),
            created_at_ms=plan.created_at_ms,
            by_date=plan.by_date,
            schema_ids=schema_ids_of(written),
        )
        if self._columns not in (None, plan.subject.columns):
            await self._put_schema(plan)
        try:
            await self._store.put(self._name(plan.number, "commit"), [msgspec.json.encode(commit)], if_absent=True)
        except ObjectAlreadyExists:
            pass  # another driver performed the same plan: the same files
        return True

    async def _put_schema(self, plan: ExportPlan) -> None:
        """A file with nothing but the newest columns. Spark takes the columns of a directory from it; without it Spark
        would take those of any file."""
        columns = [field for field in unpacked(plan.subject.arrow) if field.name not in self.paths().path_columns]
        sink = pa.BufferOutputStream()
        pq.write_metadata(pa.schema(columns), sink)
        await self._store.put(f"{self.paths().data_prefix}/{NEWEST_SCHEMA}", [memoryview(sink.getvalue())])

    async def discard(self) -> int | None:
        """Drop an unfinished plan and the files written for it; returns their number, or None without such a plan.

        For operators: no driver may perform that plan meanwhile."""
        latest = await self._latest()
        if latest is None or latest[1] != "plan":
            return None
        begins = f"{latest[0]:012d}-"
        files: list[str] = []
        paths = self.paths()
        for prefix in (paths.data_prefix, paths.quarantine_prefix):
            async with aclosing(_names(self._store, f"{prefix}/")) as names:
                files += [name async for name in names if name.rpartition("/")[2].startswith(begins)]
        await self._store.delete_many(files)
        state = f"{STATE_PREFIX}/{self._topic}/{_NUMBER_MAX + 1 - latest[0]:012d}.schemas-"
        async with aclosing(_names(self._store, state)) as names:
            await self._store.delete_many([name async for name in names])
        # The plan goes last: as long as it exists, its files can be found by its number.
        await self._store.delete(self._name(latest[0], "plan"))
        return len(files)

    async def close(self) -> None:
        """The caller closes the store."""

    # -- objects ------------------------------------------------------------------------------------------------------
    def _name(self, number: int, kind: str) -> str:
        return f"{STATE_PREFIX}/{self._topic}/{_NUMBER_MAX + 1 - number:012d}.{kind}"

    async def _latest(self) -> tuple[int, str] | None:
        async with aclosing(_names(self._store, f"{STATE_PREFIX}/{self._topic}/")) as names:
            async for name in names:
                digits, _, kind = name.rpartition("/")[2].partition(".")
                if not digits.isdigit() or kind not in ("plan", "commit"):
                    raise ExportRefused(self.title, f"{name} was not written by an export; remove it")
                return _NUMBER_MAX + 1 - int(digits), kind
        return None

    async def _load_plan(self, number: int) -> ExportPlan:
        """The plan with what was recorded of schema ids since."""
        plan = _decoded(await self._store.get(self._name(number, "plan")), ExportPlan, self._name(number, "plan"))
        if plan.decoding.kind != "avro-confluent":
            return plan
        writers = plan.writers
        for count in range(EXPORT_WRITERS_RECORDED_MAX):
            name = self._name(number, f"schemas-{count:03d}")
            try:
                recorded = _decoded(await self._store.get(name), RecordedWriters, name)
            except ObjectNotFound:
                break
            writers = writers.merged(recorded.writers, self.title)
        return replace(plan, writers=writers)

    async def _load_commit(self, number: int) -> ExportCommit | None:
        if number == 0:
            return None
        name = self._name(number, "commit")
        try:
            return _decoded(await self._store.get(name), ExportCommit, name)
        except ObjectNotFound:
            raise ExportRefused(
                self.title, f"plan {number + 1} exists, but the commit before it, {name}, does not"
            ) from None


async def committed(store: ObjectStore, topic: str) -> list[ExportCommit]:
    """Every commit of a topic, oldest first."""
    async with aclosing(_names(store, f"{STATE_PREFIX}/{topic}/")) as names:
        commits = [name async for name in names if name.endswith(".commit")]
    return [_decoded(await store.get(name), ExportCommit, name) for name in reversed(commits)]


async def parquet_files(store: ObjectStore, topic: str) -> list[str]:
    """The URIs of every committed file of a topic."""
    return [store.uri(file.name) for commit in await committed(store, topic) for file in commit.files]


async def _names(store: ObjectStore, prefix: str) -> AsyncGenerator[str, None]:
    async for meta in store.list(prefix):
        yield meta.name


def _decoded(data: Buffer, kind: type[S], name: str) -> S:
    try:
        value = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidField(name, f"is not an {kind.__name__}: {error}") from None
    if value.v > _FORMAT:
        raise UnsupportedFormat(name, f"written by a newer release (format {value.v}, this one reads {_FORMAT})")
    return value
