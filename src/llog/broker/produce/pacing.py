"""When to flush the buffer: a pure rule.

    full, memory is short, or requested      at once
    the oldest record waited `max_delay_ms`  at once: the promise of LLOG_BATCH_MAX_DELAY_MS
    a blob is being uploaded                 after that upload: records that arrive meanwhile share the next blob
    nothing is being uploaded                after `gather_ms`, and `interval_ms` after the start of the last flush

Waiting makes blobs larger, and each blob costs a put. On a local store a put is free (`interval_ms` 0), so waiting
while the disk is idle gains nothing. Where a put costs money, flushes that are not full start at most
BATCH_REMOTE_PUTS_PER_SECOND times a second: a single record after a pause goes at once, a steady trickle waits up to a
quarter of a second. `max_delay_ms` overrides the interval.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from llog.settings.urls import LOCAL_SCHEMES

# How long an idle broker gathers records before it flushes, so that simultaneous calls share a blob.
BATCH_GATHER_MS: Final = 1
# Cost target where a put costs money. Four puts a second are about 50 dollars a month at 0.005 dollars per thousand.
BATCH_REMOTE_PUTS_PER_SECOND: Final = 4


class Pacing(NamedTuple):
    max_delay_ms: float
    gather_ms: float = BATCH_GATHER_MS
    interval_ms: float = 0.0
    """Minimum between the starts of two flushes that are not full."""


def pacing_of(store_kind: str, max_delay_ms: float) -> Pacing:
    """The pacing for blobs in a store of that kind (`file`, `s3`)."""
    if store_kind in LOCAL_SCHEMES:
        return Pacing(max_delay_ms)
    return Pacing(max_delay_ms, interval_ms=1_000 / BATCH_REMOTE_PUTS_PER_SECOND)


class FlushDue(NamedTuple):
    at_ms: float
    reason: str = ""
    """Empty: not now; ask again at that time, or when something has changed."""


def plan_flush(
    pacing: Pacing, *, now_ms: float, first_ms: float, last_start_ms: float, uploading: bool, full: bool, urgency: str
) -> FlushDue:
    """`first_ms` is when the oldest record was buffered, `last_start_ms` when the last flush started; `urgency` names a
    reason not to wait."""
    if full:
        return FlushDue(now_ms, "size")
    if urgency:
        return FlushDue(now_ms, urgency)
    bound_ms = first_ms + pacing.max_delay_ms
    if now_ms >= bound_ms:
        return FlushDue(now_ms, "delay")
    if uploading:
        return FlushDue(bound_ms)
    earliest_ms = min(bound_ms, max(first_ms + pacing.gather_ms, last_start_ms + pacing.interval_ms))
    return FlushDue(now_ms, "idle") if now_ms >= earliest_ms else FlushDue(earliest_ms)
