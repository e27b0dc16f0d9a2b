"""Which answers may leave, and which wait for the group's record (rules G1 and G2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from llog.groups.codes import GroupCode
from llog.groups.records import GroupHead

Ticket = object
"""Names a request for its caller; the machines only carry it to the reply."""


class Answer(Protocol):
    """An answer of one API."""

    @property
    def code(self) -> GroupCode: ...

    def refused(self, code: GroupCode) -> Answer:
        """The answer of the same API that says nothing but this error."""
        ...


class Reply(NamedTuple):
    ticket: Ticket
    answer: Answer
    member_id: str = ""
    """Whose session begins anew when the answer leaves, because it could not send heartbeats while it waited."""


class Step(NamedTuple):
    """What the caller does after one event: send `replies`, write `write`, call `tick` at `wake_at_ms`."""

    replies: tuple[Reply, ...]
    """Answers that may leave now."""
    write: GroupHead | None
    """The record to write at the version that was read or written last. Answers that wait for it are returned by
    `written`; state `Dead` means that the record is to be deleted. At most one write is under way."""
    wake_at_ms: int
    """Not later than the next deadline."""


class Outbox:
    """Holds answers back until the record that makes them true is written.

    At most one write is under way. Changes that happen meanwhile are collected into the next one, so a group under
    load writes as often as the store can, not once per request.
    """

    def __init__(self) -> None:
        self._in_flight = False
        self._changed = False
        self._leaving: list[Reply] = []
        self._undecided: list[Reply] = []
        self._held: list[Reply] = []
        self._held_for_next: list[Reply] = []

    @property
    def unwritten(self) -> bool:
        return self._in_flight or self._changed

    def change(self) -> None:
        """The record differs from what is stored."""
        self._changed = True

    def send(self, reply: Reply) -> None:
        """An answer that reveals nothing that is not stored."""
        self._leaving.append(reply)

    def send_when_written(self, reply: Reply) -> None:
        self._undecided.append(reply)

    def waits(self, member_id: str) -> bool:
        """Whether an answer to this member is held back."""
        return any(reply.member_id == member_id for reply in (*self._held, *self._held_for_next))

    def finish(self, build: Callable[[], GroupHead], wake_at_ms: int) -> Step:
        """End the step: decide which answers leave, and build the record if a write begins."""
        write = None
        if self._changed and not self._in_flight:
            write = build()
            self._in_flight, self._changed = True, False
            self._held = [*self._held_for_next, *self._undecided]
            self._held_for_next = []
        elif self._changed:
            self._held_for_next += self._undecided
        elif self._in_flight:
            self._held += self._undecided
        else:
            self._leaving += self._undecided
        leaving, self._leaving, self._undecided = tuple(self._leaving), [], []
        return Step(leaving, write, wake_at_ms)

    def release(self) -> list[Reply]:
        """The write under way succeeded: its answers leave with the step that `finish` ends."""
        released, self._held, self._in_flight = self._held, [], False
        self._leaving += released
        return released

    def refuse_all(self, code: GroupCode) -> list[Reply]:
        """Every answer that waits, replaced by an error. Nothing is written any more."""
        self._in_flight = self._changed = False
        waiting = [*self._held, *self._held_for_next, *self._undecided]
        self._held, self._held_for_next, self._undecided = [], [], []
        return [Reply(reply.ticket, reply.answer.refused(code)) for reply in waiting]
