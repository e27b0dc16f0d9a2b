"""Mutants: production code with one clause of the protocol removed. The scenario of the hazard must then fail.

    python -m llog.testing.mutants                  # all; exit 1 when one survives
    python -m llog.testing.mutants --only h05a

Each hazard names the clause that prevents it; without exactly that clause, its script must fail by one of its own
expectations. A mutant is data: an exact piece of source text and its replacement. Text that does not occur exactly once
is an error ("out of date"), never a mutant that changes nothing.
"""

from __future__ import annotations

from typing import Final

from llog.testing.mutants.appending import APPENDING
from llog.testing.mutants.deletion import DELETION, VACUUMING
from llog.testing.mutants.grouping import GROUPING
from llog.testing.mutants.mutant import Edit, Mutant, MutantOutOfDate
from llog.testing.mutants.rewriting import REWRITING
from llog.testing.mutants.sinking import SINKING

__all__ = ["MUTANTS", "NOT_COVERED", "Edit", "Mutant", "MutantOutOfDate"]

MUTANTS: Final[tuple[Mutant, ...]] = tuple(
    sorted((*APPENDING, *REWRITING, *DELETION, *VACUUMING, *SINKING, *GROUPING), key=lambda mutant: mutant.name)
)

NOT_COVERED: Final[dict[str, str]] = {}
