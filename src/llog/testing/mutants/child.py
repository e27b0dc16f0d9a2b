"""The row's scenario, in a process that runs the mutant."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from llog.testing.mutants import MUTANTS
from llog.testing.mutants.mutant import Mutant, MutantOutOfDate

OUT_OF_DATE = 3


class _MutatingLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = importlib.util.decode_source(self.get_data(path))
        code: CodeType = compile(self._mutant.mutated(fullname, source), path, "exec", dont_inherit=True)
        return code


class _MutatingFinder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant, self._modules = mutant, frozenset(mutant.modules())

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _MutatingLoader(fullname, spec.origin, self._mutant)
        return spec


def install(mutant: Mutant) -> None:
    """From here on this process runs the mutant. Before anything that it changes was imported."""
    early = [module for module in mutant.modules() if module in sys.modules]
    if early:
        raise MutantOutOfDate(f"mutant {mutant.name}: {', '.join(early)} was imported before it could be changed")
    sys.meta_path.insert(0, _MutatingFinder(mutant))


def play(name: str, output: str) -> None:
    """Play the scenario of the mutant's row in this process, write to the file `output`, and exit with the result."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    try:
        install(mutant)
        # Only now: this imports what the mutant changes.
        from llog.testing.sim.__main__ import main as simulate

        code = simulate(["--load", "llog.testing.hazards", "--scenario", mutant.row])
    except MutantOutOfDate as error:
        print(f"mutants: {error}")
        code = OUT_OF_DATE
    sys.exit(code)
