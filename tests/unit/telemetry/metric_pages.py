"""The two metrics pages side by side: the values of a family on each, in the same shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from llog.telemetry.families import FAMILIES, Family

Series = tuple[str, tuple[tuple[str, str], ...]]
Numbers = dict[tuple[str, ...], float]
"""By the values of the labels that a path of the JSON page names."""


def samples_of(page: str) -> dict[Series, float]:
    """The Prometheus page, as Prometheus reads it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in text_string_to_metric_families(page)
        for sample in metric.samples
    }


def both_tell(page: dict[str, Any], answer: Mapping[Series, float]) -> Iterator[tuple[Family, Numbers, Numbers]]:
    """For every number of the JSON page: its family, what stands there, and what the samples add up to."""
    for row in FAMILIES:
        if row.kind in ("counter", "gauge"):
            for path in row.at:
                yield row, _leaves(page, path), _grouped(answer, path, row.name)
        elif row.kind == "histogram":
            [path] = row.at
            for part in ("count", "sum"):
                yield row, _leaves(page, f"{path}.{part}"), _grouped(answer, path, f"{row.name}_{part}")


def _grouped(answer: Mapping[Series, float], path: str, name: str) -> Numbers:
    wanted = re.findall(r"{(\w+)}", path)
    sums: Numbers = {}
    for (sample, labels), number in answer.items():
        if sample == name:
            key = tuple(dict(labels)[label] for label in wanted)
            sums[key] = sums.get(key, 0) + number
    return sums


def _leaves(page: dict[str, Any], path: str) -> Numbers:
    found: list[tuple[tuple[str, ...], Any]] = [((), page)]
    for step in path.split("."):
        if step.startswith("{"):
            found = [((*key, child), branch[child]) for key, branch in found for child in branch]
        else:
            found = [(key, branch[step]) for key, branch in found if step in branch]
    return dict(found)
