"""Filters that Spark pushes down, as bounds of a scan.

Offsets, partitions and topics become bounds of the plan; the task compares timestamps. Both are exact, so Spark need
not apply the filter again. Other filters are returned to Spark; one that still narrows the scan (a list of offsets) is
used and returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from llog.pipeline.scan.plan import Narrowing, ScanRequest

_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def push_filters(request: ScanRequest, filters: Iterable[Filter]) -> tuple[ScanRequest, list[Filter]]:
    """The narrowed request, and the filters that Spark must still apply."""
    left: list[Filter] = []
    for condition in filters:
        narrowed = _pushed(request, condition)
        if narrowed is None:
            left.append(condition)
        else:
            request = narrowed
        if isinstance(condition, In) and condition.attribute in (("offset",), ("timestamp",)):
            request = _between(request, condition)
    return request, left


def _pushed(request: ScanRequest, condition: Filter) -> ScanRequest | None:
    """None: the filter cannot be expressed as bounds."""
    match condition:
        case IsNotNull((column,)) if column in _NEVER_NULL:
            return request
        case EqualTo((column,), value) | EqualNullSafe((column,), value) if value is not None:
            return _one_of(request, column, [value])
        case In((column,), values) if column in ("topic", "partition"):
            return _one_of(request, column, [value for value in values if value is not None])
        case GreaterThanOrEqual((column,), value):
            return _from(request, column, value, 0)
        case GreaterThan((column,), value):
            return _from(request, column, value, 1)
        case LessThan((column,), value):
            return _before(request, column, value, 0)
        case LessThanOrEqual((column,), value):
            return _before(request, column, value, 1)
    return None


def _one_of(request: ScanRequest, column: str, values: list[Any]) -> ScanRequest | None:
    narrowing = request.narrowing
    if column == "topic" and all(isinstance(value, str) for value in values):
        chosen = frozenset(values) if narrowing.topics is None else narrowing.topics & frozenset(values)
        return replace(request, narrowing=replace(narrowing, topics=chosen))
    if column == "partition" and all(type(value) is int for value in values):
        numbers = frozenset(values) if narrowing.partitions is None else narrowing.partitions & frozenset(values)
        return replace(request, narrowing=replace(narrowing, partitions=numbers))
    if column in ("offset", "timestamp"):
        above = _from(request, column, values[0], 0)
        return None if above is None else _before(above, column, values[0], 1)
    return None


def _between(request: ScanRequest, condition: In) -> ScanRequest:
    [column], values = condition.attribute, [value for value in condition.value if value is not None]
    if not values:
        return request
    above = _from(request, column, min(values), 0) or request
    return _before(above, column, max(values), 1) or above


def _from(request: ScanRequest, column: str, value: object, more: int) -> ScanRequest | None:
    return _bounded(request, column, value, more, max, ("offset_from", "partition_from", "since_us"))


def _before(request: ScanRequest, column: str, value: object, more: int) -> ScanRequest | None:
    return _bounded(request, column, value, more, min, ("offset_before", "partition_before", "before_us"))


def _bounded(
    request: ScanRequest,
    column: str,
    value: object,
    more: int,
    tighter: Callable[[int, int], int],
    bounds: tuple[str, str, str],
) -> ScanRequest | None:
    """The request with one bound tightened to `value` + `more`."""
    offset_bound, partition_bound, time_bound = bounds
    if column in ("offset", "partition") and type(value) is int:
        name = offset_bound if column == "offset" else partition_bound
        narrowing: Narrowing = request.narrowing
        bound = {name: tighter(getattr(narrowing, name), value + more)}
        return replace(request, narrowing=replace(narrowing, **bound))
    if column == "timestamp" and isinstance(value, datetime):
        at_us = _microseconds(value) + more
        known = getattr(request.shape, time_bound)
        at = {time_bound: at_us if known is None else tighter(known, at_us)}
        return replace(request, shape=replace(request.shape, **at))
    return None


def _microseconds(instant: datetime) -> int:
    """Exact, unlike a float after the year 2255."""
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
