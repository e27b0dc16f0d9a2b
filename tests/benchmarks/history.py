"""What runs of benchmarks and load tests measured, as kept in `build/bench` and, on request, in `docs/measurements`.

A stored benchmark has what a later run is compared with: the value, the range of its rounds, the rates of both sides,
and where it was measured. Comparison is of values, which are ratios to a baseline of the same run, so a slower machine
changes both sides; rates of different machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from llog.loadtest.stack import snapshots
from llog.loadtest.stack.snapshots import EnvironmentSnapshot

MEASUREMENTS: Final = Path(__file__).parents[2] / "docs" / "measurements"
BENCHES: Final = MEASUREMENTS / "bench.json"
SCENARIOS: Final = MEASUREMENTS / "scenarios.json"


class Machine(msgspec.Struct, frozen=True):
    processor: str
    cores: int
    memory_gb: int
    kernel: str
    python: str

    @classmethod
    def of(cls, environment: EnvironmentSnapshot) -> Machine:
        memory_gb = round(environment.memory_bytes / 1e9)
        return cls(environment.processor, environment.cores, memory_gb, environment.kernel, environment.python)

    def text(self) -> str:
        return f"{self.processor}, {self.cores} cores, {self.memory_gb} GB, {self.kernel}, {self.python}"


class Origin(msgspec.Struct, frozen=True):
    """Where and when something was measured."""

    at: str
    """UTC, `2026-11-18T20:38:06Z`."""
    commit: str
    """Empty where the package was not part of a checkout."""
    dirty: bool
    """Files differed from the commit."""
    machine: Machine

    def text(self) -> str:
        return f"{self.at[:10]} {self.commit[:7]}{'+' if self.dirty else ''}"


def this_origin() -> Origin:
    git = snapshots.git_snapshot(Path(snapshots.__file__).parent)
    machine = Machine.of(snapshots.environment_snapshot({}))
    return Origin(utc(time.time()), git.commit if git else "", git is not None and git.dirty, machine)


def utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- benchmarks --------------------------------------------------------------------------------------------------------


class Spread(msgspec.Struct, frozen=True, omit_defaults=True):
    median: float
    min: float | None = None
    max: float | None = None
    """None in figures that are older than this file."""


class StoredBench(msgspec.Struct, frozen=True):
    name: str
    value: float
    """The ratio that the bar judges."""
    low: float
    high: float
    """The range of the rounds' ratios."""
    bar: str
    ok: bool
    judged: bool
    higher_is_better: bool
    against: str
    goal: str
    unit: str
    """Of the rates, such as `MB/CPU-s`."""
    ours: Spread
    baseline: Spread
    ratios: tuple[float, ...]
    remarks: str
    origin: Origin


class Change(msgspec.Struct, frozen=True):
    """A benchmark's value against an earlier one."""

    factor: float
    """The new value over the earlier one: a ratio of ratios."""
    is_noise: bool
    is_better: bool
    earlier: Origin
    other_machine: bool

    def text(self) -> str:
        verdict = "noise" if self.is_noise else ("better" if self.is_better else "worse")
        machine = ", another machine" if self.other_machine else ""
        return f"× {self.factor:.2f} of {self.earlier.text()}{machine}: {verdict}"


def change_since(earlier: StoredBench, now: StoredBench) -> Change:
    """Noise: one of the two values lies within the range of the other's rounds."""
    factor = now.value / earlier.value
    inside = earlier.low <= now.value <= earlier.high or now.low <= earlier.value <= now.high
    is_better = factor > 1 if now.higher_is_better else factor < 1
    return Change(factor, inside, is_better, earlier.origin, earlier.origin.machine != now.origin.machine)


def changes_of(now: StoredBench, *histories: Mapping[str, StoredBench]) -> list[Change]:
    """Against the entry of each history that has one; an entry in two of them counts once."""
    earlier: list[StoredBench] = []
    for history in histories:
        stored = history.get(now.name)
        if stored is not None and stored not in earlier:
            earlier.append(stored)
    return [change_since(stored, now) for stored in earlier]


def read_benches(path: Path) -> dict[str, StoredBench]:
    """By name; none if there is no file."""
    return {stored.name: stored for stored in read_entries(path, StoredBench)}


def store_bench(path: Path, stored: StoredBench) -> None:
    """In place of the entry of the same name."""
    benches = read_benches(path) | {stored.name: stored}
    write_entries(path, [benches[name] for name in sorted(benches)])


def note_run(path: Path, stored: StoredBench) -> None:
    """Add it to the lines of all runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as lines:
        lines.write(msgspec.json.encode(stored) + b"\n")


# -- files: a list, with an entry per line, so that changes are easy to review -----------------------------------------

Entry = TypeVar("Entry")


def read_entries(path: Path, kind: type[Entry]) -> list[Entry]:
    return msgspec.json.decode(path.read_bytes(), type=list[kind]) if path.exists() else []  # type: ignore[valid-type]


def write_entries(path: Path, entries: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = b",\n".join(msgspec.json.encode(entry) for entry in entries)
    scratch = path.with_name(f".{path.name}")
    scratch.write_bytes(b"[\n" + lines + b"\n]\n")
    scratch.replace(path)
