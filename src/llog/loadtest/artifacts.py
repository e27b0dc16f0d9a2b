"""The files of a run directory, as structs: what one part of the load test writes and another reads.

`resolved-config.json` and `stack.json` are the whole memory of a run: later commands read only these. A histogram is
an HdrHistogram of microseconds, V2 encoded (base64 text), so that intervals, processes and runs can be merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from llog.loadtest.scenario.model import Role, Scenario

Histogram = str
"""HdrHistogram V2, microseconds, 1 to 3.6e9, 3 significant digits."""
Phase = Literal["warm_up", "measured", "after"]
"""`after`: producers have ended, answers and consumers drain."""
StackState = Literal["starting", "up", "loading", "stopping", "down", "failed"]


class ResolvedConfig(msgspec.Struct, frozen=True):
    """`resolved-config.json`: the scenario with all defaults and changes."""

    run_id: str
    """`<utc-timestamp>-<scenario-name>`, the name of the directory."""
    source: str
    """Name or path of the scenario."""
    changes: tuple[str, ...]
    """`--set` arguments."""
    scenario: Scenario


class ProcessPlace(msgspec.Struct, frozen=True):
    """A process that the run started. Its environment carries LLOG_LOADTEST_RUN_DIR, so `down` also finds it when the
    orchestrator died before it wrote this."""

    name: str
    """`broker-0`, `compactor-0`, `oxia`, `oxia-node-1`, `versitygw`, `producer-0`, `consumer-0`, `collector`, …"""
    kind: Literal["broker", "compactor", "server", "producer", "consumer", "collector", "other"]
    pid: int
    started_s: float
    """Start time as the kernel counts it (psutil's create_time): a later process with the same pid has another."""
    log: str
    """Relative to the run directory."""
    command: tuple[str, ...] = ()


class BrokerPlace(msgspec.Struct, frozen=True):
    number: int
    broker_id: str
    role: Role
    http_url: str
    kafka_host: str
    kafka_port: int
    zone: str = ""


class CompactorPlace(msgspec.Struct, frozen=True):
    number: int
    http_url: str


class StackRecord(msgspec.Struct, frozen=True):
    """`stack.json`: what runs, where."""

    run_id: str
    state: StackState
    scenario: str
    orchestrator_pid: int
    brokers: tuple[BrokerPlace, ...] = ()
    compactors: tuple[CompactorPlace, ...] = ()
    processes: tuple[ProcessPlace, ...] = ()
    settings: Mapping[str, str] = {}
    """`LLOG_…` variables with which any llog process reaches the stores of this run."""
    ports: Mapping[str, int] = {}
    reason: str = ""
    """Why it failed."""
    orchestrator_started_s: float = 0.0
    """The start time of the orchestrator, as in `ProcessPlace`."""


# -- the load ----------------------------------------------------------------------------------------------------------


class GeneratorHealth(msgspec.Struct, frozen=True):
    """How the generator itself did in an interval: a slow one measures itself."""

    cpu_s: float
    interval_s: float
    lag_ms_max: float
    """How late its event loop or timer woke at worst."""
    late_requests: int = 0
    """Sent later than due although the client had room for a request in flight."""
    waited_s: float = 0.0
    """It could have run, and other processes had the cores."""


class ClientSample(msgspec.Struct, frozen=True):
    """A line of `client-30s.jsonl`: one generator process in one interval."""

    process: str
    kind: Literal["producer", "consumer"]
    phase: Phase
    begin_s: float
    """Unix time."""
    end_s: float
    due_requests: int = 0
    requests: int = 0
    """Answered."""
    failed: Mapping[str, int] = {}
    """Requests without success, by error."""
    retried: Mapping[str, int] = {}
    """Requests that were sent again, by the reason; they may have succeeded then."""
    records: int = 0
    """Acknowledged, or received."""
    payload_bytes: int = 0
    """Of the values of these records."""
    latency: Histogram = ""
    """Of produce: answer minus due time. Of consume: of one request."""
    service: Histogram = ""
    """Answer minus time of sending."""
    send_delay: Histogram = ""
    """Time of sending minus due time."""
    end_to_end: Histogram = ""
    """Time of receiving a record minus the time when the producer had it due."""
    generator: GeneratorHealth = GeneratorHealth(0.0, 0.0, 0.0)


class Loss(msgspec.Struct, frozen=True):
    """What the consumers found wrong in one partition, or over all."""

    missing: int = 0
    """Acknowledged, not received although the consumer read past its place or to the end."""
    duplicates: int = 0
    reordered: int = 0
    unacknowledged: int = 0
    """Received, though the producer got no answer or an error: allowed, reported."""


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0


class SearchStep(msgspec.Struct, frozen=True):
    offered_mb_per_s: float
    reached_mb_per_s: float
    produce_p99_ms: float
    sustained: bool
    reason: str = ""


class ClientSummary(msgspec.Struct, frozen=True):
    """`client-summary.json`: what the clients meant to do, and what came of it. Without the warm-up, where not said."""

    run_id: str
    measured_s: float
    offered_mb_per_s: float
    produced_mb_per_s: float
    consumed_mb_per_s: float
    due_requests: int
    requests: int
    failed: Mapping[str, int]
    records_intended: int
    """Of the whole run, warm-up included, as are the following."""
    records_acknowledged: int
    payload_bytes_acknowledged: int
    records_received: int
    payload_bytes_received: int
    latency: Percentiles
    service: Percentiles
    send_delay: Percentiles
    consume: Percentiles
    end_to_end: Percentiles
    histograms: Mapping[str, Histogram]
    """`latency`, `service`, `send_delay`, `consume`, `end_to_end`."""
    loss: Loss = Loss()
    losses: Mapping[str, Loss] = {}
    """By `topic:partition`, only those with any."""
    limited_by_generator: str = ""
    """Why the figures describe the generator; empty if they do not."""
    search: tuple[SearchStep, ...] = ()
    uncertain_records: int = 0
    """Sent without an answer that says what became of them."""
    retried: Mapping[str, int] = {}
    """Requests that were sent again, by the reason. Of the whole run, warm-up included."""
    partitions_unfinished: int = 0
    """Whose end no consumer reached in time: what lies there was not verified."""
    records_misplaced: int = 0
    """Received in a partition that is not the one of their stamp."""


class RemapEvent(msgspec.Struct, frozen=True):
    """A line of `remap-events.jsonl`: a client went to another broker of an owner set."""

    at_s: float
    process: str
    topic: str
    partition: int
    kind: Literal["write", "read"]
    from_broker: int
    to_broker: int
    reason: str


class StepEvent(msgspec.Struct, frozen=True):
    """A line of `steps.jsonl`: what the orchestrator begins to do."""

    at_s: float
    step: str
    """`mkdir`, `servers`, `brokers`, `precreate`, `warm_up`, `measured`, `drain`, `summary`, `report`, `teardown`."""
    detail: str = ""


class FaultEvent(msgspec.Struct, frozen=True):
    """A line of `fault-events.jsonl`."""

    at_s: float
    kind: str
    target: str
    phase: Literal["begin", "end", "failed"]
    detail: str = ""


# -- the collector -----------------------------------------------------------------------------------------------------


class ProcessSample(msgspec.Struct, frozen=True):
    name: str
    kind: str
    alive: bool
    cpu_s: float = 0.0
    """Since the process began, with its children, user and system."""
    rss_bytes: int = 0
    threads: int = 0
    descriptors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    started_s: float = 0.0
    """When this life of the process began, as in `ProcessPlace`."""


class PageSample(msgspec.Struct, frozen=True):
    """`GET /metrics` of a broker or a compactor."""

    name: str
    ok: bool
    error: str = ""
    page: Mapping[str, Any] = {}


class HostSample(msgspec.Struct, frozen=True):
    cpu_count: int = 0
    cpu_busy_s: float = 0.0
    cpu_steal_s: float = 0.0
    load_1m: float = 0.0
    memory_available_bytes: int = 0
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0
    net_sent_bytes: int = 0
    net_received_bytes: int = 0


class MetricsSample(msgspec.Struct, frozen=True):
    """A line of `metrics-30s.jsonl`."""

    at_s: float
    final: bool
    """The one forced at the end."""
    phase: str
    pages: tuple[PageSample, ...]
    processes: tuple[ProcessSample, ...]
    host: HostSample


# -- the outcome -------------------------------------------------------------------------------------------------------


class Reconciled(msgspec.Struct, frozen=True):
    """One comparison between two sources."""

    what: str
    expected: float
    found: float
    ok: bool
    warning: str = ""


class Verdict(msgspec.Struct, frozen=True):
    target: str
    limit: float
    value: float
    ok: bool


class ProcessCost(msgspec.Struct, frozen=True):
    name: str
    kind: str
    cpu_s: float
    """In the measured phase."""
    cpu_s_per_gb: float
    """Per GB of record values produced, or consumed where nothing was produced."""
    rss_bytes_max: int


class MoneyRates(msgspec.Struct, frozen=True):
    """US dollars, as if the stores were S3, from the measured phase."""

    requests_per_hour: float = 0.0
    storage_per_month: float = 0.0
    per_gb: float = 0.0
    kafka_cross_zone_per_hour: float = 0.0
    """The same load on Kafka replicated across three zones: transfer between zones."""
    kafka_inputs: Mapping[str, float] = {}
    """Of that figure: `produce_mb_per_s`, `consume_mb_per_s`, `zones`, `replication_factor`, `cross_zone_per_gib`, and
    how often a byte crosses a border: `producer_crossings`, `replica_crossings`, `consumer_crossings`."""


class Summary(msgspec.Struct, frozen=True):
    """`summary.json`."""

    run_id: str
    scenario: str
    description: str
    began_s: float
    ended_s: float
    complete: bool
    """The load ran to its end."""
    client: ClientSummary | None
    costs: tuple[ProcessCost, ...]
    money: MoneyRates
    brokers: Mapping[str, float]
    """Totals of the brokers over the run: `records`, `payload_bytes`, `encoded_bytes`, `flushes`, `cache_hits`, …"""
    metadata_operations: Mapping[str, float]
    s3_operations: Mapping[str, float]
    reconciled: tuple[Reconciled, ...]
    warnings: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    artifacts: Mapping[str, bool]
    exit_code: int
