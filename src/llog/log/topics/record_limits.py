"""Limits of a topic's config on the records of a write: how large a record may be, how old, how far in the future.

A topic with `message.timestamp.type=LogAppendTime` has no window: its records get the time of the write
(`EncodedGroup.at_append_time`). A front end measures a record group once, without a step per record, and judges the
group by three numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.errors import LogError, RecordTooLarge, TimestampOutOfWindow
from llog.formats.records.record_columns import Longs
from llog.log.keys import Log
from llog.log.topics.config import TopicConfig

NO_TIMESTAMP_MS: Final = -1
"""Kafka's mark of a record without a timestamp; no window applies to it."""


class TimestampSpan(NamedTuple):
    """How far the timestamps of a record group lie from the writer's clock. Records that get the time of the write lie
    at 0."""

    lag_ms: int = 0
    """From the oldest timestamp to the clock."""
    lead_ms: int = 0
    """From the clock to the newest timestamp."""


AT_THE_CLOCK: Final = TimestampSpan()


def span_of(timestamps_ms: Sequence[int] | Longs, now_ms: int) -> TimestampSpan:
    """The span of at least one timestamp."""
    given = np.asarray(timestamps_ms, np.int64)
    if given.min() == NO_TIMESTAMP_MS:
        given = given[given != NO_TIMESTAMP_MS]
        if not len(given):
            return AT_THE_CLOCK
    return TimestampSpan(max(0, now_ms - int(given.min())), max(0, int(given.max()) - now_ms))


def refusal_of_records(
    log: Log, config: TopicConfig, record_bytes_max: int, span: TimestampSpan, now_ms: int
) -> LogError | None:
    """Why the topic refuses the record group; None: it accepts the group. `record_bytes_max` is the size of the largest
    record as a batch of its own."""
    if record_bytes_max > config.max_message_bytes:
        return RecordTooLarge(*log, record_bytes_max, config.max_message_bytes)
    if span is AT_THE_CLOCK or config.log_append_time:  # nearly always, over HTTP
        return None
    before_max_ms, after_max_ms = config.timestamp_before_max_ms, config.timestamp_after_max_ms
    if span.lag_ms <= before_max_ms and span.lead_ms <= after_max_ms:
        return None
    timestamp_ms = now_ms - span.lag_ms if span.lag_ms > before_max_ms else now_ms + span.lead_ms
    return TimestampOutOfWindow(*log, timestamp_ms, now_ms, before_max_ms, after_max_ms)
