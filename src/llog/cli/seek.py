"""Points in a log that a user can name: `earliest`, `latest`, an offset, `-N` for the last N records, `@MS` for the
first record at or after a timestamp."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from llog.errors import InvalidArgument, PartitionNotInitialized, TopicNotFound
from llog.log.context import LogContext
from llog.log.keys import OFFSET_MAX, Log
from llog.log.read.timestamps import offset_for_timestamp
from llog.log.read.view import view
from llog.log.topics.create import load_topic
from llog.pipeline.runtime.log_choice import logs_of

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class SeekTarget(NamedTuple):
    kind: Literal["earliest", "latest", "offset", "last", "timestamp"]
    number: int = 0


class LogSpan(NamedTuple):
    """A log's first readable offset, and the offset of its next record."""

    log: Log
    log_start_offset: int
    next_offset: int
    initialized: bool = True
    """False: nothing was ever appended to this partition."""


def parse_target(text: str, argument: str = "--from") -> SeekTarget:
    if text in ("earliest", "beginning"):
        return SeekTarget("earliest")
    if text in ("latest", "end"):
        return SeekTarget("latest")
    stamped, digits = text.startswith("@"), text.removeprefix("@")
    if _NUMBER.fullmatch(digits) and abs(int(digits)) <= OFFSET_MAX and not (stamped and digits.startswith("-")):
        number = int(digits)
        if stamped:
            return SeekTarget("timestamp", number)
        return SeekTarget("last", -number) if digits.startswith("-") else SeekTarget("offset", number)
    reason = "must be earliest, latest, an offset, -N for the last N, or @MS for a timestamp in milliseconds"
    raise InvalidArgument(argument, f"{text!r} {reason}")


async def read_spans(context: LogContext, topic: str, partition: int | None = None) -> list[LogSpan]:
    """The spans of one partition, or of all partitions of the topic."""
    return [await read_span(context, log) for log in await logs_of(context, topic, partition)]


async def read_span(context: LogContext, log: Log) -> LogSpan:
    try:
        seen = await view(context, log, strict=True)
    except PartitionNotInitialized:
        loaded = await load_topic(context, log.topic, strict=True)
        if loaded is None or loaded[0].state != "LIVE":
            raise TopicNotFound(log.topic, "the topic was deleted while the command ran") from None
        return LogSpan(log, loaded[0].first_offset, loaded[0].first_offset, initialized=False)
    return LogSpan(log, seen.log_start_offset, seen.next_offset)


async def find_offset(context: LogContext, span: LogSpan, target: SeekTarget) -> int:
    """The offset that `target` means. An explicit offset is returned unchecked; the caller checks its range."""
    if target.kind == "offset":
        return target.number
    if target.kind == "earliest" or not span.initialized:
        return span.log_start_offset
    if target.kind == "last":
        return max(span.log_start_offset, span.next_offset - target.number)
    if target.kind == "timestamp":
        record = await offset_for_timestamp(context, span.log, target.number)
        return span.next_offset if record is None else record.offset
    return span.next_offset
