"""How llog measures itself: ours against a baseline, interleaved, in the same run.

The machine is shared and noisy, so absolute figures are only reported (median, min–max); a bar is always the median
over rounds of a ratio whose two sides ran right after each other. A benchmark is an async context manager that
prepares and yields a `Duel`; `python -m tests.benchmarks [NAME…]` runs them (see `make bench`).
"""

from __future__ import annotations

import gc
import inspect
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from llog.testing.servers import ServerUnavailable
from tests.benchmarks.history import (
    BENCHES,
    Origin,
    Spread,
    StoredBench,
    changes_of,
    note_run,
    read_benches,
    store_bench,
    this_origin,
)

ROUNDS_MIN = 9

Side = Callable[[], Any] | Callable[[], Awaitable[Any]]


class Cost(float):
    """Seconds of another kind than the clock's, measured by the side itself: what it returns counts then."""


@dataclass(frozen=True)
class Duel:
    """Both sides do the same amount of work per call (or say so with `ours_work` / `baseline_work`)."""

    ours: Side
    baseline: Side
    work: float
    """How much one call of `ours` does, in `unit_of_work`."""
    unit_of_work: str
    """What the reported rate counts, e.g. "MB" or "puts"."""
    baseline_work: float | None = None
    """How much one call of the baseline does, when it is another amount (a slow baseline does less)."""
    after_each: Callable[[], None] | None = None
    """Clean-up outside the clock."""
    per: str = "s"
    """What a rate is per, e.g. "CPU-s" when the sides return such a `Cost`."""
    remarks: Callable[[], str] | None = None
    """What else there is to report, once the rounds are over."""


@dataclass(frozen=True)
class Benchmark:
    name: str
    prepare: Callable[[], AbstractAsyncContextManager[Duel]]
    against: str
    at_least: float | None
    at_most: float | None
    rounds: int
    goal: str
    judged: bool = True
    """False: here the value is only reported."""
    worst: bool = False
    """The bar holds for every round, not for their median."""


REGISTRY: dict[str, Benchmark] = {}


def benchmark(
    name: str,
    *,
    against: str,
    at_least: float | None = None,
    at_most: float | None = None,
    rounds: int = ROUNDS_MIN,
    goal: str = "",
    judged: bool = True,
    worst: bool = False,
) -> Callable[[Callable[[], AbstractAsyncContextManager[Duel]]], Callable[[], AbstractAsyncContextManager[Duel]]]:
    """Register. The value is ours' rate over the baseline's rate with `at_least`, ours' time over the baseline's time
    with `at_most`."""
    assert (at_least is None) != (at_most is None), "one bar"
    assert rounds >= ROUNDS_MIN

    def register(
        prepare: Callable[[], AbstractAsyncContextManager[Duel]],
    ) -> Callable[[], AbstractAsyncContextManager[Duel]]:
        assert name not in REGISTRY, name
        REGISTRY[name] = Benchmark(name, prepare, against, at_least, at_most, rounds, goal, judged, worst)
        return prepare

    return register


@dataclass
class Result:
    name: str
    ok: bool
    value: float
    bar: str
    against: str
    goal: str
    unit_of_work: str
    ratios: list[float] = field(default_factory=list)
    ours_rate: dict[str, float] = field(default_factory=dict)
    baseline_rate: dict[str, float] = field(default_factory=dict)
    judged: bool = True
    per: str = "s"
    remarks: str = ""
    higher_is_better: bool = True

    def line(self) -> str:
        rate, base = self.ours_rate, self.baseline_rate
        verdict = ("ok" if self.ok else "short") if self.judged else "reported only"
        spread = f"{min(self.ratios):.2f}–{max(self.ratios):.2f}"
        return (
            f"{self.name}: {self.value:.2f} × {self.against} ({spread}; bar {self.bar}) {verdict}"
            f"  [{rate['median']:,.0f} {self.unit_of_work}/{self.per}, {rate['min']:,.0f}–{rate['max']:,.0f};"
            f" baseline {base['median']:,.0f}{'; goal ' + self.goal if self.goal else ''}]"
            f"{' ' + self.remarks if self.remarks else ''}"
        )


async def try_once(bench: Benchmark) -> None:
    """Both sides, once, without a bar: does the benchmark still run?"""
    async with bench.prepare() as duel:
        await _timed(duel.ours, duel)
        await _timed(duel.baseline, duel)


async def run(bench: Benchmark) -> Result:
    async with bench.prepare() as duel:
        baseline_work = duel.work if duel.baseline_work is None else duel.baseline_work
        await _timed(duel.ours, duel)  # warm both: imports, caches, connections
        await _timed(duel.baseline, duel)
        ours, baseline = [], []
        for round_number in range(bench.rounds):
            # Whoever goes second may find warmer caches or a busier disk: take turns.
            if round_number % 2:
                ours.append(duel.work / await _timed(duel.ours, duel))
                baseline.append(baseline_work / await _timed(duel.baseline, duel))
            else:
                baseline.append(baseline_work / await _timed(duel.baseline, duel))
                ours.append(duel.work / await _timed(duel.ours, duel))
        remarks = "" if duel.remarks is None else duel.remarks()
    ratios = [o / b if bench.at_least is not None else b / o for o, b in zip(ours, baseline, strict=True)]
    value = statistics.median(ratios)
    if bench.worst:
        value = min(ratios) if bench.at_least is not None else max(ratios)
    if bench.at_least is not None:
        ok, bar = value >= bench.at_least, f"≥ {bench.at_least:g}"
    else:
        assert bench.at_most is not None
        ok, bar = value <= bench.at_most, f"≤ {bench.at_most:g}"
    told = bench.name, ok or not bench.judged, value, bar, bench.against, bench.goal, duel.unit_of_work, ratios
    spreads = _spread(ours), _spread(baseline)
    return Result(*told, *spreads, bench.judged, duel.per, remarks, bench.at_least is not None)


async def _timed(side: Side, duel: Duel) -> float:
    # What other benchmarks imported and left behind must not be collected on this one's time.
    gc.collect()
    gc.freeze()
    start = time.perf_counter()
    answer = side()
    if inspect.isawaitable(answer):
        answer = await answer
    seconds = time.perf_counter() - start if not isinstance(answer, Cost) else float(answer)
    if duel.after_each is not None:
        duel.after_each()
    return seconds


def _spread(rates: list[float]) -> dict[str, float]:
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}


def stored(result: Result, origin: Origin) -> StoredBench:
    return StoredBench(
        name=result.name,
        value=result.value,
        low=min(result.ratios),
        high=max(result.ratios),
        bar=result.bar,
        ok=result.ok,
        judged=result.judged,
        higher_is_better=result.higher_is_better,
        against=result.against,
        goal=result.goal,
        unit=f"{result.unit_of_work}/{result.per}",
        ours=Spread(**result.ours_rate),
        baseline=Spread(**result.baseline_rate),
        ratios=tuple(result.ratios),
        remarks=result.remarks,
        origin=origin,
    )


def run_all(names: list[str], out: Path, committed: Path = BENCHES, *, store: bool = False) -> bool:
    """Run the named benchmarks (all when empty); False when one fell short.

    Each prints a line, and a line for its change since the committed figures and since the last run in `out`. `out` has
    the last figures of each (`last.json`) and those of all runs (`runs.jsonl`); with `store` the committed ones are
    replaced.
    """
    unknown = [n for n in names if n not in REGISTRY]
    if unknown:
        raise SystemExit(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(sorted(REGISTRY))}")
    last, ok = out / "last.json", True
    for name in names or sorted(REGISTRY):
        origin = this_origin()
        try:
            result = uvloop.run(run(REGISTRY[name]))  # the loop that brokers run on
        except ServerUnavailable as reason:
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        ok = ok and result.ok
        print(result.line(), flush=True)
        now = stored(result, origin)
        for change in changes_of(now, read_benches(committed), read_benches(last)):
            print(f"  {change.text()}", flush=True)
        note_run(out / "runs.jsonl", now)
        store_bench(last, now)
        if store:
            store_bench(committed, now)
    return ok
