"""All mutants, in the order of the hazards."""

from __future__ import annotations

from typing import Final

from llog.testing.mutants.appending import APPENDING
from llog.testing.mutants.lives import DELETION, VACUUMING
from llog.testing.mutants.mutant import Mutant
from llog.testing.mutants.rewriting import REWRITING
from llog.testing.mutants.sinking import SINKING

MUTANTS: Final[tuple[Mutant, ...]] = tuple(
    sorted((*APPENDING, *REWRITING, *DELETION, *VACUUMING, *SINKING), key=lambda mutant: mutant.name)
)

NOT_COVERED: Final[dict[str, str]] = {}
