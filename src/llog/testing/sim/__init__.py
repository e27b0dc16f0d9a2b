"""A deterministic simulator: production coroutines over simulated stores, with every order and fault chosen.

Three ways to use it: scripts (one exact interleaving), exhaustive search (every interleaving of a small scenario with
one fault anywhere), and long random runs by seed. `python -m llog.testing.sim` is the front end.
"""

from __future__ import annotations

from llog.testing.sim.actor import Actor, ActorContext, ActorOptions, Event
from llog.testing.sim.chooser import Chooser, ReplayChooser, ScriptChooser, SeededChooser
from llog.testing.sim.explore import Exploration, explore
from llog.testing.sim.faults import (
    CRASHES,
    HOUR_MS,
    MANY,
    NO_FAULTS,
    ONE_CRASH,
    ONE_CRASH_OR_STALL,
    ONE_OF_ANY,
    ONE_STALL,
    STALLS,
    Fate,
    Moment,
    SimFault,
    SimFaults,
)
from llog.testing.sim.scenario import (
    SCENARIOS,
    SimRun,
    SimScenario,
    check_repeatable,
    find,
    on_both_stores,
    replay,
    run_script,
    run_seed,
    scenario,
    script,
)
from llog.testing.sim.script import Puppet, Script
from llog.testing.sim.world import World

__all__ = [
    "CRASHES",
    "HOUR_MS",
    "MANY",
    "NO_FAULTS",
    "ONE_CRASH",
    "ONE_CRASH_OR_STALL",
    "ONE_OF_ANY",
    "ONE_STALL",
    "SCENARIOS",
    "STALLS",
    "Actor",
    "ActorContext",
    "ActorOptions",
    "Chooser",
    "Event",
    "Exploration",
    "Fate",
    "Moment",
    "Puppet",
    "ReplayChooser",
    "Script",
    "ScriptChooser",
    "SeededChooser",
    "SimFault",
    "SimFaults",
    "SimRun",
    "SimScenario",
    "World",
    "check_repeatable",
    "explore",
    "find",
    "on_both_stores",
    "replay",
    "run_script",
    "run_seed",
    "scenario",
    "script",
]
