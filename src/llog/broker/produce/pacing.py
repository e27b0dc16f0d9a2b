"""When to flush what is buffered: a pure rule.

    full, or memory is short, or asked for   at once
    the oldest record waited `max_delay_ms`  at once: the promise of LLOG_BATCH_MAX_DELAY_MS
    a blob is being uploaded                 not before that: what comes meanwhile goes together
    nothing is being uploaded                after a moment of gathering, unless the last flush began less than
                                             `interval_ms` ago

Why it exists: waiting makes blobs larger, and each blob costs a put. Where a put costs nothing (a local store,
`interval_ms` 0) waiting while the disk is idle buys nothing. Where it costs money, flushes that are not full begin at
most BATCH_REMOTE_PUTS_PER_SECOND times a second: a lone record after a silence goes at once, a steady trickle waits its
quarter of a second. The bound on the delay is the stronger of the two.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from llog.settings.urls import LOCAL_SCHEMES

# How long an idle broker waits for company before it flushes: requests that come together go together.
BATCH_GATHER_MS: Final = 1
# The cost target where a put costs money: flushes that are not full start this often at most. Four puts a second are
# about 50 dollars a month at 0.005 dollars per thousand. LLOG_BATCH_MAX_DELAY_MS is the stronger promise.
BATCH_REMOTE_PUTS_PER_SECOND: Final = 4


class Pacing(NamedTuple):
    max_delay_ms: float
    gather_ms: float = BATCH_GATHER_MS
    interval_ms: float = 0.0
    """Between the beginnings of two flushes that are not full."""


def pacing_of(store_kind: str, max_delay_ms: float) -> Pacing:
    """For blobs in a store of that kind (`file`, `s3`)."""
    if store_kind in LOCAL_SCHEMES:
        return Pacing(max_delay_ms)
    return Pacing(max_delay_ms, interval_ms=1_000 / BATCH_REMOTE_PUTS_PER_SECOND)


class Due(NamedTuple):
    at_ms: float
    reason: str = ""
    """Empty: not now; ask again at that time, or when something has changed."""


def plan_flush(
    pacing: Pacing, *, now_ms: float, first_ms: float, last_start_ms: float, uploading: bool, full: bool, hurry: str
) -> Due:
    """`first_ms` is when the oldest record was buffered, `last_start_ms` when the last flush began; `hurry` names a
    reason not to wait."""
    if full:
        return Due(now_ms, "size")
    if hurry:
        return Due(now_ms, hurry)
    bound_ms = first_ms + pacing.max_delay_ms
    if now_ms >= bound_ms:
        return Due(now_ms, "delay")
    if uploading:
        return Due(bound_ms)
    earliest_ms = min(bound_ms, max(first_ms + pacing.gather_ms, last_start_ms + pacing.interval_ms))
    return Due(now_ms, "idle") if now_ms >= earliest_ms else Due(earliest_ms)
