"""`python -m tests.benchmarks [--out DIR] [--store] [NAME…]`: run the benchmarks; exit 1 when one is short of its bar.

`DIR/last.json` keeps the last figures of each; `--store` keeps them in `docs/measurements/bench.json` too, from where
`make docs` writes the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
from pathlib import Path

import tests.benchmarks
from tests.benchmarks.harness import run_all

# gRPC tells every child process of a later benchmark that it was there.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def register_all() -> None:
    for module in pkgutil.iter_modules(tests.benchmarks.__path__):
        if module.name.startswith("bench_"):
            importlib.import_module(f"tests.benchmarks.{module.name}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; all if left out")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--store", action="store_true", help="also replace the committed figures")
    options = parser.parse_args()
    register_all()
    return 0 if run_all(options.names, options.out, store=options.store) else 1


if __name__ == "__main__":
    raise SystemExit(main())
