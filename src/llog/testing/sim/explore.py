"""Searches every run of a small scenario, by replay.

A run is a list of choices. The search goes through all of them depth first, plays the scenario from its beginning each
time, and ends a run at a state that it has seen before.

- Two runs that reach one state go on alike: the state is a hash of the stores, of every answer that each actor got and
  when, of writes still on their way, of the time and of the faults left (`World.state`).
- The order in which actors recorded events is part of the state, because a checker may judge by it. A scenario whose
  checker does not is marked `ordered=False`: it meets equal states more often, and of two independent calls only one
  order is searched (`sleep`).
- Time is part of the state through clocks and timers. Code that reads the loop's time, or shares memory between actors,
  is searched less completely.
- A search that stopped early has `complete` False, and `cut_by` names the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llog.limits import SIM_EXPLORE_RUNS_MAX, SIM_EXPLORE_STATES_MAX
from llog.testing.sim.calls import Call
from llog.testing.sim.chooser import Chooser, Menu, Move
from llog.testing.sim.faults import Fate
from llog.testing.sim.scenario import SimRun, SimScenario, replay
from llog.testing.sim.sleep import KnownFuture, SleepSets
from llog.testing.sim.world import World


@dataclass(frozen=True, slots=True)
class Exploration:
    scenario: SimScenario
    runs: int
    states: int
    calls: int
    depth: int
    """The most choices in one run."""
    cut_by: str | None
    red: SimRun | None
    """The first red run, if there was one."""

    @property
    def complete(self) -> bool:
        return self.cut_by is None and self.red is None

    def __str__(self) -> str:
        end = "complete" if self.complete else f"cut by {self.cut_by}" if self.cut_by else "red"
        return f"{self.runs} runs, {self.states} states, {self.calls} store calls, depth {self.depth}: {end}"


class _SearchChooser(Chooser):
    """Follows a path, then takes the first choice that leads to something new, and notes which others would."""

    def __init__(self, path: Sequence[int], sleep: SleepSets | None) -> None:
        super().__init__()
        self._path, self._sleep = path, sleep
        self.open: list[Sequence[int]] = []
        """The choices at each point that are worth taking."""

    def beyond_path(self) -> bool:
        return len(self.taken) >= len(self._path)

    def _decide(self, worth: Sequence[int]) -> int:
        if not worth:
            raise KnownFuture
        position = len(self.taken)
        choice = self._path[position] if position < len(self._path) else worth[0]
        self.taken.append(choice)
        self.open.append(worth)
        if self._sleep is not None:
            self._sleep.at_choice()
        return choice

    def next_move(self, moves: Sequence[Move], calls: int) -> int:
        sleep = self._sleep
        choice = self._decide(range(len(moves)) if sleep is None else sleep.moves_worth(moves))
        if sleep is not None:
            sleep.passed_over(moves[:choice])
        return choice

    def fate(self, call: Call, menu: Menu) -> Fate | None:
        fates = menu()
        choice = self._decide(range(len(fates) + 1) if self._sleep is None else self._sleep.fates_worth(call))
        return fates[choice - 1] if choice else None

    def whether(self) -> bool:
        if self._sleep is not None:
            self._sleep.wake_all()
        return self._decide(range(2)) == 1

    def next_path(self) -> list[int] | None:
        """The next one, depth first; None when all were taken."""
        for position in range(len(self.taken) - 1, -1, -1):
            taken = self.taken[position]
            later = next((choice for choice in self.open[position] if choice > taken), None)
            if later is not None:
                if self._sleep is not None:
                    self._sleep.back_to(position)
                return [*self.taken[:position], later]
        return None


def explore(
    what: SimScenario,
    *,
    states_max: int = SIM_EXPLORE_STATES_MAX,
    runs_max: int = SIM_EXPLORE_RUNS_MAX,
    prune: bool = True,
) -> Exploration:
    """All runs with the scenario's `search_faults`, until one is red or a limit is reached. Without `prune` every run
    is played to its end, also when its future is known: to test the pruning itself."""
    seen: set[int] = set()
    sleep = None if what.ordered or not prune else SleepSets()
    path: list[int] | None = []
    runs = calls = depth = states = 0
    cut_by: str | None = None
    red: SimRun | None = None
    while path is not None and red is None:
        if runs >= runs_max or states >= states_max:
            cut_by = f"{runs_max} runs" if runs >= runs_max else f"{states_max} states"
            break
        chooser = _SearchChooser(path, sleep)
        with what.world(chooser, what.search_faults, 0) as world:
            if sleep is None:
                failed = _play(what, world, chooser, seen, prune)
            else:
                failed = _play_reduced(what, world, chooser, sleep)
            calls += world.scheduler.calls_performed
        runs, states = runs + 1, len(seen) if sleep is None else sleep.states
        depth = max(depth, len(chooser.taken))
        if failed:
            red = replay(what, trimmed(chooser.taken))
        path = chooser.next_path()
    return Exploration(what, runs, states, calls, depth, cut_by, red)


def _play(what: SimScenario, world: World, chooser: _SearchChooser, seen: set[int], prune: bool) -> bool:
    """Whether the run was red."""

    def look() -> None:
        if chooser.beyond_path():
            state = world.state(history=what.ordered)
            if prune and state in seen:
                raise KnownFuture
            seen.add(state)

    world.scheduler.at_each_step = look
    return _is_red(what, world)


def _play_reduced(what: SimScenario, world: World, chooser: _SearchChooser, sleep: SleepSets) -> bool:
    sleep.begin(world.scheduler)
    world.scheduler.at_each_step = lambda: sleep.look(lambda: world.state(history=False))
    return _is_red(what, world)


def _is_red(what: SimScenario, world: World) -> bool:
    world.scheduler.tracking = True
    try:
        what.play(world)
    except KnownFuture:
        return False
    except Exception:
        return True
    return False


def trimmed(choices: Sequence[int]) -> list[int]:
    """Without the plain choices at the end, which a replay makes by itself."""
    end = len(choices)
    while end and choices[end - 1] == 0:
        end -= 1
    return list(choices[:end])
