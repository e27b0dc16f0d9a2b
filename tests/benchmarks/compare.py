"""`python -m tests.benchmarks.compare OTHER_CHECKOUT NAME…`: this checkout against another one, round by round.

Both checkouts prepare the benchmark in a process of their own and then take turns, so that a busy machine slows both
alike. The value is the median over the rounds of this checkout's rate divided by the other's. The other checkout needs
the same benchmarks and the same environment; `git worktree add DIRECTORY REVISION` makes one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 11
AT_LEAST = 0.95
HERE = Path(__file__).parents[2]


async def _serve_rounds(name: str) -> None:
    """In a checkout's own process: prepare the benchmark, then run one round per line of standard input."""
    from tests.benchmarks.__main__ import register_all
    from tests.benchmarks.harness import REGISTRY, _timed

    register_all()
    async with REGISTRY[name].prepare() as duel:
        await _timed(duel.ours, duel)
        print("round: ready", flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(f"round: {duel.work / await _timed(duel.ours, duel)} {duel.unit_of_work}/{duel.per}", flush=True)


class Checkout:
    def __init__(self, root: Path, name: str) -> None:
        paths = os.pathsep.join([str(root), str(root / "src")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve-rounds", name],
            cwd=root,
            env={**os.environ, "PYTHONPATH": paths, "GRPC_VERBOSITY": "ERROR"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("round: "):
                return line.removeprefix("round: ").strip()
        raise SystemExit(f"a checkout's process ended with {self._process.wait()}")

    def round(self) -> tuple[float, str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        rate, unit = self.answer().split(" ", 1)
        return float(rate), unit

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)


def compare(other: Path, name: str, rounds: int) -> bool:
    """Print one line; False when this checkout is slower than the bar."""
    ours, theirs = Checkout(HERE, name), Checkout(other, name)
    ours.answer()
    theirs.answer()
    rates: list[tuple[float, float]] = []
    unit = ""
    for number in range(rounds):
        if number % 2:
            rate, unit = ours.round()
            rates.append((rate, theirs.round()[0]))
        else:
            before, unit = theirs.round()
            rates.append((ours.round()[0], before))
    ours.close()
    theirs.close()
    ratios = [here / there for here, there in rates]
    value = statistics.median(ratios)
    verdict = "ok" if value >= AT_LEAST else "short"
    print(
        f"{name}: {value:.2f} × the other checkout ({min(ratios):.2f}–{max(ratios):.2f}; bar ≥ {AT_LEAST:g}) {verdict}"
        f"  [{statistics.median(rate for rate, _ in rates):,.0f} {unit};"
        f" before {statistics.median(rate for _, rate in rates):,.0f}]",
        flush=True,
    )
    return value >= AT_LEAST


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("names", nargs="+", help="benchmarks")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    results = [compare(options.other.resolve(), name, options.rounds) for name in options.names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve-rounds"]:
        import uvloop

        uvloop.run(_serve_rounds(sys.argv[2]))
    else:
        raise SystemExit(main())
