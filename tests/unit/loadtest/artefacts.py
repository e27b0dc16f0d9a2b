"""A synthetic run directory with every artefact of a run that went well; tests then break one thing in it.

    run = write_run(tmp_path, RunShape(faults=True))

The pages of brokers come from real `BrokerMetrics`, so their names are those that brokers export. All figures follow
from the shape: each broker takes `records_per_interval` records of `record_bytes` bytes in each interval, with a few
flushes, and returns all of them to consumers in the same interval.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from llog.loadtest.artifacts import (
    BrokerPlace,
    ClientSample,
    ClientSummary,
    CompactorPlace,
    FaultEvent,
    GeneratorHealth,
    HostSample,
    MetricsSample,
    PageSample,
    Percentiles,
    Phase,
    ProcessPlace,
    ProcessSample,
    RemapEvent,
    ResolvedConfig,
    StackRecord,
)
from llog.loadtest.client.histograms import Latencies, decode, percentiles
from llog.loadtest.routing import plan_routes
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import (
    Collect,
    Compactor,
    Consumers,
    Fault,
    Load,
    Producers,
    Records,
    Scenario,
    Stack,
    Targets,
    Topic,
)
from llog.stores.metering import MetadataStoreStats, ObjectStoreStats
from llog.stores.objects.pricing import StorageFootprint
from llog.telemetry.billing import BilledStore
from llog.telemetry.metrics import BrokerMetrics

BEGAN_S: Final = 1_760_000_000.0
KILLED_AFTER_S: Final = 2.0
"""After the last page of the life that a fault ends."""
STORES: Final = {"metadata_url": "lmdb:///data", "wal_url": "file:///data", "objects_url": "file:///data"}


@dataclass(frozen=True)
class RunShape:
    brokers: int = 2
    interval_s: float = 5.0
    warm_up_intervals: int = 1
    measured_intervals: int = 6
    records_per_interval: int = 10_000
    record_bytes: int = 1_024
    flushes_per_interval: int = 20
    logs_per_flush: int = 4
    faults: bool = False
    """A broker is killed in the middle and starts again with empty counters."""
    seed: int = 1
    targets: Targets = field(default_factory=lambda: Targets(produce_mb_per_s_min=1, produce_p99_ms_max=500))

    @property
    def intervals(self) -> int:
        return self.warm_up_intervals + self.measured_intervals

    @property
    def records(self) -> int:
        return self.brokers * self.intervals * self.records_per_interval

    @property
    def mb_per_s(self) -> float:
        return self.brokers * self.records_per_interval * self.record_bytes / self.interval_s / 1e6

    def phase(self, interval: int) -> Phase:
        return "warm_up" if interval < self.warm_up_intervals else "measured"


def scenario_of(shape: RunShape) -> Scenario:
    faults = (Fault(at_s=shape.interval_s * shape.measured_intervals / 2, kind="kill_broker"),) if shape.faults else ()
    return Scenario(
        name="synthetic",
        description="A run that never happened.",
        stack=Stack(brokers=shape.brokers, compactor=Compactor(count=1)),
        topics=(Topic("load", 8),),
        records=Records(bytes=shape.record_bytes),
        load=Load(
            target_mb_per_s=shape.mb_per_s,
            warm_up_s=shape.interval_s * shape.warm_up_intervals,
            duration_s=shape.interval_s * shape.measured_intervals,
        ),
        producers=Producers(clients=4),
        consumers=Consumers(clients=2),
        faults=faults,
        targets=shape.targets,
        collect=Collect(interval_s=shape.interval_s),
    )


# -- brokers and compactors --------------------------------------------------------------------------------------------


class SyntheticProcess:
    """One life of a broker or compactor: real metrics, fed by hand."""

    def __init__(self, name: str, started_s: float) -> None:
        self.metrics = BrokerMetrics(now_ms=lambda: int(started_s * 1_000))
        self.metadata, self.objects = MetadataStoreStats(), ObjectStoreStats()
        self.metrics.attach_metadata(STORES["metadata_url"], self.metadata)
        billed = BilledStore("objects", "file", self.objects, footprint=StorageFootprint(0, 0))
        self.billed = billed
        self.metrics.attach_objects([billed])
        self.cpu_s = 0.5
        about = {"host": "127.0.0.1", "port": 1, "started_at_ms": int(started_s * 1_000), **STORES}
        if name.startswith("compactor"):
            self.metrics.set_compactor(compactor_id=name, **about)  # type: ignore[arg-type]
        else:
            self.metrics.set_broker(broker_id=name, role="both", **about)  # type: ignore[arg-type]

    def page(self) -> dict[str, Any]:
        """As decoded from JSON, without the figures of this test's process."""
        page: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.metrics.snapshot()))
        return page | {"process": {"cpu_seconds": self.cpu_s, "resident_memory_bytes": 200_000_000}}

    def call(self, store: MetadataStoreStats | ObjectStoreStats, operation: str, count: int, byte_count: int) -> None:
        counted = store.operations[operation]
        for _ in range(count):
            counted.record("ok", 4.0)
        counted.request_count += count
        counted.item_count += count
        counted.byte_count += byte_count


def serve(broker: SyntheticProcess, shape: RunShape) -> None:
    """One interval of a broker's work."""
    metrics, flushes = broker.metrics, shape.flushes_per_interval
    records, payload = shape.records_per_interval, shape.records_per_interval * shape.record_bytes
    encoded = payload + 10 * records
    metrics.observe_appends(flushes * shape.logs_per_flush, records, encoded, {}, payload)
    for number in range(flushes):
        metrics.observe_flush(
            "idle", shape.logs_per_flush, records // flushes, encoded // flushes, 3 + number % 5, 12, 4
        )
        metrics.observe_http("/produce", "POST", 200, 0.02, payload // flushes, 200)
        metrics.observe_consume(4, records // flushes, encoded // flushes, 5, "cache", payload // flushes)
        metrics.tail_cache_event("hit", 4)
    metrics.tail_cache_event("miss")
    broker.call(broker.metadata, "write", flushes * 2, 0)
    broker.call(broker.metadata, "get_many", flushes, 0)
    broker.call(broker.objects, "put", flushes, encoded)
    broker.call(broker.objects, "range_get", 2, 10_000)
    before = broker.billed.footprint or StorageFootprint(0, 0)
    broker.billed.footprint = StorageFootprint(before.object_count + flushes, before.stored_bytes + encoded)
    broker.cpu_s += 1.5


def compact(compactor: SyntheticProcess) -> None:
    compactor.metrics.observe_compaction("compacted", "compact", 40, 1 << 20, {"read": 20.0, "write": 30.0})
    compactor.metrics.set_compaction_lag("load", 0, 500, 1 << 20, int(BEGAN_S * 1_000) - 3_000)
    compactor.call(compactor.metadata, "scan", 4, 0)
    compactor.call(compactor.objects, "get", 8, 1 << 20)
    compactor.call(compactor.objects, "put", 1, 1 << 20)
    compactor.cpu_s += 0.4


# -- samples -----------------------------------------------------------------------------------------------------------


@cache
def _histogram(seed: int, middle_us: int) -> str:
    """Cached, because hdrh encodes in Python."""
    random_ = random.Random(seed)
    latencies = Latencies()
    for _ in range(300):
        latencies.add(max(1, int(random_.lognormvariate(0, 0.5) * middle_us)))
    return latencies.take()


@cache
def _percentiles(text: str) -> Percentiles:
    return percentiles(decode(text))


def _client_sample(shape: RunShape, interval: int, kind: str) -> ClientSample:
    begin_s = BEGAN_S + interval * shape.interval_s
    records = shape.brokers * shape.records_per_interval
    requests = records // 32
    produces = kind == "producer"
    return ClientSample(
        process=f"{kind}-0",
        kind="producer" if produces else "consumer",
        phase=shape.phase(interval),
        begin_s=begin_s,
        end_s=begin_s + shape.interval_s,
        due_requests=requests if produces else 0,
        requests=requests,
        records=records,
        payload_bytes=records * shape.record_bytes,
        latency=_histogram(interval % 3, 40_000),
        service=_histogram(interval % 3, 38_000) if produces else "",
        send_delay=_histogram(interval % 3, 300) if produces else "",
        end_to_end="" if produces else _histogram(interval % 3, 60_000),
        generator=GeneratorHealth(cpu_s=1.2, interval_s=shape.interval_s, lag_ms_max=3.0),
    )


def client_summary_of(shape: RunShape, run_id: str) -> ClientSummary:
    found = {
        "latency": _histogram(1, 40_000),
        "service": _histogram(2, 38_000),
        "send_delay": _histogram(3, 300),
        "consume": _histogram(4, 50_000),
        "end_to_end": _histogram(5, 60_000),
    }
    figures = {name: _percentiles(text) for name, text in found.items()}
    measured = shape.brokers * shape.measured_intervals * shape.records_per_interval
    return ClientSummary(
        run_id=run_id,
        measured_s=shape.interval_s * shape.measured_intervals,
        offered_mb_per_s=shape.mb_per_s,
        produced_mb_per_s=shape.mb_per_s,
        consumed_mb_per_s=shape.mb_per_s,
        due_requests=measured // 32,
        requests=measured // 32,
        failed={},
        records_intended=shape.records,
        records_acknowledged=shape.records,
        payload_bytes_acknowledged=shape.records * shape.record_bytes,
        records_received=shape.records,
        payload_bytes_received=shape.records * shape.record_bytes,
        latency=figures["latency"],
        service=figures["service"],
        send_delay=figures["send_delay"],
        consume=figures["consume"],
        end_to_end=figures["end_to_end"],
        histograms=found,
    )


def _process_samples(shape: RunShape, step: int) -> tuple[ProcessSample, ...]:
    names = [(f"broker-{n}", "broker", 1.5) for n in range(shape.brokers)]
    names += [("compactor-0", "compactor", 0.4), ("producer-0", "producer", 1.2), ("consumer-0", "consumer", 0.9)]
    return tuple(
        ProcessSample(
            name, kind, True, 0.5 + cpu_s * step, 150_000_000 + 1_000_000 * step, 12, 80, 4_096 * step, 8_192 * step
        )
        for name, kind, cpu_s in names
    )


def metrics_samples_of(shape: RunShape) -> list[MetricsSample]:
    """One before the load, one after each interval, and the final one."""
    return msgspec.json.decode(_encoded_samples(shape), type=list[MetricsSample])


@cache
def _encoded_samples(shape: RunShape) -> bytes:
    names = [f"broker-{number}" for number in range(shape.brokers)]
    living = {name: SyntheticProcess(name, BEGAN_S - 10) for name in (*names, "compactor-0")}
    samples = [_sample(shape, 0, living, shape.phase(0))]
    killed_after = shape.warm_up_intervals + shape.measured_intervals // 2 if shape.faults else None
    for interval in range(shape.intervals):
        if interval == killed_after:
            living["broker-0"] = SyntheticProcess(
                "broker-0", BEGAN_S + interval * shape.interval_s + 2 * KILLED_AFTER_S
            )
        for name in names:
            serve(living[name], shape)
        compact(living["compactor-0"])
        last = interval == shape.intervals - 1
        phase = "after" if last else shape.phase(interval + 1)
        samples.append(_sample(shape, interval + 1, living, phase))
    samples.append(replace(samples[-1], at_s=samples[-1].at_s + 1, final=True))
    return msgspec.json.encode(samples)


def _sample(shape: RunShape, step: int, living: dict[str, SyntheticProcess], phase: str) -> MetricsSample:
    pages = tuple(PageSample(name, True, "", process.page()) for name, process in living.items())
    at_s = BEGAN_S + step * shape.interval_s
    return MetricsSample(at_s, False, phase, pages, _process_samples(shape, step), _host(step))


def _host(step: int) -> HostSample:
    return HostSample(2, 6.0 * step, 0.1 * step, 1.5, 4 << 30, 1 << 20, (1 << 20) * step, 0, 0)


# -- the directory -----------------------------------------------------------------------------------------------------

Change = Callable[[Any], Any]


def write_run(
    results: Path,
    shape: RunShape | None = None,
    *,
    change_samples: Callable[[list[MetricsSample]], list[MetricsSample]] = lambda samples: samples,
    change_client: Callable[[ClientSummary], ClientSummary] = lambda summary: summary,
    change_scenario: Callable[[Scenario], Scenario] = lambda scenario: scenario,
) -> RunDirectory:
    """A complete run below `results`, without summary.json. The `change_…` functions break what a test is about."""
    shape = RunShape() if shape is None else shape
    scenario = change_scenario(scenario_of(shape))
    run = RunDirectory.create(results, scenario.name, BEGAN_S)
    run.write("resolved-config.json", ResolvedConfig(run.run_id, scenario.name, (), scenario))
    stack = _stack_of(shape, run.run_id)
    run.write_stack(stack)
    run.write("routing-manifest.json", plan_routes(scenario, stack.brokers))
    run.write("environment.json", {"cpu_count": 2})
    run.write("git.json", {"commit": "0" * 40})
    for interval in range(shape.intervals):
        for kind in ("producer", "consumer"):
            run.append("client-30s.jsonl", _client_sample(shape, interval, kind))
    for sample in change_samples(metrics_samples_of(shape)):
        run.append("metrics-30s.jsonl", sample)
    run.write("client-summary.json", change_client(client_summary_of(shape, run.run_id)))
    (run.path / "remap-events.jsonl").touch()
    if shape.faults:
        at_s = BEGAN_S + (shape.warm_up_intervals + shape.measured_intervals / 2) * shape.interval_s
        at_s += KILLED_AFTER_S
        run.append("fault-events.jsonl", FaultEvent(at_s, "kill_broker", "broker-0", "begin"))
        run.append("fault-events.jsonl", FaultEvent(at_s + 1, "kill_broker", "broker-0", "end"))
        run.append("remap-events.jsonl", RemapEvent(at_s, "producer-0", "load", 0, "write", 0, 1, "connection lost"))
    for name in ("broker-0", "compactor-0", "producer-0", "consumer-0", "collector"):
        (run.logs / f"{name}.log").write_text("")
    return run


def _stack_of(shape: RunShape, run_id: str) -> StackRecord:
    brokers = tuple(
        BrokerPlace(n, f"broker-{n}", "both", f"http://127.0.0.1:{9_000 + n}", "127.0.0.1", 9_100 + n)
        for n in range(shape.brokers)
    )
    kinds = [(f"broker-{n}", "broker") for n in range(shape.brokers)]
    kinds += [("compactor-0", "compactor"), ("producer-0", "producer"), ("consumer-0", "consumer")]
    processes = tuple(
        ProcessPlace(name, kind, 100 + number, BEGAN_S - 10, f"logs/{name}.log")  # type: ignore[arg-type]
        for number, (name, kind) in enumerate(kinds)
    )
    compactors = (CompactorPlace(0, "http://127.0.0.1:9200"),)
    return StackRecord(run_id, "down", "synthetic", 99, brokers, compactors, processes)
