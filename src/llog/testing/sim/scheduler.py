"""Decides what happens next: which waiting call is performed, which late write lands, and how a fault plays out.

When every actor waits for something, `step` collects all that could happen, lets the chooser pick, and does it. Each
store call passes through `perform` exactly once, or is lost.

- Effect and reply are one step unless a fault divides them. That loses nothing: between its reply and its next call an
  actor changes only itself.
- A request that was sent and has lost its caller (crash, exit, cancellation) may still arrive: it becomes a late write,
  judged by its condition when it lands.
- The scheduler draws nothing: every decision is the chooser's, in an order that depends on earlier decisions only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from llog.errors import LlogError, SimulationActorFailed, SimulationError, SimulationStuck, SimulationTooLong
from llog.testing.sim.actor import Actor, waits_of
from llog.testing.sim.calls import Call, digest
from llog.testing.sim.chooser import Chooser, Expiry, Landing, Move, TimePasses
from llog.testing.sim.faults import Fate, SimFault, SimFaults, measured
from llog.testing.sim.loop import SimLoop
from llog.testing.sim.trace import NO_ANSWER, Trace

_TIME: Final = TimePasses()


class SimPace(NamedTuple):
    """How time and store calls go together."""

    call_cost_ms: float = 0
    """How long every store call takes. With 0, time passes only where an actor waits for it, and a search meets equal
    states more often."""
    tick_ms: int = 1
    """Clocks advance in steps of this much. With coarse clocks a search meets equal states more often: a short nap
    leaves no trace in what actors write."""
    patience_ms: float = 1_000
    """A timer due within this time may go off although store calls wait to be performed, as when the store is slow.
    An actor that sleeps longer wakes only when no other can do anything, or by a fault."""


class Scheduler:
    def __init__(self, loop: SimLoop, chooser: Chooser, faults: SimFaults, trace: Trace, pace: SimPace) -> None:
        self.loop, self.chooser, self.faults, self.trace = loop, chooser, faults, trace
        self.actors: list[Actor] = []
        self.waiting: list[Call] = []
        self.late: list[Call] = []
        self.faults_left = faults.budget
        self.faults_met: list[str] = []
        """Names of the faults so far, in order."""
        self.calls_performed = 0
        self.last_step: tuple[Call, Fate | None] | None = None
        """What was done last, and what befell it; None when it was no call."""
        self.unfinished = 0
        """Actors that a run waits for."""
        self.orderly = False
        """First come, first served, without asking the chooser."""
        self.objects_at_once = False
        """Where no actor deletes or lists objects, and every object is written once, before any actor knows its name,
        it makes no difference to others when an object is written or read, so that is done before all else. What goes
        wrong with it is still chosen."""
        self.focus: Actor | None = None
        """Only this actor's calls are performed, in order; the others are held."""
        self.at_each_step: Callable[[], None] | None = None
        """For a search: looks at the state before anything is chosen, and may end the run by raising."""
        self.tracking = False
        """Digest all that the actors observe; costs time, and only a search needs it."""
        self.on_still: list[Callable[[Actor], None]] = []
        self.on_wake: list[Callable[[Actor], None]] = []
        self.on_crash: list[Callable[[Actor], None]] = []
        self.expire_sessions: Callable[[Actor], None]
        self._failures: list[Actor] = []
        self._menus: dict[frozenset[SimFault], tuple[list[Fate], bool]] = {}
        self._sessions_expire = SimFault.SESSION_EXPIRY in faults.kinds
        self._call_cost_s, self._patience_s = pace.call_cost_ms / 1_000, pace.patience_ms / 1_000
        self._fates: dict[SimFault, Callable[[Call, Fate], None]] = {
            SimFault.CRASH_BEFORE: self._crash_before,
            SimFault.CRASH_AFTER: self._crash_after,
            SimFault.CRASH_IN_FLIGHT: self._crash_in_flight,
            SimFault.LOST_REPLY: self._lose_reply,
            SimFault.LOST_REQUEST: self._lose_request,
            SimFault.LATE_WRITE: self._make_late,
            SimFault.UNAVAILABLE: self._refuse,
            SimFault.STALL_BEFORE: self._stall_before,
            SimFault.STALL_AFTER: self._stall_after,
            SimFault.DELAY_REQUEST: self._delay_request,
            SimFault.DELAY_REPLY: self._delay_reply,
            SimFault.STALE_READ: self._answer_from_the_past,
            SimFault.LOST_NOTICE: self._miss,
        }

    # -- asking -------------------------------------------------------------------------------------------------------
    def submit(self, call: Call) -> Call:
        """From now on the call waits to be performed; await it."""
        actor = call.actor
        if actor.dead:
            # Only a coroutine that is being thrown away gets here: it goes on being thrown away.
            raise GeneratorExit
        actor.calls += 1
        call.number = actor.calls
        call.future = asyncio.Future(loop=self.loop)
        call.give_up = self._give_up
        self.waiting.append(call)
        return call

    def _give_up(self, call: Call) -> None:
        call.abandoned = True
        if call in self.waiting:
            self.waiting.remove(call)
            self._leave_in_flight(call)

    def _leave_in_flight(self, call: Call) -> None:
        if call.writes:
            self.late.append(call)

    # -- the step -----------------------------------------------------------------------------------------------------
    def run(self, until: Callable[[], bool]) -> None:
        loop = self.loop

        def step() -> bool:
            if loop.timers and loop.fire_due():
                return True
            if self._failures or loop.complaints:
                self._raise_failure()
            if until():
                return False
            if self.at_each_step is not None:
                self.at_each_step()
            self._choose()
            return True

        try:
            loop.run(step)
        except SimulationTooLong as error:
            raise SimulationTooLong(error.reason, waits_of(self.actors, self.waiting)) from None

    def _raise_failure(self) -> None:
        """A failure is raised once: the scenario may catch it and go on with the others."""
        if self._failures:
            failed = self._failures.pop(0)
            assert failed.error is not None
            raise SimulationActorFailed(failed.name, failed.error) from failed.error
        complaints, self.loop.complaints = self.loop.complaints, []
        raise SimulationError("; ".join(complaints))

    def _choose(self) -> None:
        waiting: Sequence[Call] = self.waiting
        alone = self.focus is not None
        if alone:
            waiting = [call for call in waiting if call.actor is self.focus]
        if self.objects_at_once and not (alone or self.orderly):
            at_once = self._first_object_call()
            if at_once is not None:
                self._do(at_once)
                return
        others = () if alone or self.orderly else self._other_moves()
        moves: Sequence[Move] = [*waiting, *others] if others else waiting
        due_s = self.loop.next_due_s() if self.loop.timers else None
        if due_s is not None:
            if not waiting:
                moves = [_TIME, *moves]
            elif due_s - self.loop.now_s <= self._patience_s:
                moves = [*moves, _TIME]
        if not moves:
            who = f"{self.focus.name} alone cannot" if self.focus is not None else "no actor can"
            raise SimulationStuck(f"{who} do anything any more", waits_of(self.actors, self.waiting))
        plain = alone or self.orderly or len(moves) == 1
        self._do(moves[0 if plain else self.chooser.next_move(moves, len(waiting))])

    def _first_object_call(self) -> Call | None:
        for call in self.waiting:
            if call.breaks_objects_at_once:
                raise SimulationError(f"{call.actor.name} {call.words()}, in a scenario that does objects at once")
        return next((call for call in self.waiting if call.of_one_object), None)

    def _other_moves(self) -> Sequence[Move]:
        expiries: Sequence[Move] = ()
        if self._sessions_expire and self.faults_left > 0:
            expiries = [
                Expiry(actor)
                for actor in self.actors
                if actor.sessions and not (actor.dead or actor.options.faultless) and actor.has_session()
            ]
        return [*(Landing(call) for call in self.late), *expiries] if self.late or expiries else ()

    def _do(self, move: Move) -> None:
        self.last_step = None
        if isinstance(move, Call):
            fate = self.chooser.fate(move, lambda: self.menu(move)) if self.may_fail(move) else None
            self.last_step = move, fate
            self.perform(move, fate)
        elif isinstance(move, Landing):
            self.land(move.call)
        elif isinstance(move, Expiry):
            self.faults_left -= 1
            self.faults_met.append(SimFault.SESSION_EXPIRY.name)
            self.expire(move.actor)
        else:
            self.pass_time()

    def may_fail(self, call: Call) -> bool:
        return self.faults_left > 0 and not (call.untouchable or call.actor.options.faultless or self.focus)

    def menu(self, call: Call) -> list[Fate]:
        """All that could go wrong with this call in this run."""
        menu = self._menus.get(call.faults)
        if menu is None:
            kinds = call.faults & self.faults.kinds
            fixed = [fate for fault in SimFault if fault in kinds for fate in measured(fault, self.faults)]
            menu = self._menus[call.faults] = (fixed, SimFault.STALE_READ in kinds)
        fixed, may_be_stale = menu
        if not may_be_stale:
            return fixed
        moments = call.old_answers(self.faults.stale_states_max)
        return [*fixed, *(Fate(SimFault.STALE_READ, moment=moment) for moment in moments)]

    def pass_time(self) -> None:
        due_s = self.loop.next_due_s()
        if due_s is not None:
            self.loop.now_s = max(self.loop.now_s, due_s)

    # -- performing a call --------------------------------------------------------------------------------------------
    def perform(self, call: Call, fate: Fate | None = None) -> None:
        self.waiting.remove(call)
        self.calls_performed += 1
        if fate is None:
            moment = call.actor.reads_as_of
            if moment is not None and SimFault.STALE_READ in call.faults:
                self._answer_from_the_past(call, Fate(SimFault.STALE_READ, moment=moment))
            else:
                answer = self._effect(call)
                self.trace.call(call, None, answer)
                self._reply(call, answer)
        else:
            self.faults_left -= 1
            self.faults_met.append(fate.fault.name)
            actor = call.actor
            actor.observed = hash(
                (actor.observed, call.number, self.loop.clock_ms(), fate.fault.value, fate.ms, fate.moment)
            )
            self._fates[fate.fault](call, fate)
        self.loop.now_s += self._call_cost_s

    def land(self, call: Call) -> None:
        """A late write takes effect; no caller waits for its answer."""
        self.late.remove(call)
        answer = self._effect(call)
        self.trace.note(f"late, of {call.actor.name}: {call.words()} → {call.answer_words(answer)}")

    def _effect(self, call: Call) -> Any:
        try:
            return call.perform()
        except LlogError as error:
            return error

    def _reply(self, call: Call, answer: Any) -> None:
        actor = call.actor
        if actor.dead or call.abandoned or call.future.done():
            return
        if self.tracking:
            actor.observed = hash((actor.observed, call.number, self.loop.clock_ms(), digest(answer)))
        if isinstance(answer, BaseException):
            call.future.set_exception(answer)
        else:
            call.future.set_result(answer)

    # -- fates --------------------------------------------------------------------------------------------------------
    def _crash_before(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, NO_ANSWER)
        self.crash(call.actor)

    def _crash_after(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, self._effect(call))
        self.crash(call.actor)

    def _crash_in_flight(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, NO_ANSWER)
        self._leave_in_flight(call)
        self.crash(call.actor)

    def _lose_reply(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, self._effect(call))
        self._reply(call, call.uncertain())

    def _lose_request(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, NO_ANSWER)
        self._reply(call, call.uncertain())

    def _make_late(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, NO_ANSWER)
        self.late.append(call)
        self._reply(call, call.uncertain())

    def _refuse(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, NO_ANSWER)
        self._reply(call, call.unavailable())

    def _stall_before(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, NO_ANSWER)
        call.untouchable = True
        self.fall_asleep(call.actor, fate.ms, call)

    def _stall_after(self, call: Call, fate: Fate) -> None:
        answer = self._effect(call)
        self.trace.call(call, fate, answer)
        self._reply(call, answer)
        self.fall_asleep(call.actor, fate.ms)

    def _delay_request(self, call: Call, fate: Fate) -> None:
        self.trace.call(call, fate, NO_ANSWER)
        call.untouchable = True
        self.loop.engine_call_later(call.actor.name, fate.ms, self._arrive, call)

    def _arrive(self, call: Call) -> None:
        if call.abandoned or call.actor.dead:
            self._leave_in_flight(call)
        else:
            self.waiting.append(call)

    def _delay_reply(self, call: Call, fate: Fate) -> None:
        answer = self._effect(call)
        self.trace.call(call, fate, answer)
        # On its way it is part of the state already: its answer is decided.
        call.actor.observed = hash((call.actor.observed, digest(answer)))
        self.loop.engine_call_later(call.actor.name, fate.ms, self._reply, call, answer)

    def _answer_from_the_past(self, call: Call, fate: Fate) -> None:
        answer = call.perform_as_of(fate.moment)
        self.trace.call(call, fate, answer)
        self._reply(call, answer)

    def _miss(self, call: Call, fate: Fate) -> None:
        answer = call.perform_missing()
        self.trace.call(call, fate, answer)
        self._reply(call, answer)

    # -- what befalls an actor ----------------------------------------------------------------------------------------
    def crash(self, actor: Actor) -> None:
        """Nothing of it ever runs again. What it had sent may still arrive."""
        if actor.dead:
            return
        actor.crashed = True
        self._stop_for_good(actor)
        for hook in self.on_crash:
            hook(actor)

    def end(self, actor: Actor) -> None:
        """Its function returned or raised: the process exits."""
        if actor.error is not None and not isinstance(actor.error, actor.options.may_fail):
            self._failures.append(actor)
            self.trace.note(f"{actor.name} fails: {type(actor.error).__name__}: {actor.error}")
        self._stop_for_good(actor)

    def _stop_for_good(self, actor: Actor) -> None:
        actor.still = actor.dead = actor.ended = True
        self.unfinished -= not actor.options.daemon
        mine = [call for call in self.waiting if call.actor is actor]
        for call in mine:
            self.waiting.remove(call)
            self._leave_in_flight(call)
        for hook in self.on_still:
            hook(actor)

    def fall_asleep(self, actor: Actor, ms: float, unsent: Call | None = None) -> None:
        """The whole process stands still for so long; then it sends what it was about to send."""
        actor.asleep = actor.still = True
        actor.naps += 1
        if unsent is not None:
            actor.unsent.append(unsent)
        for hook in self.on_still:
            hook(actor)
        self.loop.engine_call_later(actor.name, ms, self._nap_over, actor, actor.naps)

    def _nap_over(self, actor: Actor, nap: int) -> None:
        if actor.naps == nap:
            self.wake(actor)

    def wake(self, actor: Actor) -> None:
        if actor.dead or not actor.asleep:
            return
        actor.asleep = actor.still = False
        actor.observed = hash((actor.observed, "woke", self.loop.clock_ms()))
        self.trace.note(f"{actor.name} wakes")
        for hook in self.on_wake:
            hook(actor)
        self.waiting += actor.unsent
        actor.unsent = []
        self.loop.put_back(actor.take_backlog())

    def expire(self, actor: Actor) -> None:
        actor.observed = hash((actor.observed, "sessions lost", self.loop.clock_ms()))
        self.trace.note(f"the store forgets the sessions of {actor.name}")
        self.expire_sessions(actor)

    def settle_late(self, lands: Callable[[Call], bool]) -> None:
        """Each late write lands now, or never will."""
        for call in list(self.late):
            if lands(call):
                self.land(call)
            else:
                self.late.remove(call)
                self.trace.note(f"never: {call.actor.name} {call.words()}")
