"""A history as operations: each request joined with its answer, or with none.

An operation without an answer ends NEVER: it may take effect at any time after the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from llog.errors import InvalidArgument
from llog.log.keys import Log
from llog.testing.history.events import (
    NEVER,
    ActAsked,
    ActTold,
    AppendAsked,
    AppendTold,
    Noted,
    Observed,
    ReadAsked,
    ReadTold,
)


class Append(NamedTuple):
    """One attempt to append one batch to one log."""

    actor: str
    asked_at: int
    told_at: int
    log: Log
    asked: AppendAsked
    told: AppendTold | None

    @property
    def outcome(self) -> str:
        return "uncertain" if self.told is None else self.told.outcome

    @property
    def start_offset(self) -> int:
        return -1 if self.told is None else self.told.start_offset


class Read(NamedTuple):
    actor: str
    asked_at: int
    told_at: int
    log: Log
    asked: ReadAsked
    told: ReadTold | None


class Action(NamedTuple):
    """Fence, unfence, retention, deletion, creation."""

    actor: str
    asked_at: int
    told_at: int
    log: Log
    asked: ActAsked
    told: ActTold | None

    @property
    def act(self) -> str:
        return self.asked.act

    @property
    def done(self) -> bool:
        return self.told is not None and self.told.done

    @property
    def over_at(self) -> int:
        """From when on it can have no effect any more. What was refused may yet have happened in part."""
        return self.told_at if self.done else NEVER


class Observation(NamedTuple):
    actor: str
    at: int
    log: Log
    values: Observed


class Operations(NamedTuple):
    appends: list[Append]
    reads: list[Read]
    acts: list[Action]
    seen: list[Observation]

    def of(self, log: Log) -> Operations:
        """Those that concern one log; what happens to a topic happens to all of its logs."""
        return Operations(
            [x for x in self.appends if x.log == log],
            [x for x in self.reads if x.log == log],
            [x for x in self.acts if x.log == log or (x.log.topic == log.topic and x.act in _OF_TOPICS)],
            [x for x in self.seen if x.log == log],
        )

    def logs(self) -> set[Log]:
        return {x.log for x in self.appends} | {x.log for x in self.reads}


_OF_TOPICS = ("delete_topic", "create_topic")


def operations_of(history: Iterable[Noted]) -> Operations:
    """Raises `InvalidArgument` for a history that cannot be: an answer to nothing, a number used twice."""
    found = Operations([], [], [], [])
    asked: dict[tuple[str, int], Noted] = {}
    told: dict[tuple[str, int], Noted] = {}
    for noted in history:
        event = noted.event
        name = (noted.actor, event.op)
        if isinstance(event, Observed):
            found.seen.append(Observation(noted.actor, noted.at, Log(event.topic, event.partition), event))
        elif isinstance(event, AppendAsked | ReadAsked | ActAsked):
            if name in asked:
                raise InvalidArgument("history", f"{name} was asked twice")
            asked[name] = noted
        elif name not in asked or name in told:
            raise InvalidArgument("history", f"an answer to {name}, which was not asked or was answered before")
        else:
            told[name] = noted
    for name, question in asked.items():
        _join(found, question, told.get(name))
    return found


def _join(found: Operations, question: Noted, answer: Noted | None) -> None:
    asked, told = question.event, None if answer is None else answer.event
    told_at = NEVER if answer is None else answer.at
    log = Log(asked.topic, asked.partition)
    if isinstance(asked, AppendAsked):
        if not (told is None or isinstance(told, AppendTold)):
            raise InvalidArgument("history", f"{told} answers {asked}")
        found.appends.append(Append(question.actor, question.at, told_at, log, asked, told))
    elif isinstance(asked, ReadAsked):
        if not (told is None or isinstance(told, ReadTold)):
            raise InvalidArgument("history", f"{told} answers {asked}")
        found.reads.append(Read(question.actor, question.at, told_at, log, asked, told))
    elif isinstance(asked, ActAsked):
        if not (told is None or isinstance(told, ActTold)):
            raise InvalidArgument("history", f"{told} answers {asked}")
        found.acts.append(Action(question.actor, question.at, told_at, log, asked, told))
