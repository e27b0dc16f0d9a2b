"""`python -m llog.testing.mutants [--only GLOB]`: run every mutant in its own process and name the survivors.

A mutant is killed when its hazard's script fails by an expectation (`HazardViolated`). Any other end, such as an import
error, is a mistake in the mutant or the script and counts as a failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from tempfile import NamedTemporaryFile
from typing import Final, NamedTuple
from unittest import mock

from llog.testing.mutants import MUTANTS, NOT_COVERED, Mutant
from llog.testing.mutants.child import play

# Mutants of the protocol that are judged at the same time, and how long one may take.
MUTANTS_AT_ONCE: Final = 2
MUTANT_SECONDS_MAX: Final = 180

PRELOAD: Final = "llog.testing.mutants.preload"
PROGRAM = "python -m llog.testing.mutants"


class MutantResult(NamedTuple):
    mutant: Mutant
    killed: bool
    verdict: str


def judge(mutant: Mutant, code: int, output: str) -> MutantResult:
    violated = re.search(rf"^sim: {re.escape(mutant.row)}: script: HazardViolated: (.*)", output, re.MULTILINE)
    if code == 1 and violated is not None:
        return MutantResult(mutant, True, violated[1])
    if code == 0:
        return MutantResult(mutant, False, f"SURVIVED: {mutant.why}")
    lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
    reason = next((line for line in lines if line.startswith(("sim: ", "mutants: "))), lines[-1])
    return MutantResult(mutant, False, f"NOT JUDGED (exit {code}): {reason}")


def run(mutant: Mutant) -> MutantResult:
    with NamedTemporaryFile("r", prefix="llog-mutant-") as output:
        process = _processes().Process(target=play, args=(mutant.name, output.name))
        process.start()
        process.join(MUTANT_SECONDS_MAX)
        if process.exitcode is None:
            process.kill()
            process.join()
            return MutantResult(mutant, False, f"NOT JUDGED: no end after {MUTANT_SECONDS_MAX} s")
        return judge(mutant, process.exitcode, output.read())


@cache
def _processes() -> ForkServerContext:
    """Processes forked from one that has loaded what all mutants share; none of them comes from this process, which may
    have loaded what a mutant changes. Their hashes are pinned, as in `llog.testing.sim`."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([PRELOAD])
    with mock.patch.dict(os.environ, {"PYTHONHASHSEED": "0"}):
        forkserver.ensure_running()
    return processes


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM)
    parser.add_argument("--only", default="*", metavar="GLOB", help="rows or names of mutants; default: all")
    only = parser.parse_args(arguments).only
    chosen = [m for m in MUTANTS if fnmatchcase(m.row, only) or fnmatchcase(m.name, only)]
    if not chosen:
        print(f"mutants: none fits {only!r}; there are: {', '.join(m.name for m in MUTANTS)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    alive = 0
    with ThreadPoolExecutor(MUTANTS_AT_ONCE) as pool:
        for result in pool.map(run, chosen):
            alive += not result.killed
            print(f"mutants: {result.mutant.name}: {'killed: ' if result.killed else ''}{result.verdict}", flush=True)
    for row, reason in NOT_COVERED.items():
        if fnmatchcase(row, only):
            print(f"mutants: {row}: not covered yet: {reason}")
    seconds = time.monotonic() - started
    print(f"{len(chosen) - alive} killed, {alive} not, {seconds:.1f} s")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
