"""What a report says, free of HTML: `report.json` holds exactly this, and the page is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from llog.loadtest.artifacts import Verdict
from llog.loadtest.report.charts import Chart

Better = Literal["higher", "lower", ""]
"""The direction that is better; empty where neither is."""


class Figure(msgspec.Struct, frozen=True):
    """A single number."""

    id: str
    label: str
    value: float | None
    unit: str
    better: Better = ""
    headline: bool = False
    note: str = ""


class Table(msgspec.Struct, frozen=True):
    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    about: str = ""


class Section(msgspec.Struct, frozen=True):
    id: str
    title: str
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    about: str = ""


class Report(msgspec.Struct, frozen=True):
    run_id: str
    scenario: str
    description: str
    began_s: float | None
    """Unix time of the load's begin, the zero of all time axes."""
    ended_s: float | None
    complete: bool
    judged: bool
    """There is a summary, so the verdicts are known."""
    missing: tuple[str, ...]
    """What the run has not left, and what the report lacks because of it."""
    limited_by_generator: str
    warnings: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    machine: Mapping[str, str]
    figures: tuple[Figure, ...]
    sections: tuple[Section, ...]
    scenario_fields: Mapping[str, str]
    """The resolved scenario, a value per path."""

    def charts(self) -> dict[str, Chart]:
        return {chart.id: chart for section in self.sections for chart in section.charts}
