"""Histograms of the metrics page: cumulative counts by upper bound, as `leaves` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf


def mean(growth: Mapping[str, float]) -> float | None:
    count = growth.get("count", 0.0)
    return growth.get("sum", 0.0) / count if count > 0 else None


def percentile(growth: Mapping[str, float], share: float) -> float | None:
    """Interpolated inside its bucket; values above the last bound count as that bound."""
    bounds = sorted(
        (inf if key == "buckets.+Inf" else float(key.removeprefix("buckets.")), count)
        for key, count in growth.items()
        if key.startswith("buckets.")
    )
    if not bounds or bounds[-1][1] <= 0:
        return None
    wanted = bounds[-1][1] * share
    lower = below = 0.0
    for bound, count in bounds:
        if count >= wanted:
            if bound == inf:
                return lower
            return lower + (bound - lower) * ((wanted - below) / (count - below) if count > below else 1.0)
        lower, below = bound, count
    return lower
