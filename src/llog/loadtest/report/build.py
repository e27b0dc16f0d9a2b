"""From a run directory to a report: which charts and tables a run gets, and in which order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from llog.loadtest.artifacts import Summary
from llog.loadtest.report import broker_charts as broker
from llog.loadtest.report import client_charts as client
from llog.loadtest.report import machine_charts as machine
from llog.loadtest.report.charts.scales import clock
from llog.loadtest.report.figures import figures_of, kafka_of, kafka_table
from llog.loadtest.report.model import Report, Section, Table
from llog.loadtest.report.run_data import RunData, flatten, load
from llog.loadtest.run_directory import RunDirectory

EVENTS_MAX: Final = 500
"""Rows of the tables of events; the files have all."""


def build_report(run: RunDirectory) -> Report:
    data = load(run)
    scenario, summary = data.config.scenario, data.summary
    ends = [sample.end_s for sample in data.clients] or [sample.at_s for sample in data.metrics]
    return Report(
        run_id=data.run_id,
        scenario=scenario.name,
        description=scenario.description,
        began_s=data.zero_s or None,
        ended_s=max(ends, default=None),
        complete=summary is not None and summary.complete,
        judged=summary is not None,
        missing=data.missing,
        limited_by_generator="" if data.client is None else data.client.limited_by_generator,
        warnings=() if summary is None else summary.warnings,
        verdicts=() if summary is None else summary.verdicts,
        machine=_machine(data),
        figures=figures_of(data),
        sections=(
            _load(data),
            _flushes(data),
            _reads(data),
            _stores(data),
            _resources(data),
            _money(data),
            _checks(data),
            _configuration(data),
        ),
        scenario_fields=flatten(msgspec.to_builtins(scenario)),
    )


def _machine(data: RunData) -> dict[str, str]:
    """The snapshot of the environment; the number of cores also without one."""
    cores = max((sample.host.cpu_count for sample in data.metrics), default=0)
    found = dict(data.environment)
    if cores and "cores" not in found:
        found["cores"] = str(cores)
    return found


def _load(data: RunData) -> Section:
    charts = [client.throughput(data), client.hdr(data), client.latency(data, "latency")]
    if data.config.scenario.consumers.clients:
        charts.append(client.latency(data, "end_to_end"))
    charts += [
        client.latency(data, "service"),
        client.latency(data, "send_delay"),
        client.failures(data),
        client.retries(data),
    ]
    if data.client is not None and data.client.search:
        charts.insert(1, client.search_steps(data.client))
    return Section("load", "Throughput and latency", tuple(charts))


def _flushes(data: RunData) -> Section:
    about = "Brokers gather records of many requests and partitions, upload them as one blob, and commit them together."
    charts = (broker.flushes, broker.blob_bytes, broker.flush_groups, broker.stages, broker.stage_tails)
    return Section(
        "batching", "Batching and stages", tuple(c(data) for c in charts), (broker.stage_table(data),), about
    )


def _reads(data: RunData) -> Section:
    charts = (broker.cache_hits, broker.served_from, broker.compaction_lag, broker.compaction_left)
    return Section("reads", "Reads and compaction", tuple(chart(data) for chart in charts))


def _stores(data: RunData) -> Section:
    charts = (machine.metadata_operations(data), machine.s3_operations(data))
    return Section("stores", "Stores", charts, () if data.summary is None else _operations(data.summary))


def _operations(summary: Summary) -> tuple[Table, ...]:
    return (
        _totals("metadata-totals", "Metadata calls", summary.metadata_operations),
        _totals("s3-totals", "Object store requests", summary.s3_operations),
    )


def _totals(identifier: str, title: str, counts: Mapping[str, float]) -> Table:
    """Largest first."""
    rows = tuple(
        sorted(((name, count) for name, count in counts.items() if count), key=lambda item: (-item[1], item[0]))
    )
    return Table(identifier, title, ("operation", "whole run"), rows)


def _resources(data: RunData) -> Section:
    charts = (
        machine.process_cpu(data),
        machine.process_memory(data),
        machine.host_cpu(data),
        machine.host_disk(data),
        client.generator_cpu(data),
        client.generator_lag(data),
    )
    tables: tuple[Table, ...] = ()
    if data.summary is not None and data.summary.costs:
        rows = tuple((c.name, c.kind, c.cpu_s, c.cpu_s_per_gb, c.rss_bytes_max / 1_000_000) for c in data.summary.costs)
        columns = ("process", "kind", "CPU s", "CPU-s per GB", "memory MB, highest")
        tables = (Table("costs", "Processes in the measured phase", columns, rows),)
    return Section("resources", "Processes and host", charts, tables)


def _money(data: RunData) -> Section:
    charts = [machine.dollars_per_hour(data), machine.dollars_per_gb(data)]
    tables: tuple[Table, ...] = ()
    kafka = kafka_of(data)
    if kafka is not None:
        tables = (kafka_table(*kafka),)
        if data.summary is not None:
            charts.append(machine.cost_comparison(data.summary.money.requests_per_hour, kafka[1]))
    about = "Prices of S3 Standard in us-east-1, whatever the stores of the run are. Machines are not counted."
    if data.config.scenario.stack.objects == "directory":
        about += " This run stores in a directory: brokers flush it more often than S3, where they save requests."
    return Section("money", "Money", tuple(charts), tables, about)


def _checks(data: RunData) -> Section:
    tables = []
    if data.summary is not None:
        rows = tuple(
            (each.what, each.expected, each.found, "yes" if each.ok else "no", each.warning)
            for each in data.summary.reconciled
        )
        columns = ("what", "expected", "found", "agree", "warning")
        differ = sum(not each.ok for each in data.summary.reconciled)
        about = "What the clients know, compared with what brokers and stores have counted. "
        about += f"{differ} of {len(rows)} comparisons differ." if differ else f"All {len(rows)} comparisons agree."
        tables.append(Table("reconciliation", "Reconciliation", columns, rows, about))
    if data.client is not None and data.client.losses:
        losses = sorted(data.client.losses.items())[:EVENTS_MAX]
        rows_ = tuple((name, float(x.missing), float(x.duplicates), float(x.reordered)) for name, x in losses)
        tables.append(
            Table("losses", "Partitions with losses", ("partition", "missing", "duplicate", "reordered"), rows_)
        )
    faults = tuple(
        (clock(event.at_s - data.zero_s), event.kind.replace("_", " "), event.target, event.phase, event.detail)
        for event in data.faults[:EVENTS_MAX]
    )
    tables.append(Table("faults", "Faults", ("time", "fault", "target", "phase", "detail"), faults))
    remaps = tuple(
        (
            clock(event.at_s - data.zero_s),
            event.process,
            f"{event.topic}:{event.partition}",
            event.kind,
            f"{event.from_broker} → {event.to_broker}",
            event.reason,
        )
        for event in data.remaps[:EVENTS_MAX]
    )
    about = "Clients that went to another broker of a partition's owner set."
    if len(data.remaps) > EVENTS_MAX:
        about += f" The first {EVENTS_MAX} of {len(data.remaps):,}."
    heads = ("time", "process", "partition", "kind", "broker", "reason")
    tables.append(Table("remaps", "Changes of broker", heads, remaps, about))
    return Section("checks", "Checks and events", (), tuple(tables))


def _configuration(data: RunData) -> Section:
    fields = tuple(flatten(msgspec.to_builtins(data.config.scenario)).items())
    machine_ = tuple(sorted(_machine(data).items()))
    changes = tuple((change,) for change in data.config.changes)
    artefacts = (
        ()
        if data.summary is None
        else tuple((n, "yes" if p else "no") for n, p in sorted(data.summary.artifacts.items()))
    )
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(data.zero_s)) if data.zero_s else "unknown"
    run = (("run", data.run_id), ("scenario from", data.config.source), ("load began", began))
    tables = [Table("run", "Run", ("", ""), run), Table("scenario", "Scenario", ("field", "value"), fields)]
    if changes:
        tables.append(Table("changes", "Changes by --set", ("change",), changes))
    tables.append(Table("machine", "Machine", ("", "value"), machine_))
    if artefacts:
        tables.append(Table("artefacts", "Artefacts", ("file", "written"), artefacts))
    return Section("configuration", "Configuration", (), tuple(tables))
