"""Choosers decide what happens next: a seed, a recording, a search or a script.

A run is a function of its choices. They are recorded as small numbers, and the same numbers give the same run. Choice 0
is always the plain one (first come, first served; no fault), so a recording may end early. Every chooser is asked, and
its choice recorded, at the same points.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from llog.errors import ReplayDiverged
from llog.testing.sim.actor import Actor
from llog.testing.sim.calls import Call
from llog.testing.sim.faults import Fate, SimFault


class Landing(NamedTuple):
    """A late write takes effect now."""

    call: Call


class Expiry(NamedTuple):
    """The store forgets the sessions of this actor."""

    actor: Actor


class TimePasses(NamedTuple):
    """The next timer goes off: no actor asks for anything, or the store is slow."""


Move = Call | Landing | Expiry | TimePasses
Menu = Callable[[], list[Fate]]


class Chooser(abc.ABC):
    """`taken` is the recording: the choices made so far."""

    fault_rate: float = 0.0
    """Set by the world from its faults; for choosers that draw lots."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    @abc.abstractmethod
    def next_move(self, moves: Sequence[Move], calls: int) -> int:
        """Which of the moves; the first `calls` of them are calls that wait. There are at least two moves."""

    @abc.abstractmethod
    def fate(self, call: Call, menu: Menu) -> Fate | None:
        """What goes wrong with this call; None for nothing."""

    @abc.abstractmethod
    def whether(self) -> bool:
        """Yes or no; no is the plain choice."""


class ScriptChooser(Chooser):
    """First come, first served, and nothing goes wrong by itself: a script decides everything else."""

    def next_move(self, moves: Sequence[Move], calls: int) -> int:
        self.taken.append(0)
        return 0

    def fate(self, call: Call, menu: Menu) -> Fate | None:
        self.taken.append(0)
        return None

    def whether(self) -> bool:
        self.taken.append(0)
        return False


class ReplayChooser(Chooser):
    """The choices of a recording; after its end the plain ones."""

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__()
        self._choices = list(choices)

    def next_move(self, moves: Sequence[Move], calls: int) -> int:
        return self.decide(len(moves))

    def fate(self, call: Call, menu: Menu) -> Fate | None:
        planned = self._planned()
        if planned == 0:
            self.taken.append(0)
            return None
        fates = menu()
        return fates[self.decide(len(fates) + 1) - 1]

    def whether(self) -> bool:
        return self.decide(2) == 1

    def _planned(self) -> int:
        position = len(self.taken)
        return self._choices[position] if position < len(self._choices) else 0

    def decide(self, options: int) -> int:
        choice = self._planned()
        if not 0 <= choice < options:
            raise ReplayDiverged(len(self.taken), choice, options)
        self.taken.append(choice)
        return choice


# How often a late write lands, when a call could be performed instead.
_LANDING_CHANCE: Final = 0.1
# How often time passes although calls wait.
_TIME_CHANCE: Final = 0.15
_PRIORITY_CHANGE_CHANCE: Final = 0.1


class SeededChooser(Chooser):
    """By lot. Half of the seeds treat all waiting calls alike; the others let one actor run far ahead of the rest and
    change their mind now and then, which finds bugs that need an actor to be held for long."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._ranked = self._random.random() < 0.5
        self._ranks: dict[int, float] = {}

    def next_move(self, moves: Sequence[Move], calls: int) -> int:
        choice = self._draw_move(moves, calls)
        self.taken.append(choice)
        return choice

    def _draw_move(self, moves: Sequence[Move], calls: int) -> int:
        if len(moves) > calls:
            other = self._draw_other(moves, calls)
            if other is not None:
                return other
        return self._first_in_rank(moves, calls) if self._ranked else int(self._random.random() * calls)

    def _draw_other(self, moves: Sequence[Move], calls: int) -> int | None:
        """An event that no actor waits for: a session ends, a late write lands; or time passes, when no call waits."""
        draw = self._random.random
        expiries = [i for i in range(calls, len(moves)) if isinstance(moves[i], Expiry)]
        if expiries and draw() < self.fault_rate:
            return self._random.choice(expiries)
        landings = [i for i in range(calls, len(moves)) if isinstance(moves[i], Landing)]
        if landings and draw() < (_LANDING_CHANCE if calls else 0.5):
            return self._random.choice(landings)
        if calls:
            time_may_pass = isinstance(moves[-1], TimePasses)
            return len(moves) - 1 if time_may_pass and draw() < _TIME_CHANCE else None
        return 0 if isinstance(moves[0], TimePasses) else self._random.choice(landings or expiries)

    def _first_in_rank(self, moves: Sequence[Move], calls: int) -> int:
        ranks, draw = self._ranks, self._random.random
        best, best_rank = 0, -1.0
        for position in range(calls):
            move = moves[position]
            assert isinstance(move, Call)
            number = move.actor.number
            rank = ranks.get(number)
            if rank is None:
                rank = ranks[number] = draw()
            if rank > best_rank:
                best, best_rank = position, rank
        if draw() < _PRIORITY_CHANGE_CHANCE:
            chosen = moves[best]
            assert isinstance(chosen, Call)
            ranks[chosen.actor.number] = draw()
        return best

    def fate(self, call: Call, menu: Menu) -> Fate | None:
        if self._random.random() >= self.fault_rate:
            self.taken.append(0)
            return None
        fates = menu()
        if not fates:
            self.taken.append(0)
            return None
        # By kind first: a fault that comes in many measures is not more likely for it.
        kinds: list[SimFault] = list(dict.fromkeys(fate.fault for fate in fates))
        kind = self._random.choice(kinds)
        position = self._random.choice([i for i, fate in enumerate(fates) if fate.fault is kind])
        self.taken.append(position + 1)
        return fates[position]

    def whether(self) -> bool:
        answer = self._random.random() < 0.5
        self.taken.append(int(answer))
        return answer
