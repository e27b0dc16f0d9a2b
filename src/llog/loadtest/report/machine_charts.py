"""Charts of stores, processes, the host, and money."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from llog.loadtest.artifacts import HostSample, ProcessSample
from llog.loadtest.report.broker_charts import NO_PAGES, growth_of
from llog.loadtest.report.charts import Chart, Series
from llog.loadtest.report.charts.model import Point
from llog.loadtest.report.client_charts import BYTES_PER_MB
from llog.loadtest.report.increments import (
    Growth,
    Reading,
    all_growths,
    amounts,
    by_interval,
    growths,
    leaves,
    rates,
)
from llog.loadtest.report.ranking import ranked
from llog.loadtest.report.run_data import RunData

SECONDS_PER_HOUR: Final = 3_600
NO_SAMPLES: Final = "The collector has not sampled twice."


def metadata_operations(data: RunData) -> Chart:
    series = ranked(rates(operations(data, "metadata.operations", "calls"), data.grid))
    about = "Calls of brokers and compactors to the metadata store per second, by operation."
    return Chart("metadata", "Metadata operations", about, "stacked", "calls/s", series, data.marks, missing=NO_PAGES)


def s3_operations(data: RunData) -> Chart:
    series = ranked(rates(operations(data, "s3.operations", "requests"), data.grid))
    about = "Requests to the object stores per second, as a bill counts them, by operation."
    return Chart("s3", "Object store requests", about, "stacked", "requests/s", series, data.marks, missing=NO_PAGES)


def operations(data: RunData, path: str, count: str) -> list[Growth]:
    def pick(page: Mapping[str, Any]) -> dict[str, float]:
        ending = f".{count}"
        return {key.removesuffix(ending): value for key, value in leaves(page, path).items() if key.endswith(ending)}

    return all_growths(data.metrics, pick)


# -- processes and host ------------------------------------------------------------------------------------------------


def process_cpu(data: RunData) -> Chart:
    lists: dict[str, list[Reading]] = {}
    for sample in data.metrics:
        for process in sample.processes:
            if process.alive:
                lists.setdefault(process.name, []).append(
                    Reading(sample.at_s, process.started_s, {process.name: process.cpu_s})
                )
    found = [growth for listed in lists.values() for growth in growths(listed)]
    about = "Cores that each process uses, its children included."
    series = ranked(rates(found, data.grid), "other processes")
    return Chart("cpu", "CPU per process", about, "stacked", "cores", series, data.marks, missing=NO_SAMPLES)


def process_memory(data: RunData) -> Chart:
    series = ranked(_of_processes(data, lambda process: process.rss_bytes / BYTES_PER_MB), "other processes")
    about = "Memory in RAM (resident set) of each process."
    return Chart("memory", "Memory per process", about, "lines", "MB", series, data.marks, missing=NO_SAMPLES)


def _of_processes(data: RunData, value: Callable[[ProcessSample], float]) -> dict[str, tuple[Point, ...]]:
    names = sorted({process.name for sample in data.metrics for process in sample.processes})
    lines: dict[str, list[Point]] = {name: [] for name in names}
    for sample in data.metrics:
        alive = {process.name: process for process in sample.processes if process.alive}
        for name, line in lines.items():
            line.append((sample.at_s - data.zero_s, value(alive[name]) if name in alive else None))
    return {name: tuple(line) for name, line in lines.items()}


def host_cpu(data: RunData) -> Chart:
    cores = max((sample.host.cpu_count for sample in data.metrics), default=0)
    counters = {"busy": lambda host: host.cpu_busy_s, "taken by other machines": lambda host: host.cpu_steal_s}
    series = _host_rates(data, counters)
    about = f"Cores of the whole machine that are busy, of {cores}." if cores else "Cores of the machine that are busy."
    return Chart("host-cpu", "Host CPU", about, "lines", "cores", series, data.marks, missing=NO_SAMPLES)


def host_disk(data: RunData) -> Chart:
    counters = {"written": lambda host: host.disk_written_bytes, "read": lambda host: host.disk_read_bytes}
    series = _host_rates(data, counters, 1 / BYTES_PER_MB)
    about = "Bytes that all disks of the machine read and write."
    return Chart("host-disk", "Host disks", about, "lines", "MB/s", series, data.marks, missing=NO_SAMPLES)


def _host_rates(
    data: RunData, counters: Mapping[str, Callable[[HostSample], float]], scale: float = 1.0
) -> tuple[Series, ...]:
    listed = [
        Reading(sample.at_s, 0.0, {name: float(value(sample.host)) for name, value in counters.items()})
        for sample in data.metrics
    ]
    lines = rates(growths(listed), data.grid, scale)
    return tuple(Series(name, lines[name]) for name in counters if name in lines)


# -- money -------------------------------------------------------------------------------------------------------------


def dollars_per_hour(data: RunData) -> Chart:
    lines = rates(request_dollars(data), data.grid, SECONDS_PER_HOUR)
    series = (Series("requests", lines[""]),) if "" in lines else ()
    about = "What S3 would charge for the requests, as if each interval went on for an hour."
    return Chart("dollars", "Dollars per hour", about, "lines", "$/h", series, data.marks, missing=NO_PAGES)


def dollars_per_gb(data: RunData) -> Chart:
    """Request dollars of an interval by the gigabytes acknowledged in it."""
    produced = [
        Growth(sample.begin_s, sample.end_s, {sample.process: float(sample.payload_bytes)})
        for sample in data.clients
        if sample.kind == "producer"
    ]
    points: list[Point] = []
    spent = by_interval(request_dollars(data), data.grid)
    for (x, _, dollars), (begin_s, end_s) in zip(spent, data.grid.intervals(), strict=True):
        payload = amounts(produced, begin_s, end_s)
        gigabytes = sum(payload.values()) / 1e9 if payload else 0.0
        points.append((x, dollars.get("", 0.0) / gigabytes if dollars is not None and gigabytes > 0 else None))
    series = (Series("requests", tuple(points)),) if produced else ()
    about = "Request cost of an interval by the gigabytes (10⁹ bytes of record values) acknowledged in it."
    missing = "Nothing was produced while metrics were sampled."
    return Chart("dollars-per-gb", "Dollars per GB", about, "lines", "$/GB", series, data.marks, missing=missing)


def request_dollars(data: RunData) -> list[Growth]:
    return growth_of(data, "s3.billing.request_cost_usd")


def cost_comparison(llog_per_hour: float, kafka_per_hour: float) -> Chart:
    series = (Series("dollars per hour", ((0.0, llog_per_hour), (1.0, kafka_per_hour))),)
    about = "S3 requests of this run beside Kafka's transfer between zones for the same bytes. Machines and storage are"
    return Chart(
        "cost-comparison",
        "llog and Kafka across zones",
        f"{about} in neither.",
        "bars",
        "$/h",
        series,
        categories=("llog: requests", "Kafka: transfer"),
    )
