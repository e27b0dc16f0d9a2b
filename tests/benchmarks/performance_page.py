"""The tables of docs/performance.md, from the stored figures. Pure: figures in, text out.

A table stands between `<!-- measured: NAME -->` and `<!-- end of NAME -->`; what is outside is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.benchmarks.history import Machine, Origin, StoredBench
from tests.benchmarks.scenario_figures import Cpu, Latency, ScenarioFigures

NOTHING: Final = "No figures are stored yet."
DASH: Final = "–"


# -- Kafka's table -----------------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """How the rate of a side is shown."""

    text: str
    of_rate: Callable[[float], float]

    def of(self, rate: float) -> str:
        return self.text.format(self.of_rate(rate))


CPU: Final = Shown("{:.2f} CPU-s/GB", lambda mb_per_cpu_s: 1_000 / mb_per_cpu_s)
RATE: Final = Shown("{:,.0f} MB/s", float)
MS: Final = Shown("{:.0f} ms", lambda per_s: 1_000 / per_s)
CORES: Final = Shown("{:.2f} cores", lambda s_per_cpu_s: 1 / s_per_cpu_s)
MEMORY: Final = Shown("{:.0f} MB", lambda per_mb: 1 / per_mb)

KAFKA_ROWS: Final[Mapping[str, tuple[str, Shown]]] = {
    "kafka_produce": ("CPU-s per GB, Kafka with `flush.messages=1`", CPU),
    "kafka_fetch": ("CPU-s per GB of what was just written, read once", CPU),
    "kafka_fetch_again": ("CPU-s per GB of the tail, read before", CPU),
    "kafka_librdkafka": ("MB/s of one librdkafka producer, Kafka without fsync", RATE),
    "kafka_latency": ("p99 at 5 MB/s without linger, Kafka with fsync", MS),
    "kafka_latency_cpu": ("cores used at 5 MB/s without linger, against 0.3", CORES),
    "kafka_in_flight": ("five requests in flight against one: time of all of them", MS),
    "kafka_metadata": ("Metadata of 10,000 partitions: how long it holds the loop, worst, against 25 ms", MS),
    "kafka_idle_connections": ("memory of 10,000 idle connections, worst, against 150 MB", MEMORY),
    "kafka_files": ("MB/s of one broker on files, against 28", RATE),
    "kafka_s3": ("MB/s of one broker on an S3 server (versitygw), against 28", RATE),
}


def kafka_table(stored: Mapping[str, StoredBench]) -> str:
    benches = [stored[name] for name in KAFKA_ROWS if name in stored]
    machines = Machines(bench.origin for bench in benches)
    rows = [
        (
            f"`{bench.name}`",
            KAFKA_ROWS[bench.name][0],
            bench.bar,
            _ratio(bench),
            KAFKA_ROWS[bench.name][1].of(bench.ours.median),
            KAFKA_ROWS[bench.name][1].of(bench.baseline.median),
            machines.text(bench.origin),
        )
        for bench in benches
    ]
    heads = ("benchmark", "what is compared", "bar", "ratio (range)", "ours", "baseline", "measured")
    return _with_machines(_table(heads, rows), machines, _remarks(benches))


# -- all benchmarks ----------------------------------------------------------------------------------------------------


def bench_table(stored: Mapping[str, StoredBench]) -> str:
    """Those that are not in Kafka's table."""
    benches = [bench for name, bench in sorted(stored.items()) if name not in KAFKA_ROWS]
    machines = Machines(bench.origin for bench in benches)
    rows = [
        (
            f"`{bench.name}`",
            _cell(bench.against),
            bench.bar if bench.judged else "reported",
            _ratio(bench),
            f"{_number(bench.ours.median)} {bench.unit}",
            machines.text(bench.origin),
        )
        for bench in benches
    ]
    heads = ("benchmark", "against", "bar", "ratio (range)", "ours", "measured")
    return _with_machines(_table(heads, rows), machines, _remarks(benches))


def _ratio(bench: StoredBench) -> str:
    short = " **short**" if bench.judged and not bench.ok else ""
    return f"**{bench.value:.2f}** ({bench.low:.2f}–{bench.high:.2f}){short}"


def _remarks(benches: Iterable[StoredBench]) -> list[str]:
    return [f"- `{bench.name}`: {bench.remarks}" for bench in benches if bench.remarks]


# -- scenarios ---------------------------------------------------------------------------------------------------------


def scenario_tables(stored: Sequence[ScenarioFigures]) -> str:
    if not stored:
        return NOTHING
    machines = Machines(figures.origin for figures in stored)
    heads = ("scenario", "MB/s in", "MB/s out", "produce p50 / p99", "end to end p50 / p99", "$ per hour", "warnings")
    rows = [
        (
            f"`{figures.scenario}`",
            f"{figures.produced_mb_per_s:.1f} of {figures.offered_mb_per_s:.1f}",
            f"{figures.consumed_mb_per_s:.1f}",
            _latency(figures.produce),
            _latency(figures.end_to_end),
            f"{figures.dollars_per_hour:.3f} (Kafka {figures.kafka_dollars_per_hour:.2f})",
            str(len(figures.warnings)) if figures.warnings else "none",
        )
        for figures in stored
    ]
    cpu_heads = ("scenario", *CPU_COLUMNS)
    cpu_rows = [(f"`{figures.scenario}`", *_cpu_cells(figures.cpu)) for figures in stored]
    about = [_about(figures, machines) for figures in stored]
    prices = ", ".join(f"${price:g} {what}" for what, price in stored[0].prices.items())
    parts = (
        _table(heads, rows),
        f"Dollars are for requests, as if the stores were S3 ({prices}); in brackets Kafka's transfer between zones for"
        " the same load. Processor seconds per GB of record values:",
        _table(cpu_heads, cpu_rows),
        "\n".join([*about, *machines.lines()]),
    )
    return "\n\n".join(parts)


CPU_COLUMNS: Final = ("brokers", "compactors", "stores", "load generator")
_KINDS: Final = (("broker",), ("compactor",), ("server",), ("producer", "consumer"))


def _cpu_cells(costs: Sequence[Cpu]) -> list[str]:
    """Each process by itself: `12.1 + 11.8`."""
    cells = []
    for kinds in _KINDS:
        own = [cost for cost in costs if cost.kind in kinds and cost.cpu_s_per_gb]
        if kinds[0] in ("server", "producer"):
            cells.append(", ".join(f"{cost.name} {cost.cpu_s_per_gb:.1f}" for cost in own) or DASH)
        else:
            cells.append(" + ".join(f"{cost.cpu_s_per_gb:.1f}" for cost in own) or DASH)
    return cells


def _about(figures: ScenarioFigures, machines: Machines) -> str:
    parts = [f"{figures.stack}, {figures.measured_s:.0f} s", machines.text(figures.origin)]
    if figures.changes:
        parts.append(" ".join(f"`--set {change}`" for change in figures.changes))
    loss = figures.loss
    if loss.missing or loss.duplicates or loss.reordered:
        parts.append(f"**missing {loss.missing}, twice {loss.duplicates}, reordered {loss.reordered}**")
    if figures.failed_requests:
        parts.append(f"{figures.failed_requests} requests failed")
    parts += [f"missed {verdict.target} {verdict.limit:g}: {verdict.value:.4g}" for verdict in figures.missed]
    parts += [f"warning: {_cell(warning)}" for warning in figures.warnings]
    return f"- `{figures.scenario}`: {'; '.join(parts)}."


def _latency(latency: Latency | None) -> str:
    return DASH if latency is None else f"{latency.p50:,.0f} / {latency.p99:,.0f} ms"


# -- shared ------------------------------------------------------------------------------------------------------------


class Machines:
    """Names for the machines of a table: A, B, …"""

    def __init__(self, origins: Iterable[Origin]) -> None:
        machines = dict.fromkeys(origin.machine for origin in origins)
        self._names: dict[Machine, str] = {machine: chr(ord("A") + number) for number, machine in enumerate(machines)}

    def text(self, origin: Origin) -> str:
        return f"{origin.text()}, {self._names[origin.machine]}"

    def lines(self) -> list[str]:
        return [f"- Machine {name}: {machine.text()}." for machine, name in self._names.items()]


def _with_machines(table: str, machines: Machines, remarks: list[str]) -> str:
    lines = [*remarks, *machines.lines()]
    return f"{table}\n\n" + "\n".join(lines) if lines else NOTHING


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("| --- ", "|---").replace("--- |", "---|") for cells in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- the page ----------------------------------------------------------------------------------------------------------


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables between their markers. Raises `ValueError` for a table without markers."""
    for name, table in tables.items():
        begin, end = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"the page needs the markers {begin} and {end} once")
        before, after = pattern.split(page)
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page
