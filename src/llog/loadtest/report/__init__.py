"""Reports of load tests: one self-contained HTML file with charts, and the same figures as JSON.

run_data.py    what a run directory holds          build.py       which charts and tables a report has
increments.py  counters of processes as rates      *_charts.py    from data to charts
figures.py     single numbers                      page.py, render.py, compare.py  HTML
charts/        SVG, free of load tests
"""

from __future__ import annotations

from pathlib import Path

from llog.loadtest.report.build import build_report
from llog.loadtest.report.compare import write_comparison
from llog.loadtest.report.render import render_report
from llog.loadtest.run_directory import RunDirectory

__all__ = ["build_report", "write_comparison", "write_report"]


def write_report(run: RunDirectory) -> Path:
    """Writes `report.html` and `report.json` into the run directory; incomplete runs get what they have. Returns the
    path of the page. Raises `RunNotFound` without a resolved configuration."""
    report = build_report(run)
    run.write("report.json", report)
    path = run.path / "report.html"
    scratch = run.path / ".report.html"
    scratch.write_text(render_report(report), "utf-8")
    scratch.replace(path)
    return path
