"""A scenario as the inputs of the cost model."""

from __future__ import annotations

from typing import Final

from llog.cost.inputs import Brokers, Compaction, CostInputs, Load
from llog.cost.kafka import BYTES_PER_MB
from llog.errors import ScenarioInvalid
from llog.loadtest.scenario.model import Scenario
from llog.settings import Settings

UPLOAD_MS: Final = {"directory": 2.0, "minio": 20.0, "versitygw": 20.0}
"""Of a blob to the stores that a load test starts; S3 takes the default of the model."""
ATOMIC_STORES: Final = ("lmdb", "postgres")
HOUR_MS: Final = 3_600_000


def scenario_inputs(scenario: Scenario, records_per_s: float | None = None) -> CostInputs:
    """`records_per_s` replaces the scenario's rate. Raises `ScenarioInvalid` where neither has one."""
    settings = _settings(scenario)
    return CostInputs(
        load=_load(scenario, records_per_s),
        brokers=_brokers(scenario, settings),
        compaction=Compaction(
            compactors=scenario.stack.compactor.count,
            segment_bytes=settings.compactor_trigger_bytes,
            segment_age_s=settings.compactor_trigger_age_ms / 1_000,
            min_age_s=settings.compactor_min_age_ms / 1_000,
            vacuum_grace_s=settings.vacuum_grace_ms / 1_000,
        ),
    )


def _settings(scenario: Scenario) -> Settings:
    """Those of its brokers, with the defaults that depend on where the stores are."""
    stack = scenario.stack
    local = {"lmdb": "lmdb:///metadata", "directory": "file:///objects"}
    places = {
        "LLOG_METADATA_URL": local.get(stack.metadata, "oxia://127.0.0.1:6648"),
        "LLOG_OBJECTS_URL": local.get(stack.objects, "s3://bucket"),
    }
    return Settings.from_env(places | {name: str(value) for name, value in stack.settings.items()})


def _load(scenario: Scenario, records_per_s: float | None) -> Load:
    records, producers, consumers = scenario.records, scenario.producers, scenario.consumers
    if records_per_s is None:
        if scenario.load.target_mb_per_s is None:
            reason = "the scenario states no rate; give --records-per-second"
            raise ScenarioInvalid(scenario.name, "load.target_mb_per_s", reason)
        records_per_s = scenario.load.target_mb_per_s * BYTES_PER_MB / records.bytes
    reads = 1.0 if consumers.clients else 0.0
    tail = consumers.begin == "with_producers"
    roles = {scenario.stack.role_of(number) for number in range(scenario.stack.brokers)}
    return Load(
        records_per_s=records_per_s,
        record_bytes=records.bytes,
        records_per_group=producers.records_per_request / producers.partitions_per_request,
        partitions_per_request=producers.partitions_per_request,
        partitions=scenario.partitions,
        owners=min(scenario.routing.owners, len(scenario.brokers_for(writing=True))),
        retention_hours=_retention_hours(scenario),
        consumers_fanout=reads if tail else 0.0,
        cold_reads=0.0 if tail else reads,
        tail_cache_share=1.0 if roles == {"both"} or scenario.stack.share_tail_cache else 0.0,
        stored_bytes_per_byte=1.0 if records.compression == "none" else max(0.01, 1 - records.compressibility),
    )


def _retention_hours(scenario: Scenario) -> float:
    """The longest of the topics. One that keeps its records for ever counts as the default."""
    limits = [int(topic.configs.get("retention.ms", "-1")) for topic in scenario.topics]
    return max(limits) / HOUR_MS if min(limits) > 0 else Load().retention_hours


def _brokers(scenario: Scenario, settings: Settings) -> Brokers:
    stack = scenario.stack
    writers = len(scenario.brokers_for(writing=True))
    local = stack.objects == "directory"
    return Brokers(
        brokers=max(1, writers),
        readers=stack.brokers - writers,
        delay_ms=settings.batch_max_delay_ms,
        batch_max_bytes=settings.batch_max_bytes,
        store="local" if local else "s3",
        upload_ms=UPLOAD_MS.get(stack.objects, Brokers().upload_ms),
        metadata_store="atomic" if stack.metadata.startswith(ATOMIC_STORES) else "separate",
    )
