"""The offset of a stream: the next offset of each log as one JSON value, and how far one trigger may go.

The value is Kafka's JSON, `{"orders": {"0": 23}}`, with the incarnation of each topic under `"@lives"` and its id under
`"@ids"` (no topic has such a name). A topic that was deleted and created again, or that belongs to a cluster that was
emptied and filled again, has other records at the same offsets. Checkpoints without ids are valid.

A trigger never moves an offset back. If there is something to read it advances by at least one record, whatever the
limits. If both limits are given, both hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

import msgspec

from llog.errors import InvalidArgument
from llog.log.context import LogContext
from llog.log.keys import Log, check_topic
from llog.pipeline.scan.plan import gather_parts
from llog.pipeline.scan.splits import ScanRange, SplitPart
from llog.pipeline.scan.subscription import LogEnds

# The name in existing checkpoints.
_INCARNATIONS: Final = "@lives"
_IDS: Final = "@ids"
LAG: Final = "@lag"
"""Of the latest offset that a stream reports; no offset of a checkpoint has it."""
LAG_STATISTICS: Final = {
    "min": "minOffsetsBehindLatest",
    "max": "maxOffsetsBehindLatest",
    "avg": "avgOffsetsBehindLatest",
}
"""Over the logs of a stream, by the names of Spark's Kafka source."""


class StreamOffsets(msgspec.Struct, frozen=True):
    offsets: dict[Log, int]
    incarnations: dict[str, int]
    ids: dict[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        offsets: dict[str, Any] = {}
        for log, offset in sorted(self.offsets.items()):
            offsets.setdefault(log.topic, {})[str(log.partition)] = offset
        ids = {_IDS: dict(sorted(self.ids.items()))} if self.ids else {}
        return {**offsets, _INCARNATIONS: dict(sorted(self.incarnations.items())), **ids}


def from_json(value: Mapping[str, Any]) -> StreamOffsets:
    """Raises `InvalidArgument` for a value that this source did not write."""
    try:
        incarnations = {check_topic(topic): int(number) for topic, number in value.get(_INCARNATIONS, {}).items()}
        ids = {check_topic(topic): str(topic_id) for topic, topic_id in value.get(_IDS, {}).items()}
        offsets = {
            Log(check_topic(topic), int(partition)): int(offset)
            for topic, partitions in value.items()
            if topic not in (_INCARNATIONS, _IDS)
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument("checkpoint", f"{value!r:.200} is not an offset of this source: {error}") from None
    return StreamOffsets(offsets, incarnations, ids)


def stream_at(offsets: dict[Log, int], ends: Mapping[Log, LogEnds]) -> StreamOffsets:
    """These offsets with the current incarnations and ids of their topics."""
    incarnations = {log.topic: at.incarnation for log, at in ends.items()}
    return StreamOffsets(offsets, incarnations, {log.topic: at.topic_id for log, at in ends.items()})


def mismatch(stream: StreamOffsets, log: Log, at: LogEnds) -> str | None:
    """Why the log now at this name is not the one that the stream's offset belongs to; None if it may be the same."""
    if stream.incarnations.get(log.topic, at.incarnation) != at.incarnation:
        return "its topic was deleted and created again"
    if stream.ids.get(log.topic, at.topic_id) != at.topic_id:
        return "its topic is another one of the same name: the cluster was emptied, or this is another cluster"
    if stream.offsets[log] > at.next_offset:
        return f"the log now ends at offset {at.next_offset}: it is not the log that was read"
    return None


def is_same_topic(begin: StreamOffsets, end: StreamOffsets, topic: str) -> bool:
    """Both belong to the same incarnation of the same topic. A value from an old checkpoint may have no ids."""
    ids = {stream.ids[topic] for stream in (begin, end) if topic in stream.ids}
    return begin.incarnations.get(topic) == end.incarnations.get(topic) and len(ids) <= 1


def lag_of(reached: Mapping[Log, int], ends: Mapping[Log, int]) -> dict[str, float]:
    """Offsets between where the last batch ends and where the logs end; empty without logs."""
    behind = [max(0, end - reached[log]) for log, end in ends.items() if log in reached]
    if not behind:
        return {}
    statistics = {"min": min(behind), "max": max(behind), "avg": sum(behind) / len(behind)}
    return {LAG_STATISTICS[name]: value for name, value in statistics.items()}


def limited_by_offsets(starts: Mapping[Log, int], stops: Mapping[Log, int], limit: int) -> dict[Log, int]:
    """`limit` divided among the logs in proportion to their unread records, as in Spark's Kafka source."""
    sizes = {log: stops[log] - start for log, start in starts.items() if stops[log] > start}
    total = sum(sizes.values())
    if total <= limit:
        return dict(stops)
    chosen = dict(starts)
    for log, size in sizes.items():
        share = limit * size / total
        # A log with few records gets at least one, so that it does not wait until the others are done.
        chosen[log] = min(stops[log], starts[log] + math.floor(share if share >= 1 else math.ceil(share)))
    return chosen


async def limited_by_bytes(
    context: LogContext, starts: Mapping[Log, int], stops: Mapping[Log, int], limit: int
) -> dict[Log, int]:
    """As far as `limit` bytes go, oldest entries first, so that no log waits forever behind a busier one.

    Each log gets an equal share, and a second round divides what is left. Whole entries are taken, or a part of a
    segment. The first entry is taken even if it does not fit.
    """
    chosen, spare = dict(starts), limit
    for _ in range(2):
        left = [ScanRange(log, at, stops[log]) for log, at in chosen.items() if stops[log] > at]
        if not left or spare <= 0:
            break
        candidates = await gather_parts(context, left, bytes_max=spare // len(left) + 1)
        spare -= _take_oldest(candidates, chosen, spare, one_at_least=spare == limit)
    return chosen


def _take_oldest(
    candidates: Sequence[list[SplitPart]], chosen: dict[Log, int], bytes_max: int, *, one_at_least: bool
) -> int:
    """Move `chosen` over parts, those of a log in order; returns the bytes of the parts taken."""
    heads = [(parts[0].created_at_ms, number, 0) for number, parts in enumerate(candidates) if parts]
    heapify(heads)
    used = 0
    while heads and used < bytes_max:
        _, number, index = heappop(heads)
        part = candidates[number][index]
        size, rest = part.wanted_bytes(), bytes_max - used
        if size <= rest or (one_at_least and used == 0 and not part.in_segment):
            chosen[part.log], used = part.stop_offset, used + size
            if index + 1 < len(candidates[number]):
                heappush(heads, (candidates[number][index + 1].created_at_ms, number, index + 1))
        elif part.in_segment:
            offsets = (part.stop_offset - part.start_offset) * rest // size
            offsets = max(offsets, 1) if one_at_least and used == 0 else offsets
            if offsets:
                chosen[part.log], used = part.start_offset + offsets, used + rest
    return used
