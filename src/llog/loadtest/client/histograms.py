"""Histograms of microseconds: HdrHistogram V2, so that intervals, processes and runs can be merged and compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from hdrh.histogram import HdrHistogram

from llog.loadtest.artifacts import Histogram, Percentiles
from llog.loadtest.client.stamp import Longs

LOWEST_US: Final = 1
HIGHEST_US: Final = 3_600_000_000
"""Longer ones count as this."""
DIGITS: Final = 3
PENDING_MAX: Final = 16_384
"""Single values that wait until they are folded into the histogram together."""

_EXACT_BITS: Final = 11
"""Values below 2**11 have counters of their own with three digits; above, each doubling halves the resolution."""


def new_histogram() -> HdrHistogram:
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


class Latencies:
    """A histogram that is cheap to fill: values are gathered and counted together."""

    def __init__(self) -> None:
        self._histogram = new_histogram()
        self._pending: list[int] = []

    def add(self, us: int) -> None:
        self._pending.append(us)
        if len(self._pending) >= PENDING_MAX:
            self._fold()

    def add_many(self, us: Longs) -> None:
        """One value for each element."""
        values = np.clip(us, LOWEST_US, HIGHEST_US)
        shifts = np.maximum(np.frexp(values.astype(np.float64))[1] - _EXACT_BITS, 0)
        for value, count in zip(
            *(column.tolist() for column in np.unique(values >> shifts << shifts, return_counts=True)), strict=True
        ):
            self._histogram.record_value(value, count)

    def __len__(self) -> int:
        return int(self._histogram.get_total_count()) + len(self._pending)

    def take(self) -> Histogram:
        """Encoded; this begins again from nothing. Empty text when there were no values."""
        self._fold()
        if not self._histogram.get_total_count():
            return ""
        text = encode(self._histogram)
        self._histogram = new_histogram()
        return text

    def _fold(self) -> None:
        if self._pending:
            self.add_many(np.array(self._pending, np.int64))
            self._pending.clear()


def encode(histogram: HdrHistogram) -> Histogram:
    text = histogram.encode()
    return text.decode("ascii") if isinstance(text, bytes) else str(text)


def decode(text: Histogram) -> HdrHistogram:
    """A histogram without values for empty text."""
    return HdrHistogram.decode(text) if text else new_histogram()


def merge(texts: Iterable[Histogram]) -> HdrHistogram:
    merged = new_histogram()
    for text in texts:
        if text:
            merged.add(decode(text))
    return merged


def percentiles(histogram: HdrHistogram) -> Percentiles:
    """In milliseconds."""
    count = int(histogram.get_total_count())
    if not count:
        return Percentiles()
    found = histogram.get_percentile_to_value_dict([50.0, 90.0, 99.0, 99.9])
    p50, p90, p99, p999 = (found[share] / 1_000 for share in (50.0, 90.0, 99.0, 99.9))
    return Percentiles(
        count, histogram.get_mean_value() / 1_000, p50, p90, p99, p999, histogram.get_max_value() / 1_000
    )
