"""Parquet files in a directory or bucket: `{url}/{topic}/partition=0/date=2026-11-16/….parquet`, readable as it stands.

There is no table format here, so a reader of the directory sees every file that is there. What must stay true: that is
each record once. So a round is recorded before it begins (`_llog/{topic}/….plan`, created if absent), and files are
named by their plan and split: whoever carries out a plan, again or at the same time, writes the same files under the
same names. A plan that is there and not committed is finished first, by anybody, as it was made; only then comes the
next. (One that cannot be finished, for its options do not fit its records, is dropped by an operator.) The commit
(`….commit`, created if absent) lists the files and says where the next plan begins.

    _llog/orders/999999999998.plan      a later plan has a lower name, so a listing begins with the latest;
    _llog/orders/999999999999.commit    and a commit comes before its own plan
    _llog/orders/999999999999.plan

As in Hive, the partition stands in the directory's name and not in the file (pyarrow and pandas refuse a column that is
in both), and a date of the records' own would be hidden by the directory's: such a column is refused.

Readers that pass over names with a leading underscore (Spark, Hive) can be given the whole directory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec

from llog.errors import (
    ExportRefused,
    InvalidArgument,
    InvalidField,
    ObjectAlreadyExists,
    ObjectNotFound,
    UnsupportedFormat,
)
from llog.pipeline.export.plan import ExportPlan, Subject
from llog.pipeline.export.target import Place, Progress, check_subject
from llog.pipeline.export.task import ExportWritten, WrittenFile
from llog.stores.objects.port import Buffer, ObjectStore

STATE_PREFIX: Final = "_llog"
QUARANTINE_PREFIX: Final = "_quarantine"
_NUMBER_MAX: Final = 10**12 - 1
_FORMAT: Final = 1


class ExportCommit(msgspec.Struct, frozen=True, kw_only=True):
    v: int = _FORMAT
    number: int
    subject: Subject
    next_offsets: dict[int, int]
    files: tuple[WrittenFile, ...]
    quarantine: tuple[WrittenFile, ...]
    created_at_ms: int
    by_date: bool | None = None


S = TypeVar("S", ExportPlan, ExportCommit)


class ParquetTarget:
    def __init__(self, store: ObjectStore, topic: str) -> None:
        self._store, self._topic = store, topic
        self.title = f"parquet:{store.url}/{topic}"
        self._by_date: bool | None = None
        """Of the last commit: all files lie equally deep, or readers cannot tell columns from directories."""

    def place(self) -> Place:
        return Place(self._store.url, self._topic, f"{QUARANTINE_PREFIX}/{self._topic}", path_columns=("partition",))

    def file_name(self, plan: ExportPlan, split: int) -> str:
        return f"{plan.number:012d}-{split:06d}"

    async def progress(self, subject: Subject) -> Progress:
        latest = await self._latest()
        if latest is None:
            return Progress(1, {})
        number, kind = latest
        plan = await self._load_plan(number) if kind == "plan" else None
        committed = await self._load_commit(number if plan is None else number - 1)
        for there in (plan, committed):
            if there is not None:
                check_subject(self.title, subject, there.subject)
        reached = {} if committed is None else committed.next_offsets
        self._by_date = None if committed is None else committed.by_date
        return Progress(number + 1, reached) if plan is None else Progress(number, reached, plan)

    async def begin(self, plan: ExportPlan) -> ExportPlan:
        if plan.by_date and any(name.lower() == "date" for name, _ in plan.subject.columns):
            reason = "column 'date' would be hidden by the directories' (date=…); a prefix would tell them apart"
            raise InvalidArgument("schema", f"{reason}, or files without dates")
        if self._by_date not in (None, plan.by_date):
            how = "by date, too" if self._by_date else "by partition only"
            raise ExportRefused(self.title, f"its files are divided {how}; go on like this, or into another place")
        try:
            await self._store.put(self._name(plan.number, "plan"), [msgspec.json.encode(plan)], if_absent=True)
            return plan
        except ObjectAlreadyExists:
            there = await self._load_plan(plan.number)
            check_subject(self.title, plan.subject, there.subject)
            return there

    async def commit(self, plan: ExportPlan, written: Sequence[ExportWritten]) -> bool:
        commit = ExportCommit(
            number=plan.number,
            subject=plan.subject,
            next_offsets=plan.next_offsets,
            files=tuple(file for one in written for file in one.files),
            quarantine=tuple(file for one in written for file in one.quarantine),
            created_at_ms=plan.created_at_ms,
            by_date=plan.by_date,
        )
        try:
            await self._store.put(self._name(plan.number, "commit"), [msgspec.json.encode(commit)], if_absent=True)
        except ObjectAlreadyExists:
            pass  # somebody else carried out the same plan: the same files
        return True

    async def discard(self) -> int | None:
        """Drop a plan that cannot be finished as it was made, with the files that were written for it; how many. None:
        there is no such plan.

        An operator's act: nobody may be carrying out that plan meanwhile."""
        latest = await self._latest()
        if latest is None or latest[1] != "plan":
            return None
        begins = f"{latest[0]:012d}-"
        found: list[str] = []
        for prefix in self.place()[1:]:
            async with aclosing(_names(self._store, f"{prefix}/")) as names:
                found += [name async for name in names if name.rpartition("/")[2].startswith(begins)]
        await self._store.delete_many(found)
        # Last: while it is there, the files are its own and are found again.
        await self._store.delete(self._name(latest[0], "plan"))
        return len(found)

    async def close(self) -> None:
        """The store belongs to whoever opened it."""

    # -- its objects --------------------------------------------------------------------------------------------------
    def _name(self, number: int, kind: str) -> str:
        return f"{STATE_PREFIX}/{self._topic}/{_NUMBER_MAX + 1 - number:012d}.{kind}"

    async def _latest(self) -> tuple[int, str] | None:
        async with aclosing(_names(self._store, f"{STATE_PREFIX}/{self._topic}/")) as names:
            async for name in names:
                digits, _, kind = name.rpartition("/")[2].partition(".")
                if not digits.isdigit() or kind not in ("plan", "commit"):
                    raise ExportRefused(self.title, f"{name} is nothing that an export wrote")
                return _NUMBER_MAX + 1 - int(digits), kind
        return None

    async def _load_plan(self, number: int) -> ExportPlan:
        return _decoded(await self._store.get(self._name(number, "plan")), ExportPlan, self._name(number, "plan"))

    async def _load_commit(self, number: int) -> ExportCommit | None:
        if number == 0:
            return None
        name = self._name(number, "commit")
        try:
            return _decoded(await self._store.get(name), ExportCommit, name)
        except ObjectNotFound:
            raise ExportRefused(self.title, f"plan {number + 1} is there, but {name} before it is not") from None


async def committed(store: ObjectStore, topic: str) -> list[ExportCommit]:
    """Every commit of a topic, the first one first."""
    async with aclosing(_names(store, f"{STATE_PREFIX}/{topic}/")) as names:
        found = [name async for name in names if name.endswith(".commit")]
    return [_decoded(await store.get(name), ExportCommit, name) for name in reversed(found)]


async def _names(store: ObjectStore, prefix: str) -> AsyncGenerator[str, None]:
    async for meta in store.list(prefix):
        yield meta.name


def _decoded(data: Buffer, kind: type[S], name: str) -> S:
    try:
        value = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidField(name, f"is no {kind.__name__}: {error}") from None
    if value.v > _FORMAT:
        raise UnsupportedFormat(name, f"written by a newer release (v {value.v}, this one knows {_FORMAT})")
    return value
