"""`python -m llog.testing.mutants.child NAME`: the row's scenario, in a process that runs the mutant."""

from __future__ import annotations

import sys

from llog.testing.mutants.catalogue import MUTANTS
from llog.testing.mutants.hook import install
from llog.testing.mutants.mutant import MutantOutOfDate

OUT_OF_DATE = 3


def main(name: str) -> int:
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    try:
        install(mutant)
        # Only now: this imports what the mutant changes.
        from llog.testing.sim.__main__ import main as simulate

        return simulate(["--load", "llog.testing.hazards", "--scenario", mutant.row])
    except MutantOutOfDate as error:
        print(f"mutants: {error}")
        return OUT_OF_DATE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
