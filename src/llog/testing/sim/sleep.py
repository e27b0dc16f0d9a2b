"""Sleep sets: of two independent calls, one order is enough.

A search that prunes on states alone still plays every order of independent calls, and finds only at the end of each
that it knows the state. With sleep sets, a step that was tried at a state is asleep in the branches beside it, until
these do something that it depends on (Godefroid, 1996). A step that is asleep is not tried: it leads where the first
order led.

A step is a call of one actor with its fate: plain (0), or the nth fate on its menu. Two steps of different actors
depend on each other when the calls do (`Call.commutes_with`); a fate before the effect depends on no other call; after
a fault the remaining faults differ, since fewer are left.

A state is remembered together with the steps that were asleep when it was searched. A run that reaches it with fewer
asleep searches only the missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from llog.testing.sim.calls import Call
from llog.testing.sim.faults import BEFORE_EFFECT, DEPEND_ON_THE_PAST, SimFault

if TYPE_CHECKING:
    from llog.testing.sim.chooser import Move
    from llog.testing.sim.scheduler import Scheduler

PLAIN: Final = 0


class KnownFuture(Exception):
    """Ends a run: everything from here on was searched, or will be."""


class SleepStep(NamedTuple):
    """Equal for the same step of the same actor, in whichever run."""

    actor: int
    call: int
    option: int


Asleep = dict[SleepStep, Call]
"""With the call of one of the runs, to judge what it depends on."""


class _Point(NamedTuple):
    """One step of the run that is being played."""

    asleep: Asleep
    missing: frozenset[SleepStep] | None
    """Not None: the state is known, and only these are worth trying."""


class SleepSets:
    """Of one search. `begin` at each run, then `look` at each step."""

    def __init__(self) -> None:
        self._known: dict[int, frozenset[SleepStep]] = {}
        self._points: list[_Point] = []
        """Of the path that is being followed, and beyond."""
        self._point_of_choice: list[int] = []
        self._scheduler: Scheduler
        self._at = -1
        self._choices = 0
        self._passed: list[Call] = []
        self._all_awake = False

    @property
    def states(self) -> int:
        return len(self._known)

    def begin(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._at, self._choices = -1, 0
        self._passed, self._all_awake = [], False

    def wake_all(self) -> None:
        """Something happens that is no call of an actor."""
        self._all_awake = True

    def back_to(self, choice: int) -> None:
        """The next run takes another way at this choice."""
        del self._points[self._point_of_choice[choice] + 1 :]
        del self._point_of_choice[choice:]

    # -- at each step -------------------------------------------------------------------------------------------------
    def look(self, state_of: Callable[[], int]) -> None:
        """Before anything is chosen. Ends the run when nothing new can come of it."""
        self._at += 1
        if self._at < len(self._points):
            self._passed, self._all_awake = [], False
            return
        asleep = {} if self._all_awake else self._asleep_after_last_step()
        state, sleepers = state_of(), frozenset(asleep)
        known = self._known.get(state)
        missing: frozenset[SleepStep] | None = None
        if known is None:
            self._known[state] = sleepers
        else:
            missing = known - sleepers
            if not missing:
                raise KnownFuture
            self._known[state] = known & sleepers
        self._points.append(_Point(asleep, missing))
        self._passed, self._all_awake = [], False

    def _asleep_after_last_step(self) -> Asleep:
        last = self._scheduler.last_step
        if self._at == 0 or last is None:
            return {}
        point = self._points[self._at - 1]
        call, fate = last
        option = PLAIN if fate is None else self._scheduler.menu(call).index(fate) + 1
        if not self._is_worth(point, SleepStep(call.actor.number, call.number, option)):
            raise KnownFuture
        asleep = dict(point.asleep)
        for passed in self._passed:
            for step in self._steps_of(passed):
                # At a state that was known, the steps of the first visit were tried while the missing ones slept: they
                # did not see to what comes after these.
                if point.missing is None or step in point.missing:
                    asleep[step] = passed
        return {step: other for step, other in asleep.items() if self._stays_asleep(step, other, call, option)}

    def _stays_asleep(self, step: SleepStep, other: Call, call: Call, option: int) -> bool:
        if step.actor == call.actor.number:
            return False
        if option != PLAIN and step.option != PLAIN:
            return False  # there are fewer faults left
        faults = {self._fault(other, step.option), self._fault(call, option)} - {None}
        if faults & DEPEND_ON_THE_PAST:
            return False
        return bool(faults & BEFORE_EFFECT) or call.commutes_with(other)

    def _fault(self, call: Call, option: int) -> SimFault | None:
        if option == PLAIN:
            return None
        menu = self._scheduler.menu(call)
        # How many old answers a read may have changes as it waits.
        return menu[option - 1].fault if option <= len(menu) else SimFault.STALE_READ

    # -- at each choice -----------------------------------------------------------------------------------------------
    def at_choice(self) -> None:
        if self._choices == len(self._point_of_choice):
            self._point_of_choice.append(max(self._at, 0))
        self._choices += 1

    def moves_worth(self, moves: Sequence[Move]) -> list[int]:
        return [
            number
            for number, move in enumerate(moves)
            if not isinstance(move, Call) or any(self._is_worth(self._here(), step) for step in self._steps_of(move))
        ]

    def fates_worth(self, call: Call) -> list[int]:
        return [step.option for step in self._steps_of(call) if self._is_worth(self._here(), step)]

    def passed_over(self, moves: Sequence[Move]) -> None:
        """Tried before at this state, in all the ways that were worth it."""
        self._passed = [move for move in moves if isinstance(move, Call)]

    def _here(self) -> _Point:
        return self._points[self._at]

    def _steps_of(self, call: Call) -> list[SleepStep]:
        options = 1 + (len(self._scheduler.menu(call)) if self._scheduler.may_fail(call) else 0)
        return [SleepStep(call.actor.number, call.number, option) for option in range(options)]

    def _is_worth(self, point: _Point, step: SleepStep) -> bool:
        return step not in point.asleep if point.missing is None else step in point.missing
