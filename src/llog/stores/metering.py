"""Counts and latencies of the calls of a store, and the health of the store derived from them.

Counts are plain numbers, written here on the hot path and read by the metrics page. One event loop writes them, so no
lock is needed. The lists below name every operation and outcome, so that dashboards can rely on them.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import msgspec

from llog import errors
from llog.errors import StoreClosed, StoreError
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1, Prices

# After this long without a success a store counts as failing, and a broker accepts no records.
STORE_TROUBLE_MS: Final = 5_000

OBJECT_OPERATIONS: Final = ("put", "get", "range_get", "head", "list", "delete")
METADATA_OPERATIONS: Final = (
    "get", "get_many", "ceiling", "scan", "scan_tree", "put", "delete", "write",
    "open_session", "watch", "server_time", "raise_versions",
)  # fmt: skip
_WRITING: Final = frozenset({"put", "delete", "write", "raise_versions"})
# Opening a session or watch may not contact the store; the first use does.
_PROMISES: Final = frozenset({"open_session", "watch"})

_OBJECT_BOUNDS_MS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)
# An embedded store answers within microseconds, a remote one within milliseconds, a failing one within seconds.
_METADATA_BOUNDS_MS: Final = (0.1, 0.2, 0.5, *_OBJECT_BOUNDS_MS)

_OBJECT_ERRORS: Final[dict[type[BaseException], str]] = {
    errors.ObjectNotFound: "not_found",
    errors.ObjectAlreadyExists: "already_exists",
    errors.ObjectRangeInvalid: "range_invalid",
    errors.ObjectStoreThrottled: "throttled",
    errors.ObjectStoreTimeout: "timeout",
    errors.ObjectStoreUnavailable: "unavailable",
    errors.ObjectStoreUncertain: "uncertain",
    errors.ObjectStoreDenied: "denied",
    errors.ObjectStoreMisconfigured: "misconfigured",
    errors.ObjectStoreFull: "full",
}
_METADATA_ERRORS: Final[dict[type[BaseException], str]] = {
    errors.VersionConflict: "conflict",
    errors.MetadataTimeout: "timeout",
    errors.MetadataUnavailable: "unavailable",
    errors.MetadataUncertain: "uncertain",
    errors.MetadataDenied: "denied",
    errors.MetadataMisconfigured: "misconfigured",
    errors.MetadataFull: "full",
    errors.SessionLost: "session_lost",
}
# These errors occur before a request is sent.
_LOCAL: Final = ("closed", "invalid")
_OTHER: Final = (*_LOCAL, "cancelled", "error")
OBJECT_OUTCOMES: Final = ("ok", *_OBJECT_ERRORS.values(), *_OTHER)
METADATA_ERRORS: Final = (*_METADATA_ERRORS.values(), *_OTHER)
_OUTCOME_OF: Final[dict[type[BaseException], str]] = {
    **_OBJECT_ERRORS, **_METADATA_ERRORS, StoreClosed: "closed", errors.InvalidArgument: "invalid",
}  # fmt: skip


def outcome_of(error: BaseException | None) -> str:
    """`ok`, the name of a kind of error, `cancelled` if the caller gave up, or `error` for an unexpected one."""
    if error is None:
        return "ok"
    for kind in type(error).__mro__:
        if kind in _OUTCOME_OF:
            return _OUTCOME_OF[kind]
    return "error" if isinstance(error, Exception) else "cancelled"


# -- health ------------------------------------------------------------------------------------------------------------

# Errors that prove that the store responds.
_AWAKE: Final = (
    errors.ObjectNotFound,
    errors.ObjectAlreadyExists,
    errors.ObjectRangeInvalid,
    errors.VersionConflict,
    errors.SessionLost,
)


class Trouble(NamedTuple):
    seconds: float
    """Length of the period without a success."""
    error: StoreError
    """The last error."""

    def __str__(self) -> str:
        return f"it has not done what it was asked for {self.seconds:.0f} s; last, {self.error}"


class StorePulse:
    """Health of one store: working, or failing since a time with a last error. Its metering wrapper reports every call,
    and a broker refuses records that a failing store would not take.

    A single failure is normal (stores throttle, connections break, calls are retried); a period without any success is
    not. Reads and writes count separately, because a store may be full or deny one of them. One success ends the
    failure of its kind; a cancelled call or an invalid argument counts as neither.
    """

    def __init__(self, patience_ms: float = STORE_TROUBLE_MS, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._patience_ms, self._clock = patience_ms, clock
        self._failing: dict[bool, tuple[float, StoreError]] = {}
        """For writes (True) and reads (False): start and last error of the current failure."""

    def record(self, error: BaseException | None, latency_ms: float, *, writing: bool) -> None:
        """Report the end of a call. A failed call counts as failing from its start."""
        if error is None or isinstance(error, _AWAKE):
            if self._failing:
                self._failing.pop(writing, None)
        elif isinstance(error, StoreError) and not isinstance(error, StoreClosed):
            since, _ = self._failing.get(writing, (self._clock() - latency_ms / 1_000, error))
            self._failing[writing] = since, error

    def well(self) -> None:
        """Report that a check of reads and writes succeeded."""
        self._failing.clear()

    def trouble(self, *, writing: bool | None = None) -> Trouble | None:
        """The failure of writes, of reads, or of either. None: working, or failing only for a short time."""
        if not self._failing:  # called with every request
            return None
        failing = [state for kind, state in self._failing.items() if writing in (None, kind)]
        if not failing:
            return None
        since, error = min(failing, key=lambda state: state[0])
        seconds = self._clock() - since
        return Trouble(seconds, error) if seconds * 1_000 >= self._patience_ms else None


# -- counts ------------------------------------------------------------------------------------------------------------


class OperationCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of one operation that another process made."""

    outcomes: dict[str, int]
    """Of calls."""
    requests: int
    byte_count: int = 0
    latency_ms_sum: float = 0.0
    buckets: tuple[int, ...] = ()
    """Calls by latency; empty: unknown."""


StoreCounts = dict[str, OperationCounts]
"""By operation."""
RequestCounts = dict[str, StoreCounts]
"""By the URL of an object store: the requests that a task made in another process."""
OnRequests = Callable[[RequestCounts], None]


class OperationStats:
    """Counts of one operation of a store."""

    def __init__(self, bounds_ms: tuple[float, ...], outcomes: tuple[str, ...]) -> None:
        self.outcomes = dict.fromkeys(outcomes, 0)
        """Of a metadata store, only the errors."""
        self.call_count = self.request_count = self.byte_count = self.item_count = 0
        """An item is a key read, a record of a scan, a write or a change of a watch; object stores count none."""
        self.latency_ms_sum = 0.0
        self._bounds_ms, self._buckets = bounds_ms, [0] * (len(bounds_ms) + 1)

    def count(self, outcome: str) -> None:
        if outcome in self.outcomes:
            self.outcomes[outcome] += 1

    def record(self, outcome: str, latency_ms: float) -> None:
        self.count(outcome)
        self.call_count += 1
        self.latency_ms_sum += latency_ms
        self._buckets[bisect_left(self._bounds_ms, latency_ms)] += 1

    def counts(self) -> OperationCounts:
        outcomes = {name: count for name, count in self.outcomes.items() if count}
        return OperationCounts(outcomes, self.request_count, self.byte_count, self.latency_ms_sum, tuple(self._buckets))

    def add(self, counts: OperationCounts) -> None:
        for outcome, count in counts.outcomes.items():
            self.call_count += count
            if outcome in self.outcomes:
                self.outcomes[outcome] += count
        self.request_count += counts.requests
        self.byte_count += counts.byte_count
        self.latency_ms_sum += counts.latency_ms_sum
        for number, count in enumerate(counts.buckets[: len(self._buckets)]):
            self._buckets[number] += count

    def latency_ms_buckets(self) -> dict[float, int]:
        """Calls by the upper bound of their latency, cumulative, as in Prometheus."""
        return dict(zip((*self._bounds_ms, float("inf")), itertools.accumulate(self._buckets), strict=True))


class ObjectStoreStats:
    """Counts of all operations of one object store in this process."""

    def __init__(self, prices: Prices = S3_STANDARD_US_EAST_1) -> None:
        self.prices = prices
        self.operations = _object_operations()

    def take(self) -> StoreCounts:
        """The counts since the last call."""
        taken, self.operations = self.operations, _object_operations()
        return {name: operation.counts() for name, operation in taken.items() if operation.call_count}

    def add(self, counts: StoreCounts) -> None:
        """Add what another process counted."""
        for name, operation in counts.items():
            if name in self.operations:
                self.operations[name].add(operation)

    @property
    def requests_usd(self) -> float:
        """Cost of the requests so far at S3 prices, for any store."""
        return self.prices.requests_usd({name: op.request_count for name, op in self.operations.items()})


def _object_operations() -> dict[str, OperationStats]:
    return {name: OperationStats(_OBJECT_BOUNDS_MS, OBJECT_OUTCOMES) for name in OBJECT_OPERATIONS}


class MetadataStoreStats:
    """Counts of all operations of one metadata store in this process."""

    def __init__(self) -> None:
        self.operations = {name: OperationStats(_METADATA_BOUNDS_MS, METADATA_ERRORS) for name in METADATA_OPERATIONS}
        self.sessions_lost = 0
        """Sessions that were lost, or must be assumed lost."""


class MeasuredCall:
    """Measures one call, whether it succeeds or fails."""

    __slots__ = ("_began", "_clock", "_pulse", "_stats", "_writing", "bytes", "error", "items", "requests")

    def __init__(
        self, operation: str, stats: OperationStats, clock: Callable[[], float], pulse: StorePulse, items: int = 0
    ) -> None:
        self._stats, self._clock, self._writing = stats, clock, operation in _WRITING
        self._pulse = None if operation in _PROMISES else pulse
        self.bytes, self.items, self.requests = 0, items, 1
        self.error: Exception | None = None
        """The error of a call that returned its error instead of raising it."""

    def __enter__(self) -> Self:
        self._began = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        latency_ms = (self._clock() - self._began) * 1_000
        stats, outcome = self._stats, outcome_of(error)
        stats.record(outcome, latency_ms)
        stats.byte_count += self.bytes
        stats.item_count += self.items
        if outcome not in _LOCAL:
            stats.request_count += self.requests
        if self._pulse is not None:
            self._pulse.record(error or self.error, latency_ms, writing=self._writing)
