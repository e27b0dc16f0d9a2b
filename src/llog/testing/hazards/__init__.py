"""Every known hazard as a script: the order of events that breaks the protocol where a rule is missing.

    python -m llog.testing.sim --load llog.testing.hazards --scenario h05a

Each script passes with the rules and fails when the clause of its row in docs/hazards.md is removed
(`python -m llog.testing.mutants`). Importing this package registers all of them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
