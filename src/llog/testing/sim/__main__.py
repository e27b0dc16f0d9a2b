"""`python -m llog.testing.sim`: random runs, searches and scripts from the command line.

    python -m llog.testing.sim --load my.scenarios --schedules 1000 --seed 7 --jobs 2
    python -m llog.testing.sim --load my.scenarios --scenario 'h0*'
    python -m llog.testing.sim --load my.scenarios --scenario two-writers --exhaustive

Random runs print their first seed. A run that fails prints the command that replays it, and its trace.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import os
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from llog.errors import SimulationNotRepeatable
from llog.limits import SIM_EXPLORE_RUNS_MAX, SIM_EXPLORE_STATES_MAX
from llog.testing.sim.explore import explore, trimmed
from llog.testing.sim.scenario import SCENARIOS, SimRun, SimScenario, check_repeatable, replay, run_script, run_seed

# Random runs that one process plays before it reports them.
SIM_JOB_SCHEDULES_MAX: Final = 100

PROGRAM = "python -m llog.testing.sim"
# Modules that are loaded without --load.
DEFAULT_MODULES: tuple[str, ...] = (
    "llog.testing.batching_scenarios",
    "llog.testing.group_scenarios",
    "llog.testing.hazards",
    "llog.testing.incarnation_scenarios",
    "llog.testing.log_scenarios",
    "llog.testing.piece_scenarios",
    "llog.testing.producer_scenarios",
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=PROGRAM)
    parser.add_argument("--load", action="append", default=[], metavar="MODULE", help="where scenarios are defined")
    parser.add_argument("--scenario", default="*", metavar="GLOB", help="which; default: all")
    parser.add_argument("--schedules", type=int, default=200, help="random runs per scenario")
    parser.add_argument("--seed", type=int, default=None, help="the first one; the others follow")
    parser.add_argument("--jobs", type=int, default=1, help="random runs in so many processes")
    parser.add_argument("--exhaustive", action="store_true", help="search every run instead")
    parser.add_argument("--states-max", type=int, default=SIM_EXPLORE_STATES_MAX)
    parser.add_argument("--runs-max", type=int, default=SIM_EXPLORE_RUNS_MAX)
    parser.add_argument("--choices", type=choices_of, metavar="N.N.N", help="play one run of a search again")
    parser.add_argument("--trace", action="store_true", help="print the trace of green runs too")
    parser.add_argument("--list", action="store_true", help="only name the scenarios")
    return parser.parse_args(arguments)


def choices_of(text: str) -> list[int]:
    if not all(part.isdecimal() for part in text.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers with dots between them")
    return [int(part) for part in text.split(".")]


def text_of(choices: Sequence[int]) -> str:
    return ".".join(map(str, trimmed(choices))) or "0"


def pin_hashes() -> None:
    """Sets of strings iterate by hashes that Python draws anew in every process: one seed must mean one run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "llog.testing.sim", *sys.argv[1:]])


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    for module in (*DEFAULT_MODULES, *options.load):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            print(f"sim: --load {module}: {error}", file=sys.stderr)
            return 2
    chosen = [what for name, what in sorted(SCENARIOS.items()) if fnmatchcase(name, options.scenario)]
    if not chosen:
        known = ", ".join(sorted(SCENARIOS)) or "none; name a module that defines some with --load"
        print(f"sim: no scenario fits {options.scenario!r}; there are: {known}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(what.name for what in chosen))
        return 0
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    red = sum(not run_one(what, options, seed) for what in chosen)
    print(f"{len(chosen) - red} passed, {red} failed")
    return 1 if red else 0


def run_one(what: SimScenario, options: argparse.Namespace, seed: int) -> bool:
    """Whether it passed; prints a line, and the trace of a failure."""
    again = ["--load", what.module, "--scenario", what.name]
    if what.scripted:
        return report(run_script(what), "script", again, options.trace)
    if options.choices is not None:
        return report(replay(what, options.choices), "replay", [*again, f"--choices={text_of(options.choices)}"], True)
    if options.exhaustive:
        return run_search(what, options, again)
    return run_random(what, options, seed, again)


def run_search(what: SimScenario, options: argparse.Namespace, again: Sequence[str]) -> bool:
    started = time.monotonic()
    found = explore(what, states_max=options.states_max, runs_max=options.runs_max)
    said = f"search: {found} ({time.monotonic() - started:.1f} s)"
    if found.red is not None:
        return report(found.red, said, [*again, f"--choices={text_of(found.red.choices)}"], options.trace)
    print(f"sim: {what.name}: {said}", flush=True)
    return True


def run_random(what: SimScenario, options: argparse.Namespace, seed: int, again: Sequence[str]) -> bool:
    started, calls = time.monotonic(), 0
    try:
        check_repeatable(what, seed)
    except SimulationNotRepeatable as error:
        print(f"sim: {error}", flush=True)
        return False
    for batch in run_batches(what, options, seed):
        calls += batch.calls
        if batch.red is not None:
            # Played again here, for its trace.
            replayed = [*again, "--schedules", "1", "--seed", str(batch.red)]
            report(run_seed(what, batch.red), f"seed {batch.red}", replayed, options.trace)
            return False
    seconds = time.monotonic() - started
    done = f"{options.schedules} schedules from seed {seed}, {calls} store calls, {seconds:.1f} s"
    print(f"sim: {what.name}: {done}: ok", flush=True)
    return True


class PlayedSchedules(NamedTuple):
    """Some schedules, one after the other."""

    calls: int
    red: int | None
    """The seed of the first red one; the rest was not played."""


def run_batches(what: SimScenario, options: argparse.Namespace, seed: int) -> Iterator[PlayedSchedules]:
    """All schedules in the order of their seeds, played by as many processes as asked for."""
    numbers = range(seed, seed + options.schedules)
    batches = [numbers[i : i + SIM_JOB_SCHEDULES_MAX] for i in range(0, len(numbers), SIM_JOB_SCHEDULES_MAX)]
    if options.jobs <= 1 or options.trace or len(batches) == 1:
        for batch in batches:
            yield run_batch(what.name, batch, options.trace)
        return
    # Forked: the children have the scenarios that were loaded here.
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        yield from pool.imap(_run_batch_of, [(what.name, batch) for batch in batches])


def _run_batch_of(job: tuple[str, range]) -> PlayedSchedules:
    return run_batch(*job)


def run_batch(name: str, seeds: range, trace: bool = False) -> PlayedSchedules:
    what, calls = SCENARIOS[name], 0
    # Objects that exist now stay: scanning them for garbage again and again costs a tenth of the time.
    gc.collect()
    gc.freeze()
    try:
        for number in seeds:
            run = run_seed(what, number, keep_trace=trace)
            calls += run.calls
            if not run.ok:
                return PlayedSchedules(calls, number)
            if trace:
                report(run, f"seed {number}", [], True)
    finally:
        gc.unfreeze()
    return PlayedSchedules(calls, None)


def report(run: SimRun, how: str, again: Sequence[str], trace: bool) -> bool:
    if run.ok:
        print(f"sim: {run.scenario.name}: {how}: ok", flush=True)
        if trace:
            print("\n".join(run.trace), flush=True)
        return True
    print(f"sim: {run.scenario.name}: {how}: {type(run.error).__name__}: {run.error}")
    print(f"    replay: {PROGRAM} {shlex.join(again)}")
    print(run.printed, flush=True)
    return False


if __name__ == "__main__":
    pin_hashes()
    raise SystemExit(main(sys.argv[1:]))
