"""The JSON page of the metrics: the families of the Prometheus page, put where their rows in the table say.

What must stay true: it reads what the Prometheus page reads, so the two can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.samples import Sample

from llog.telemetry.families import Family, family

_EXPORTED_SUFFIX: Final = {"counter": "_total", "info": "_info"}


def tree(metrics: Iterable[Metric]) -> dict[str, Any]:
    page: dict[str, Any] = {}
    for metric in metrics:
        row = family(metric.name + _EXPORTED_SUFFIX.get(metric.type, ""))
        for path in row.at:
            steps = path.split(".")
            _branch(page, steps[0])
            for sample in metric.samples:
                _put(page, row, steps, sample)
    return page


def _put(page: dict[str, Any], row: Family, steps: list[str], sample: Sample) -> None:
    at = [sample.labels[step[1:-1]] if step.startswith("{") else step for step in steps]
    if row.kind == "info":
        _branch(page, *at).update({name: text for name, text in sample.labels.items() if f"{{{name}}}" not in steps})
    elif row.kind != "histogram":
        _add(_branch(page, *at[:-1]), at[-1], sample.value)
    elif sample.name.endswith("_bucket"):
        _add(_branch(page, *at, "buckets"), sample.labels["le"], sample.value)
    else:
        _add(_branch(page, *at), sample.name[len(row.name) + 1 :], sample.value)


def _branch(page: dict[str, Any], *steps: str) -> dict[str, Any]:
    for step in steps:
        page = page.setdefault(step, {})
    return page


def _add(branch: dict[str, Any], leaf: str, value: float) -> None:
    """Counts are shown as the whole numbers they are."""
    total = branch.get(leaf, 0) + value
    branch[leaf] = int(total) if float(total).is_integer() else total
