"""Where a stream stands: offsets of many logs as one value, and how far one trigger may go.

The value is Kafka's JSON, `{"orders": {"0": 23}}`: the next offset to read of every partition. Beside it stands which
life of each topic these are offsets of, `{"@lives": {"orders": 1}}`, and of which topic, by its id: `{"@ids": {…}}` (no
topic has such a name). A topic that was deleted and created again has other records at the same offsets, and so has one
of a cluster that was emptied and filled again. Checkpoints of before there were ids are read, too.

What must stay true: a trigger never takes an offset back; with work to do, it goes on by one record at least, whatever
the limits; both limits, where given, hold together.
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
from llog.pipeline.scan.split_plan import gathered_pieces
from llog.pipeline.scan.splits import LogRange, Piece
from llog.pipeline.scan.subscription import LogEnds

_LIVES: Final = "@lives"
_IDS: Final = "@ids"


class StreamOffsets(msgspec.Struct, frozen=True):
    offsets: dict[Log, int]
    lives: dict[str, int]
    ids: dict[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for log, offset in sorted(self.offsets.items()):
            told.setdefault(log.topic, {})[str(log.partition)] = offset
        ids = {_IDS: dict(sorted(self.ids.items()))} if self.ids else {}
        return {**told, _LIVES: dict(sorted(self.lives.items())), **ids}


def from_json(told: Mapping[str, Any]) -> StreamOffsets:
    """Raises `InvalidArgument` for what no stream of ours wrote."""
    try:
        lives = {check_topic(topic): int(life) for topic, life in told.get(_LIVES, {}).items()}
        ids = {check_topic(topic): str(topic_id) for topic, topic_id in told.get(_IDS, {}).items()}
        offsets = {
            Log(check_topic(topic), int(partition)): int(offset)
            for topic, partitions in told.items()
            if topic not in (_LIVES, _IDS)
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument("checkpoint", f"{told!r:.200} holds no offsets of this source: {error}") from None
    return StreamOffsets(offsets, lives, ids)


def stream_at(offsets: dict[Log, int], ends: Mapping[Log, LogEnds]) -> StreamOffsets:
    """These offsets, of the topics as they are now."""
    lives = {log.topic: at.incarnation for log, at in ends.items()}
    return StreamOffsets(offsets, lives, {log.topic: at.topic_id for log, at in ends.items()})


def why_another(told: StreamOffsets, log: Log, at: LogEnds) -> str | None:
    """Why this log is not the one whose offset is told; None where it may be."""
    if told.lives.get(log.topic, at.incarnation) != at.incarnation:
        return "its topic was deleted and created again"
    if told.ids.get(log.topic, at.topic_id) != at.topic_id:
        return "its topic is another one of the same name: the cluster was emptied, or is another"
    if told.offsets[log] > at.next_offset:
        return f"the log ends at {at.next_offset} now: it is not the one that was read"
    return None


def is_same_life(begin: StreamOffsets, end: StreamOffsets, topic: str) -> bool:
    """Do both tell of one topic? (One of them may be of before there were ids.)"""
    ids = {told.ids[topic] for told in (begin, end) if topic in told.ids}
    return begin.lives.get(topic) == end.lives.get(topic) and len(ids) <= 1


def limited_by_offsets(starts: Mapping[Log, int], stops: Mapping[Log, int], limit: int) -> dict[Log, int]:
    """Each log's share of `limit` by what it has to give, as Spark's Kafka source does it."""
    sizes = {log: stops[log] - start for log, start in starts.items() if stops[log] > start}
    total = sum(sizes.values())
    if total <= limit:
        return dict(stops)
    chosen = dict(starts)
    for log, size in sizes.items():
        share = limit * size / total
        # Whoever has little gets one, or it would wait until the others are done.
        chosen[log] = min(stops[log], starts[log] + math.floor(share if share >= 1 else math.ceil(share)))
    return chosen


async def limited_by_bytes(
    context: LogContext, starts: Mapping[Log, int], stops: Mapping[Log, int], limit: int
) -> dict[Log, int]:
    """As far as `limit` bytes go, the oldest entries first: so no log waits for ever behind a busier one.

    Of each log an equal share is looked at, and once more what that leaves over. Whole entries are taken, and a part of
    a segment. Where not even the first entry fits, it is taken.
    """
    chosen, spare = dict(starts), limit
    for _ in range(2):
        left = [LogRange(log, at, stops[log]) for log, at in chosen.items() if stops[log] > at]
        if not left or spare <= 0:
            break
        known = await gathered_pieces(context, left, bytes_max=spare // len(left) + 1)
        spare -= _take_oldest(known, chosen, spare, one_at_least=spare == limit)
    return chosen


def _take_oldest(known: Sequence[list[Piece]], chosen: dict[Log, int], bytes_max: int, *, one_at_least: bool) -> int:
    """Move `chosen` over pieces, a log's in their order; how many bytes they have."""
    heads = [(pieces[0].created_at_ms, number, 0) for number, pieces in enumerate(known) if pieces]
    heapify(heads)
    used = 0
    while heads and used < bytes_max:
        _, number, place = heappop(heads)
        piece = known[number][place]
        size, rest = piece.wanted_bytes(), bytes_max - used
        if size <= rest or (one_at_least and used == 0 and not piece.in_segment):
            chosen[piece.log], used = piece.stop_offset, used + size
            if place + 1 < len(known[number]):
                heappush(heads, (known[number][place + 1].created_at_ms, number, place + 1))
        elif piece.in_segment:
            offsets = (piece.stop_offset - piece.start_offset) * rest // size
            offsets = max(offsets, 1) if one_at_least and used == 0 else offsets
            if offsets:
                chosen[piece.log], used = piece.start_offset + offsets, used + rest
    return used
