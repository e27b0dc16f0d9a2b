"""Where an export goes: what every target offers the driver.

A target keeps how far it has come, together with what it holds: the offsets and the files become visible by one act.
So a driver that dies anywhere, or runs twice at once, adds nothing twice and leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from llog.errors import ExportRefused
from llog.pipeline.export.plan import ExportPlan, Subject
from llog.pipeline.export.task import ExportWritten


class Place(NamedTuple):
    """Where the tasks put files."""

    store_url: str
    data_prefix: str
    quarantine_prefix: str
    path_columns: tuple[str, ...] = ()
    """That readers take from a file's directories (`partition=0`): some refuse a file that holds them, too."""


class Progress(NamedTuple):
    number: int
    """Of the next plan."""
    reached: dict[int, int]
    """The first offset of each partition that the target does not hold; nothing for those it never had."""
    unfinished: ExportPlan | None = None
    """A plan that somebody recorded and did not finish: it comes first."""


class ExportTarget(Protocol):
    title: str

    async def progress(self, subject: Subject) -> Progress:
        """How far it has come, as of now. `ExportRefused` when it holds another topic's or other columns' data."""

    def place(self) -> Place: ...

    async def begin(self, plan: ExportPlan) -> ExportPlan:
        """The plan to carry out: this one, or another that was recorded first."""

    def file_name(self, plan: ExportPlan, split: int) -> str: ...

    async def commit(self, plan: ExportPlan, written: Sequence[ExportWritten]) -> bool:
        """Make it all visible, with its offsets. False: somebody else went on first, and nothing of this counts."""

    async def close(self) -> None: ...


def check_subject(target: str, wanted: Subject, there: Subject) -> None:
    if there.topic_id != wanted.topic_id:
        reason = f"holds another life of topic {wanted.topic} (topic id {there.topic_id}, now {wanted.topic_id})"
        raise ExportRefused(target, f"{reason}: its offsets would be there twice; export into another place")
    if there.columns != wanted.columns:
        before, now = dict(there.columns), dict(wanted.columns)
        changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        told = ", ".join(f"{name}: {before.get(name, 'none')} → {now.get(name, 'none')}" for name in changed[:5])
        raise ExportRefused(target, f"its columns are others ({told or 'in another order'}); export into another place")
