"""A history as operations: each request joined with its answer, or with none.

An operation without an answer ends NEVER: it may take effect at any time after the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from llog.errors import InvalidArgument
from llog.log.keys import Log
from llog.testing.history.events import (
    NEVER,
    ActAnswered,
    ActAsked,
    AppendAnswered,
    AppendAsked,
    Noted,
    Observed,
    ReadAnswered,
    ReadAsked,
)

Asked = TypeVar("Asked", AppendAsked, ReadAsked, ActAsked)
Answer = TypeVar("Answer", AppendAnswered, ReadAnswered, ActAnswered)


@dataclass(frozen=True, slots=True)
class Operation(Generic[Asked, Answer]):
    actor: str
    asked_at: int
    answered_at: int
    asked: Asked
    answer: Answer | None

    @property
    def log(self) -> Log:
        return self.asked.log


class Append(Operation[AppendAsked, AppendAnswered]):
    """One attempt to append one batch to one log."""

    __slots__ = ()

    @property
    def outcome(self) -> str:
        return "uncertain" if self.answer is None else self.answer.outcome

    @property
    def start_offset(self) -> int:
        return -1 if self.answer is None else self.answer.start_offset


class Read(Operation[ReadAsked, ReadAnswered]):
    __slots__ = ()


class Action(Operation[ActAsked, ActAnswered]):
    """Fence, unfence, retention, deletion, creation."""

    __slots__ = ()

    @property
    def act(self) -> str:
        return self.asked.act

    @property
    def done(self) -> bool:
        return self.answer is not None and self.answer.done

    @property
    def over_at(self) -> int:
        """From when on it can have no effect any more. A refused action may yet have happened in part."""
        return self.answered_at if self.done else NEVER


class Observation(NamedTuple):
    actor: str
    values: Observed


class Operations(NamedTuple):
    appends: list[Append]
    reads: list[Read]
    acts: list[Action]
    observations: list[Observation]

    def of(self, log: Log) -> Operations:
        """Those that concern one log; the deletion of a topic concerns all of its logs."""
        return Operations(
            [x for x in self.appends if x.log == log],
            [x for x in self.reads if x.log == log],
            [x for x in self.acts if x.log == log or (x.log.topic == log.topic and x.act in _OF_TOPICS)],
            [x for x in self.observations if x.values.log == log],
        )

    def logs(self) -> set[Log]:
        return {x.log for x in self.appends} | {x.log for x in self.reads}


_OF_TOPICS: Final = ("delete_topic", "create_topic")
_KINDS: Final[dict[type, tuple[type, type[Operation[Any, Any]]]]] = {
    AppendAsked: (AppendAnswered, Append),
    ReadAsked: (ReadAnswered, Read),
    ActAsked: (ActAnswered, Action),
}
"""By request: the type of its answer, and of both together."""


def operations_of(history: Iterable[Noted]) -> Operations:
    """Raises `InvalidArgument` for an impossible history: an answer without a request, a number used twice."""
    asked: dict[tuple[str, int], Noted] = {}
    answers: dict[tuple[str, int], Noted] = {}
    observations = []
    for noted in history:
        event = noted.event
        name = (noted.actor, event.op)
        if isinstance(event, Observed):
            observations.append(Observation(noted.actor, event))
        elif type(event) in _KINDS:
            if name in asked:
                raise InvalidArgument("history", f"{name} was asked twice")
            asked[name] = noted
        elif name not in asked or name in answers:
            raise InvalidArgument("history", f"an answer to {name}, which was not asked or was answered before")
        else:
            answers[name] = noted
    joined = [_join(request, answers.get(name)) for name, request in asked.items()]
    return Operations(
        [one for one in joined if isinstance(one, Append)],
        [one for one in joined if isinstance(one, Read)],
        [one for one in joined if isinstance(one, Action)],
        observations,
    )


def _join(request: Noted, answer: Noted | None) -> Operation[Any, Any]:
    answer_type, kind = _KINDS[type(request.event)]
    if answer is None:
        return kind(request.actor, request.at, NEVER, request.event, None)
    if not isinstance(answer.event, answer_type):
        raise InvalidArgument("history", f"{answer.event} answers {request.event}")
    return kind(request.actor, request.at, answer.at, request.event, answer.event)
