"""A run's directory: its name, its files, and how they are written so that a crash leaves no half of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from llog.errors import RunNotFound
from llog.loadtest.artifacts import (
    ClientSample,
    ClientSummary,
    FaultEvent,
    MetricsSample,
    RemapEvent,
    ResolvedConfig,
    StackRecord,
    Summary,
)
from llog.loadtest.routing import RoutingManifest

RESULTS: Final = Path("loadtest", "results")
"""Where runs go without `--results`, below the working directory."""
RUN_DIR_VARIABLE: Final = "LLOG_LOADTEST_RUN_DIR"
"""In the environment of every process that a run starts."""

Value = TypeVar("Value")

_STAMP: Final = "%Y%m%dT%H%M%SZ"


class RunDirectory:
    """Typed access to the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def create(cls, results: Path, scenario_name: str, now_s: float | None = None) -> RunDirectory:
        """A new directory; a number follows the time where two runs begin in one second."""
        stamp = time.strftime(_STAMP, time.gmtime(now_s))
        results.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1_000):
            path = results / (f"{stamp}-{scenario_name}" if number == 1 else f"{stamp}-{number}-{scenario_name}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            run = cls(path)
            for folder in (run.logs, run.data):
                folder.mkdir()
            return run
        raise RunNotFound(str(results), "too many runs began in this second")

    @classmethod
    def find(cls, results: Path, name: str | None = None) -> RunDirectory:
        """By path, by name below `results`, by the end of a name, or the newest. Raises `RunNotFound`."""
        if name is not None and (Path(name) / "resolved-config.json").is_file():
            return cls(Path(name))
        runs = [run for run in cls.all(results) if name is None or run.path.name == name] or [
            run for run in cls.all(results) if name is not None and run.path.name.endswith(f"-{name}")
        ]
        if not runs:
            raise RunNotFound(str(results), f"no run {name!r}" if name else "no run yet: `llog loadtest run smoke`")
        return runs[-1]

    @classmethod
    def all(cls, results: Path) -> list[RunDirectory]:
        """Oldest first."""
        return [cls(path.parent) for path in sorted(results.glob("*/resolved-config.json"))]

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        """Of the servers and of embedded stores; removed by `down`."""
        return self.path / "data"

    @property
    def tail_cache(self) -> Path:
        return self.path / "tail-cache"

    # -- single values: a new one replaces the old one whole --

    def write(self, name: str, value: object) -> None:
        text = msgspec.json.format(msgspec.json.encode(value, order="deterministic"))
        scratch = self.path / f".{name}.{os.getpid()}"
        scratch.write_bytes(text + b"\n")
        scratch.replace(self.path / name)

    def read(self, name: str, kind: type[Value]) -> Value | None:
        """None if the run has not written it."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise RunNotFound(str(self.path / name), f"the file is damaged: {error}") from None

    def config(self) -> ResolvedConfig:
        found = self.read("resolved-config.json", ResolvedConfig)
        if found is None:
            raise RunNotFound(str(self.path), "it has no resolved-config.json")
        return found

    def stack(self) -> StackRecord | None:
        return self.read("stack.json", StackRecord)

    def write_stack(self, stack: StackRecord) -> None:
        self.write("stack.json", stack)

    def routes(self) -> RoutingManifest | None:
        return self.read("routing-manifest.json", RoutingManifest)

    def client_summary(self) -> ClientSummary | None:
        return self.read("client-summary.json", ClientSummary)

    def summary(self) -> Summary | None:
        return self.read("summary.json", Summary)

    # -- lines: appended whole --

    def append(self, name: str, line: object) -> None:
        with open(self.path / name, "ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def lines(self, name: str, kind: type[Value]) -> Iterator[Value]:
        """Every whole line; a process that was killed may have left half of one at the end."""
        decoder = msgspec.json.Decoder(kind)
        try:
            with open(self.path / name, "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield decoder.decode(line)
        except FileNotFoundError:
            return

    def client_samples(self) -> Iterator[ClientSample]:
        return self.lines("client-30s.jsonl", ClientSample)

    def metrics_samples(self) -> Iterator[MetricsSample]:
        return self.lines("metrics-30s.jsonl", MetricsSample)

    def remaps(self) -> Iterator[RemapEvent]:
        return self.lines("remap-events.jsonl", RemapEvent)

    def faults(self) -> Iterator[FaultEvent]:
        return self.lines("fault-events.jsonl", FaultEvent)
