"""The limits of a topic on the records of a write."""

from __future__ import annotations

import numpy as np
import pytest

from llog.errors import RecordTooLarge, TimestampOutOfWindow
from llog.log.keys import Log
from llog.log.topics.config import TopicConfig
from llog.log.topics.record_limits import AT_THE_CLOCK, TimestampSpan, refusal_of_records, span_of

NOW = 1_750_000_000_000
LOG = Log("orders", 3)
WINDOW = TopicConfig.of({"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "50"})


@pytest.mark.parametrize(
    ("timestamps_ms", "span"),
    [
        ([NOW], TimestampSpan(0, 0)),
        ([NOW - 7, NOW + 3, NOW], TimestampSpan(7, 3)),
        ([NOW - 7, NOW - 2], TimestampSpan(7, 0)),
        ([NOW + 2, NOW + 9], TimestampSpan(0, 9)),
        ([-1, -1], AT_THE_CLOCK),
        ([-1, NOW + 3], TimestampSpan(0, 3)),
        ([0], TimestampSpan(NOW, 0)),
    ],
)
def test_a_span_reaches_from_the_oldest_to_the_newest_timestamp_around_the_clock(
    timestamps_ms: list[int], span: TimestampSpan
) -> None:
    assert span_of(timestamps_ms, NOW) == span_of(np.array(timestamps_ms, np.int64), NOW) == span


@pytest.mark.parametrize(
    "span", [TimestampSpan(1_000, 0), TimestampSpan(0, 50), TimestampSpan(1_000, 50), AT_THE_CLOCK]
)
def test_timestamps_at_the_edge_of_the_window_are_accepted(span: TimestampSpan) -> None:
    assert refusal_of_records(LOG, WINDOW, 1, span, NOW) is None


@pytest.mark.parametrize(
    ("span", "timestamp_ms", "side"),
    [
        (TimestampSpan(1_001, 0), NOW - 1_001, "1001 ms before"),
        (TimestampSpan(0, 51), NOW + 51, "51 ms after"),
        (TimestampSpan(1_001, 51), NOW - 1_001, "1001 ms before"),
    ],
)
def test_a_timestamp_outside_the_window_is_refused_with_log_and_window(
    span: TimestampSpan, timestamp_ms: int, side: str
) -> None:
    refusal = refusal_of_records(LOG, WINDOW, 1, span, NOW)
    assert isinstance(refusal, TimestampOutOfWindow)
    assert (refusal.topic, refusal.partition, refusal.timestamp_ms) == ("orders", 3, timestamp_ms)
    assert (refusal.before_max_ms, refusal.after_max_ms) == (1_000, 50)
    assert f"orders:3: a record has the timestamp {timestamp_ms}, {side}" in str(refusal)
    assert "message.timestamp.before.max.ms=1000, message.timestamp.after.max.ms=50" in str(refusal)


def test_the_default_window_is_an_hour_ahead_and_any_age() -> None:
    default = TopicConfig.of({})
    assert refusal_of_records(LOG, default, 1, TimestampSpan(NOW, 3_600_000), NOW) is None
    assert isinstance(refusal_of_records(LOG, default, 1, TimestampSpan(0, 3_600_001), NOW), TimestampOutOfWindow)


def test_a_record_that_is_too_large_is_refused() -> None:
    small = TopicConfig.of({"max.message.bytes": "100"})
    assert refusal_of_records(LOG, small, 100, AT_THE_CLOCK, NOW) is None
    assert isinstance(refusal_of_records(LOG, small, 101, AT_THE_CLOCK, NOW), RecordTooLarge)
