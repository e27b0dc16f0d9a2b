"""Scenarios by name, and one run of one of them.

    @scenario("two-writers", faults=MANY, atomic_groups=False, shards=4)
    def two_writers(world: World) -> None:
        ...start actors, world.run(), world.calm(), assert what must hold...

A scenario that raises fails. Its `SimRun` holds the error, the trace and the choices that led there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llog.errors import InvalidArgument, SimulationNotRepeatable
from llog.testing.sim.chooser import Chooser, ReplayChooser, ScriptChooser, SeededChooser
from llog.testing.sim.faults import NO_FAULTS, SimFaults
from llog.testing.sim.script import Script
from llog.testing.sim.world import World


@dataclass(frozen=True, slots=True)
class SimScenario:
    name: str
    play: Callable[[World], None]
    faults: SimFaults = NO_FAULTS
    """What may happen in random runs."""
    search_faults: SimFaults = NO_FAULTS
    """What may happen in an exhaustive search."""
    scripted: bool = False
    """It decides everything itself: one run is all there is."""
    module: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its `World`."""
    ordered: bool = True
    """It may be judged by the order in which actors recorded events; see `explore`."""

    def world(self, chooser: Chooser, faults: SimFaults, seed: int) -> World:
        return World(chooser, faults=faults, seed=seed, **self.options)


@dataclass(frozen=True, slots=True)
class SimRun:
    """What came of one run."""

    scenario: SimScenario
    error: Exception | None
    trace: Sequence[str]
    choices: Sequence[int]
    calls: int
    printed: str = ""
    """The trace for a person; of red runs only."""

    @property
    def ok(self) -> bool:
        return self.error is None


SCENARIOS: dict[str, SimScenario] = {}


def scenario(
    name: str,
    *,
    faults: SimFaults = NO_FAULTS,
    search_faults: SimFaults = NO_FAULTS,
    ordered: bool = True,
    **options: Any,
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Register a scenario. `options` are arguments of its `World`: shards, atomic_groups, call_cost_ms, …"""

    def register(play: Callable[[World], None]) -> Callable[[World], None]:
        _add(SimScenario(name, play, faults, search_faults, False, play.__module__, options, ordered))
        return play

    return register


def on_both_stores(
    name: str, *, shards: int = 2, **options: Any
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Register a scenario twice: `NAME-cas` on a store without atomic groups, `NAME-atomic` on a store with them."""

    def register(play: Callable[[World], None]) -> Callable[[World], None]:
        scenario(f"{name}-cas", atomic_groups=False, shards=shards, **options)(play)
        return scenario(f"{name}-atomic", atomic_groups=True, **options)(play)

    return register


def script(name: str, **options: Any) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Register a scripted scenario: it gets a `Script` and decides every step."""

    def register(play: Callable[[Script], None]) -> Callable[[Script], None]:
        def play_world(world: World) -> None:
            play(Script(world))

        _add(SimScenario(name, play_world, scripted=True, module=play.__module__, options=options))
        return play

    return register


def _add(new: SimScenario) -> None:
    if new.name in SCENARIOS:
        raise InvalidArgument("name", f"there is a scenario {new.name!r} already")
    SCENARIOS[new.name] = new


def find(name: str) -> SimScenario:
    if name not in SCENARIOS:
        known = ", ".join(sorted(SCENARIOS)) or "none are loaded"
        raise InvalidArgument("scenario", f"no scenario {name!r}; there are: {known}")
    return SCENARIOS[name]


def play(what: SimScenario, chooser: Chooser, faults: SimFaults, seed: int, *, keep_trace: bool = True) -> SimRun:
    """One run. Whatever the scenario raises makes it red."""
    with what.world(chooser, faults, seed) as world:
        error: Exception | None = None
        try:
            what.play(world)
        except Exception as raised:
            error = raised
        keep = keep_trace or error is not None
        return SimRun(
            what,
            error,
            world.trace.lines() if keep else (),
            list(chooser.taken) if keep else (),
            world.scheduler.calls_performed,
            world.trace.printed() if error is not None else "",
        )


def run_seed(what: SimScenario, seed: int, *, keep_trace: bool = True) -> SimRun:
    """A random run."""
    return play(what, SeededChooser(seed), what.faults, seed, keep_trace=keep_trace)


def run_script(what: SimScenario) -> SimRun:
    return play(what, ScriptChooser(), NO_FAULTS, 0)


def replay(what: SimScenario, choices: Sequence[int], *, seed: int = 0, search: bool = True) -> SimRun:
    """The run that made these choices: in a search, or by the lots of a seed."""
    return play(what, ReplayChooser(choices), what.search_faults if search else what.faults, seed)


def check_repeatable(what: SimScenario, seed: int) -> None:
    """Run one seed twice. Raises `SimulationNotRepeatable` with the first line that differs."""
    first, second = run_seed(what, seed).trace, run_seed(what, seed).trace
    for one, other in zip([*first, "the end"], [*second, "the end"], strict=False):
        if one != other:
            raise SimulationNotRepeatable(what.name, one, other)
