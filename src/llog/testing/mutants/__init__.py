"""Mutants: the protocol with one clause switched off, each judged by the scenario of the hazard it lets in.

    python -m llog.testing.mutants                  # all; exit 1 when one survives
    python -m llog.testing.mutants --only h05a

Why it exists: a scenario that passes proves little until it was seen to fail. Each row of the hazards names the clause
that prevents it; without exactly that clause the row's script must be red, by an expectation of its own.

What must stay true: a mutant is data, an exact piece of source text and what stands there instead. Text that is not
found exactly once is an error of its own ("out of date"), never a mutant that quietly does nothing.
"""

from __future__ import annotations

from typing import Final

from llog.testing.mutants.appending import APPENDING
from llog.testing.mutants.deletion import DELETION, VACUUMING
from llog.testing.mutants.mutant import Edit, Mutant, MutantOutOfDate
from llog.testing.mutants.rewriting import REWRITING
from llog.testing.mutants.sinking import SINKING

__all__ = ["MUTANTS", "NOT_COVERED", "Edit", "Mutant", "MutantOutOfDate"]

MUTANTS: Final[tuple[Mutant, ...]] = tuple(
    sorted((*APPENDING, *REWRITING, *DELETION, *VACUUMING, *SINKING), key=lambda mutant: mutant.name)
)

NOT_COVERED: Final[dict[str, str]] = {}
