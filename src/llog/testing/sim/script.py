"""Scripts: one interleaving, written down step by step.

    def late_settle(world: World) -> None:
        script = Script(world)
        writer = script.actor("writer", append_one)
        other = script.actor("other", append_one)
        writer.run_until("put", "*/index/*")      # held just before it writes its index entry
        other.finish()                            # the other runs to its end
        writer.perform(SimFault.LOST_REPLY)       # the entry is written, but the writer gets no answer
        writer.finish()

An actor performs a call only when the script says so. Other actors are held at their next call; their local code runs,
and time passes for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llog.errors import InvalidArgument, SimulationStuck
from llog.testing.sim.actor import Actor, ActorFunction, ActorOptions, waits_of
from llog.testing.sim.calls import Call
from llog.testing.sim.faults import HOUR_MS, STALLS, Fate, Moment, SimFault
from llog.testing.sim.trace import span_words
from llog.testing.sim.world import World


class Script:
    """Drives a world step by step. The world needs a `ScriptChooser` (the default)."""

    def __init__(self, world: World) -> None:
        self.world = world

    def actor(self, name: str, run: ActorFunction, options: ActorOptions | None = None, **changes: Any) -> Puppet:
        """Options as in `World.actor`."""
        return Puppet(self, self.world.actor(name, run, options, **changes))

    # -- all together -------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """All actors run to their end, first come, first served."""
        self.world.run()

    def pass_time(self, ms: float) -> None:
        """No call is performed, but timers go off: an actor that sleeps that long wakes."""
        self.world.trace.note(f"{span_words(ms)} pass")
        loop = self.world.loop
        end_s = loop.now_s + ms / 1_000

        def there() -> bool:
            due_s = loop.next_due_s()
            if due_s is not None and due_s <= end_s:
                loop.now_s = max(loop.now_s, due_s)
                loop.fire_due()
                return False
            loop.now_s = end_s
            return True

        self._drive(there)

    def _drive(self, until: Callable[[], bool]) -> None:
        """Local code only, again and again until it is so."""
        scheduler = self.world.scheduler
        done = False

        def settled() -> bool:
            nonlocal done
            done = until()
            return True

        while not done:
            scheduler.run(settled)

    def settle(self) -> None:
        """Let local code run until every actor waits for something."""
        self._drive(lambda: True)

    def inside(self, action: Callable[[], None]) -> None:
        """Change the stores from outside any actor, and let the actors react."""

        def do() -> bool:
            action()
            return True

        self._drive(do)
        self.settle()

    # -- the past and the late ----------------------------------------------------------------------------------------
    def moment(self) -> Moment:
        """Now, to be read from later: `puppet.reads_as_of(moment)` or `Fate(SimFault.STALE_READ, moment=moment)`."""
        return self.world.metadata.moment()

    def late(self, operation: str = "*", path: str = "*") -> list[Call]:
        """Writes still on their way."""
        return [call for call in self.world.scheduler.late if call.matches(operation, path)]

    def land(self, operation: str = "*", path: str = "*") -> None:
        """The first late write that fits takes effect."""
        late = self.late(operation, path)
        if not late:
            raise InvalidArgument("land", f"no write to {path!r} is on its way")
        self.inside(lambda: self.world.scheduler.land(late[0]))


class Puppet:
    """One actor in the hands of a script."""

    def __init__(self, script: Script, actor: Actor) -> None:
        self._script, self.actor = script, actor
        self._world, self._scheduler = script.world, script.world.scheduler

    @property
    def result(self) -> Any:
        """What its function returned."""
        return self.actor.result

    def waiting(self, operation: str = "*", path: str = "*") -> list[Call]:
        """The calls it is held at."""
        calls = self._scheduler.waiting
        return [call for call in calls if call.actor is self.actor and call.matches(operation, path)]

    # -- moving on ----------------------------------------------------------------------------------------------------
    def run_until(self, operation: str, path: str = "*") -> Puppet:
        """Perform its calls until it is about to do that (globs, `*` for any), and hold it there.

        Operations: get, scan, scan_tree, time, put, delete, open_session, close_session, notice; put_object,
        get_object, get_ranges, get_tail, head_object, list_objects, delete_object. It stays where it is when it is
        about to do that already; `perform` takes it over.
        """
        self._run(lambda: self.actor.ended or bool(self.waiting(operation, path)))
        if self.actor.ended and not self.waiting(operation, path):
            reason = f"{self.actor.name} {self.actor.state} before it came to {operation} {path}"
            raise SimulationStuck(reason, waits_of(self._scheduler.actors, self._scheduler.waiting))
        return self

    def perform(self, fate: Fate | SimFault | None = None, operation: str = "*", path: str = "*") -> Puppet:
        """Perform the call it is held at (the first that fits), so or so, and let it go on to its next one."""
        self._script.settle()
        calls = self.waiting(operation, path)
        if not calls:
            reason = f"{self.actor.name} is not about to {operation} {path}"
            raise SimulationStuck(reason, waits_of(self._scheduler.actors, self._scheduler.waiting))
        [call, *_] = calls
        fate = self._with_measure(call, fate)
        self._scheduler.faults_left += fate is not None
        self._script.inside(lambda: self._scheduler.perform(call, fate))
        return self

    def _with_measure(self, call: Call, fate: Fate | SimFault | None) -> Fate | None:
        if isinstance(fate, SimFault):
            moments = call.old_answers(1) if fate is SimFault.STALE_READ else []
            ms = 2 * HOUR_MS if fate in STALLS else 30_000
            fate = Fate(fate, ms, moments[0] if moments else ())
        if fate is not None and fate.fault not in call.faults:
            raise InvalidArgument("fate", f"{fate.fault.value} cannot befall a call that {call.words()}")
        if fate is not None and fate.fault is SimFault.STALE_READ and not fate.moment:
            raise InvalidArgument("fate", f"there is no older answer when it {call.words()}")
        return fate

    def finish(self) -> Any:
        """Run it to its end; what it returned."""
        self._run(lambda: self.actor.ended)
        return self.actor.result

    def _run(self, until: Callable[[], bool]) -> None:
        before = self._scheduler.focus
        self._scheduler.focus = self.actor
        try:
            self._scheduler.run(until)
        finally:
            self._scheduler.focus = before

    # -- what befalls it ----------------------------------------------------------------------------------------------
    def crash(self) -> None:
        self._world.trace.note(f"{self.actor.name} crashes")
        self._scheduler.crash(self.actor)

    def sleep(self, ms: float = 2 * HOUR_MS) -> None:
        """The whole process stands still for so long, or until `wake`. Requests it has sent still arrive."""
        self._world.trace.note(f"{self.actor.name} falls asleep for {span_words(ms)}")
        self._scheduler.fall_asleep(self.actor, ms)

    def wake(self) -> None:
        self._script.inside(lambda: self._scheduler.wake(self.actor))

    def expire_sessions(self) -> None:
        self._script.inside(lambda: self._scheduler.expire(self.actor))

    def reads_as_of(self, moment: Moment | None) -> None:
        """From now on its reads that are not strict answer from that moment; None: from now again."""
        self.actor.reads_as_of = moment

    def set_clock(self, skew_ms: int) -> None:
        """How far its clock is ahead of true time."""
        self._world.trace.note(f"the clock of {self.actor.name} is {span_words(abs(skew_ms))} off ({skew_ms:+d} ms)")
        self.actor.skew_ms = skew_ms
