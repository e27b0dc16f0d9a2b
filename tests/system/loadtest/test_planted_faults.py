"""A broker that loses, repeats or reorders a single record: the load test reports exactly that.

The faulty broker is a real one in a process of its own (`faulty_broker`); the load comes from the generator processes
of a run, and the driver compares what producers had acknowledged with what consumers received.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import httpx
import pytest

from llog.loadtest.artifacts import BrokerPlace, ClientSummary, Loss, ResolvedConfig, StackRecord
from llog.loadtest.client.drive import run_load
from llog.loadtest.routing import plan_routes
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario
from llog.loadtest.scenario.read import parse_scenario
from tests.patience import PATIENCE_SECONDS
from tests.system.broker_process import LlogProcess
from tests.system.crashing import SOAK

FAULTS: Final = {
    "drop": Loss(missing=1),
    "duplicate": Loss(duplicates=1),
    "reorder": Loss(reordered=1),
}
ALL: Final = (*FAULTS, "sound")
EACH: Final = [ALL, *((fault,) for fault in ALL)] if SOAK else [ALL]
ENGINES: Final = ["http raw", "kafka raw", "kafka librdkafka"] if SOAK else ["kafka raw"]


def scenario(faults: tuple[str, ...], engine: str) -> Scenario:
    """A topic for each fault, of which each engine has its own. The rate is low, so that a busy machine keeps up."""
    protocol, name = engine.split()
    topics = "\n".join(f"  - {{name: {fault}-{protocol}-{name}, partitions: 2}}" for fault in faults)
    return parse_scenario(f"""
name: faults
topics:
{topics}
load: {{protocol: {protocol}, engine: {name}, target_mb_per_s: 0.1, warm_up_s: 0.5, duration_s: 3}}
records: {{bytes: 200}}
producers: {{clients: 8, records_per_request: 8, timeout_s: 30}}
consumers: {{clients: 2, drain_s: 30}}
""")


async def run_against(broker: LlogProcess, run: RunDirectory, wanted: Scenario) -> ClientSummary:
    place = BrokerPlace(0, "b0", "both", broker.url, "127.0.0.1", broker.kafka_port)
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        for topic in wanted.topics:
            body = {"topic": topic.name, "partitions": topic.partitions}
            answer = await client.post(f"{broker.url}/topics", json=body)
            assert answer.is_success, answer.text
    run.write("resolved-config.json", ResolvedConfig(run.run_id, wanted.name, (), wanted))
    run.write_stack(StackRecord(run.run_id, "up", wanted.name, os.getpid(), (place,)))
    run.write("routing-manifest.json", plan_routes(wanted, [place]))

    async def restart_brokers() -> None:
        raise AssertionError("the scenario wants no restart")

    return await run_load(
        run,
        on_phase=lambda _: None,
        on_process=lambda *_: None,
        on_progress=lambda _: None,
        restart_brokers=restart_brokers,
    )


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("faults", EACH, ids="-".join)
def test_exactly_the_damaged_records_are_reported(tmp_path: Path, faults: tuple[str, ...]) -> None:
    stores = {"LLOG_METADATA_URL": f"lmdb://{tmp_path}/metadata", "LLOG_OBJECTS_URL": f"file://{tmp_path}/objects"}
    module = "tests.system.loadtest.faulty_broker"
    with LlogProcess("broker", settings=stores, log=tmp_path / "broker.log", module=module) as broker:
        for engine in ENGINES:
            run = RunDirectory.create(tmp_path, "faults")
            check(asyncio.run(run_against(broker, run, scenario(faults, engine))), faults)
        assert broker.output().count("fault: ") == len([fault for fault in faults if fault in FAULTS]) * len(ENGINES)


def check(summary: ClientSummary, faults: tuple[str, ...]) -> None:
    by_fault = {place.partition("-")[0]: loss for place, loss in summary.losses.items()}
    assert by_fault == {fault: FAULTS[fault] for fault in faults if fault in FAULTS}
    assert summary.records_acknowledged > 100
    assert (summary.failed, summary.uncertain_records) == ({}, 0)
    assert (summary.partitions_unfinished, summary.records_misplaced) == (0, 0)
    lost, repeated = summary.loss.missing, summary.loss.duplicates
    assert summary.records_received == summary.records_acknowledged - lost + repeated
    assert summary.end_to_end.count > 0
