"""The processes of a scenario's stack as values: who gets which role, zone, port, command and environment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from llog.limits import METRICS_LABEL_CHARS_MAX
from llog.loadtest.artifacts import BrokerPlace, CompactorPlace
from llog.loadtest.scenario.model import Scenario
from llog.telemetry.scenario import SCENARIO_VARIABLE, LoadTestScenario

HOST: Final = "127.0.0.1"
_STORE_SETTINGS: Final = ("LLOG_S3_", "LLOG_OXIA_", "AWS_")
"""What the environment may say about stores that a scenario names by URL."""
_TOPIC_PARTITIONS_DEFAULT: Final = 1_024


def plan_brokers(scenario: Scenario, free_port: Callable[[], int]) -> tuple[BrokerPlace, ...]:
    stack = scenario.stack
    return tuple(
        BrokerPlace(
            number=number,
            broker_id=f"broker-{number}",
            role=stack.role_of(number),
            http_url=f"http://{HOST}:{free_port()}",
            kafka_host=HOST,
            kafka_port=free_port(),
            zone=stack.zones[number % len(stack.zones)] if stack.zones else "",
        )
        for number in range(stack.brokers)
    )


def plan_compactors(scenario: Scenario, free_port: Callable[[], int]) -> tuple[CompactorPlace, ...]:
    count = scenario.stack.compactor.count
    return tuple(CompactorPlace(number, f"http://{HOST}:{free_port()}") for number in range(count))


def broker_command(place: BrokerPlace) -> list[str]:
    command = [sys.executable, "-m", "llog", "broker", "--json", "--role", place.role, "--broker-id", place.broker_id]
    command += ["--host", HOST, "--port", port_of(place.http_url), "--kafka-port", str(place.kafka_port)]
    return [*command, "--node-id", str(place.number)]


def compactor_command() -> list[str]:
    return [sys.executable, "-m", "llog", "compactor", "--json"]


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


def inherited(environment: Mapping[str, str], scenario: Scenario) -> dict[str, str]:
    """The shell's variables without settings of llog, so that a scenario means the same everywhere; settings of the
    stores stay where the scenario names a store by URL."""
    by_url = "://" in scenario.stack.metadata or "://" in scenario.stack.objects
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("LLOG_", "AWS_")) or (by_url and name.startswith(_STORE_SETTINGS))
    }


def plan_settings(scenario: Scenario, run_id: str, stores: Mapping[str, str], tail_cache: Path) -> dict[str, str]:
    """The `LLOG_…` variables of every process of the run; those of the scenario win."""
    settings = {"LLOG_LOG_REQUESTS": "slow", SCENARIO_VARIABLE: describe(scenario, run_id), **stores}
    partitions = max(topic.partitions for topic in scenario.topics)
    if partitions > _TOPIC_PARTITIONS_DEFAULT:
        settings["LLOG_TOPIC_PARTITIONS_MAX"] = str(partitions)
    if scenario.stack.share_tail_cache:
        settings["LLOG_TAIL_CACHE_DIR"] = str(tail_cache)
    return settings | {name: setting_text(value) for name, value in scenario.stack.settings.items()}


def broker_settings(place: BrokerPlace) -> dict[str, str]:
    return {"LLOG_ZONE": place.zone} if place.zone else {}


def compactor_settings(place: CompactorPlace, scenario: Scenario) -> dict[str, str]:
    name = f"compactor-{place.number}"
    return {
        "LLOG_CLIENT_IDENTIFIER": name,
        "LLOG_COMPACTOR_BIND_HOST": HOST,
        "LLOG_COMPACTOR_PORT": port_of(place.http_url),
        "LLOG_COMPACTOR_SPARK": setting_text(scenario.stack.compactor.spark),
    }


def setting_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe(scenario: Scenario, run_id: str) -> str:
    """The JSON of LLOG_LOADTEST_SCENARIO."""
    load, producers, consumers = scenario.load, scenario.producers, scenario.consumers
    parameters: dict[str, int | float] = {
        "brokers": scenario.stack.brokers,
        "compactors": scenario.stack.compactor.count,
        "topics": len(scenario.topics),
        "partitions": scenario.partitions,
        "record_bytes": scenario.records.bytes,
        "keys": scenario.records.keys,
        "producer_clients": producers.clients if scenario.produces else 0,
        "records_per_request": producers.records_per_request,
        "consumer_clients": consumers.clients,
        "owners": scenario.routing.owners,
        "target_mb_per_s": load.target_mb_per_s or 0,
        "warm_up_s": load.warm_up_s,
        "duration_s": load.duration_s,
    }
    shown = LoadTestScenario(scenario.name, run_id[:METRICS_LABEL_CHARS_MAX], parameters)
    return msgspec.json.encode(shown).decode()


def plan_ports(
    brokers: Sequence[BrokerPlace], compactors: Sequence[CompactorPlace], servers: Mapping[str, int]
) -> dict[str, int]:
    """`ports.json`."""
    ports = dict(servers)
    for broker in brokers:
        ports[f"{broker.broker_id}-http"] = int(port_of(broker.http_url))
        ports[f"{broker.broker_id}-kafka"] = broker.kafka_port
    return ports | {f"compactor-{place.number}": int(port_of(place.http_url)) for place in compactors}
