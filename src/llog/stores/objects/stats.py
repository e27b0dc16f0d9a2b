"""Counts, bytes and latencies of the operations of an object store, as plain numbers.

`metered` writes them on the hot path, the metrics page reads them (`snapshot` is a copy). One event loop writes, so no
lock is needed. A snapshot names every operation and outcome, so that dashboards can rely on them; histograms are
cumulative, as in Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from llog.errors import (
    InvalidArgument,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    ObjectStoreDenied,
    ObjectStoreFull,
    ObjectStoreMisconfigured,
    ObjectStoreThrottled,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    ObjectStoreUncertain,
    StoreClosed,
)
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1, Prices

__all__ = ["LATENCY_BOUNDS_MS", "OPERATIONS", "OUTCOMES", "ObjectStoreStats", "OperationStats", "outcome_of"]

OPERATIONS: Final = ("put", "get", "range_get", "head", "list", "delete")
LATENCY_BOUNDS_MS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)

_BY_ERROR: Final[dict[type[BaseException], str]] = {
    ObjectNotFound: "not_found",
    ObjectAlreadyExists: "already_exists",
    ObjectRangeInvalid: "range_invalid",
    ObjectStoreThrottled: "throttled",
    ObjectStoreTimeout: "timeout",
    ObjectStoreUnavailable: "unavailable",
    ObjectStoreUncertain: "uncertain",
    ObjectStoreDenied: "denied",
    ObjectStoreMisconfigured: "misconfigured",
    ObjectStoreFull: "full",
    StoreClosed: "closed",
    InvalidArgument: "invalid",
}
OUTCOMES: Final = ("ok", *_BY_ERROR.values(), "cancelled", "error")

# These errors occur before a request is sent.
_LOCAL: Final = frozenset({"invalid", "closed"})


def outcome_of(error: BaseException | None) -> str:
    """The name of an outcome: `ok`, one per kind of error, `cancelled` or `error`."""
    if error is None:
        return "ok"
    for kind in type(error).__mro__:
        if kind in _BY_ERROR:
            return _BY_ERROR[kind]
    return "error" if isinstance(error, Exception) else "cancelled"


class OperationStats:
    """Counts of one operation."""

    __slots__ = ("_buckets", "byte_count", "call_count", "latency_ms_sum", "outcomes", "request_count")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.call_count = 0
        self.request_count = 0
        self.byte_count = 0
        self.latency_ms_sum = 0.0
        self._buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)

    def record(self, outcome: str, latency_ms: float, byte_count: int, request_count: int) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.call_count += 1
        if outcome not in _LOCAL:
            self.request_count += request_count
        self.byte_count += byte_count
        self.latency_ms_sum += latency_ms
        self._buckets[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1

    def snapshot(self) -> dict[str, Any]:
        cumulative, total = {}, 0
        for bound, count in zip((*LATENCY_BOUNDS_MS, float("inf")), self._buckets, strict=True):
            total += count
            cumulative[bound] = total
        return {
            "outcomes": {outcome: self.outcomes.get(outcome, 0) for outcome in OUTCOMES},
            "calls": self.call_count,
            "requests": self.request_count,
            "bytes": self.byte_count,
            "latency_ms_sum": self.latency_ms_sum,
            "latency_ms_buckets": cumulative,
        }


class ObjectStoreStats:
    """Counts of all operations of one store in this process."""

    def __init__(self, prices: Prices = S3_STANDARD_US_EAST_1) -> None:
        self.prices = prices
        self.operations = {operation: OperationStats() for operation in OPERATIONS}

    @property
    def requests_usd(self) -> float:
        """Cost of the requests so far at S3 prices, for any store."""
        return self.prices.requests_usd({name: op.request_count for name, op in self.operations.items()})

    def snapshot(self) -> dict[str, Any]:
        return {
            "operations": {name: operation.snapshot() for name, operation in self.operations.items()},
            "requests_usd": self.requests_usd,
        }
