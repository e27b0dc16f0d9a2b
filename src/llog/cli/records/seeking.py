"""Where in a log: `earliest`, `latest`, an offset, `-N` for the last N, `@MS` for the first record since then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from llog.errors import InvalidArgument, PartitionNotInitialized, TopicNotFound
from llog.log.context import LogContext
from llog.log.keys import OFFSET_MAX, Log
from llog.log.read.timestamps import offset_for_timestamp
from llog.log.read.view import view
from llog.log.topics.create import load_topic

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class Place(NamedTuple):
    kind: Literal["earliest", "latest", "offset", "last", "timestamp"]
    number: int = 0


class Ends(NamedTuple):
    """A log's first readable offset, and the one its next record gets."""

    log: Log
    log_start_offset: int
    next_offset: int
    there: bool = True
    """False: of this partition nothing was ever written."""


def parse_place(text: str, argument: str = "--from") -> Place:
    if text in ("earliest", "beginning"):
        return Place("earliest")
    if text in ("latest", "end"):
        return Place("latest")
    stamped, digits = text.startswith("@"), text.removeprefix("@")
    if _NUMBER.fullmatch(digits) and abs(int(digits)) <= OFFSET_MAX and not (stamped and digits.startswith("-")):
        number = int(digits)
        if stamped:
            return Place("timestamp", number)
        return Place("last", -number) if digits.startswith("-") else Place("offset", number)
    reason = "must be earliest, latest, an offset, -N for the last N, or @MS for a timestamp in milliseconds"
    raise InvalidArgument(argument, f"{text!r} {reason}")


async def read_ends(context: LogContext, logs: Sequence[Log]) -> list[Ends]:
    ends = []
    for log in logs:
        try:
            seen = await view(context, log, strict=True)
            ends.append(Ends(log, seen.log_start_offset, seen.next_offset))
        except PartitionNotInitialized:
            found = await load_topic(context, log.topic, strict=True)
            if found is None or found[0].state != "LIVE":
                raise TopicNotFound(log.topic, "it was deleted meanwhile") from None
            ends.append(Ends(log, found[0].first_offset, found[0].first_offset, there=False))
    return ends


async def find_place(context: LogContext, ends: Ends, place: Place) -> int:
    """The offset it means; an offset given as such is left as it is, for its user to refuse or accept."""
    if place.kind == "offset":
        return place.number
    if place.kind == "earliest" or not ends.there:
        return ends.log_start_offset
    if place.kind == "last":
        return max(ends.log_start_offset, ends.next_offset - place.number)
    if place.kind == "timestamp":
        found = await offset_for_timestamp(context, ends.log, place.number)
        return ends.next_offset if found is None else found.offset
    return ends.next_offset
