"""`python -m tests.benchmarks [--out DIR] [NAME…]`: run the benchmarks; exit 1 when one is short of its bar."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
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
    register_all()
    arguments = sys.argv[1:]
    out = Path("build/bench")
    if arguments[:1] == ["--out"]:
        out, arguments = Path(arguments[1]), arguments[2:]
    return 0 if run_all(arguments, out) else 1


if __name__ == "__main__":
    raise SystemExit(main())
