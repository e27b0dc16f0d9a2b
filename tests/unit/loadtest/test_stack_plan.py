"""What a stack starts, as values: ports, roles, commands, environments."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from llog.loadtest.artifacts import CompactorPlace
from llog.loadtest.scenario.model import Compactor, Load, Scenario, Stack, Topic
from llog.loadtest.stack import plan
from llog.telemetry.scenario import SCENARIO_VARIABLE, parse_scenario

SPLIT = Scenario(
    "split",
    stack=Stack(
        metadata="oxia",
        brokers=4,
        roles=("write", "read"),
        zones=("a", "b", "c"),
        share_tail_cache=True,
        settings={"LLOG_BATCH_MAX_DELAY_MS": 200, "LLOG_INSECURE": True, "LLOG_LOG_REQUESTS": "all"},
    ),
    topics=(Topic("load", 2_000),),
    load=Load(target_mb_per_s=2.5),
)


def ports_from(first: int) -> Callable[[], int]:
    numbers = count(first)
    return lambda: next(numbers)


def test_brokers_take_roles_and_zones_in_turn() -> None:
    brokers = plan.plan_brokers(SPLIT, ports_from(20_000))
    assert [(broker.broker_id, broker.role, broker.zone) for broker in brokers] == [
        ("broker-0", "write", "a"),
        ("broker-1", "read", "b"),
        ("broker-2", "write", "c"),
        ("broker-3", "read", "a"),
    ]
    ports = plan.plan_ports(brokers, (CompactorPlace(0, "http://127.0.0.1:9"),), {"oxia": 1})
    assert len(set(ports.values())) == len(ports) == 4 * 2 + 1 + 1
    assert ports["broker-3-kafka"] == brokers[3].kafka_port


def test_a_broker_listens_on_loopback_at_its_ports_with_its_node_id() -> None:
    place = plan.plan_brokers(SPLIT, ports_from(20_000))[1]
    command = plan.broker_command(place)
    options = dict(zip(command[5::2], command[6::2], strict=True))
    assert options == {
        "--role": "read",
        "--broker-id": "broker-1",
        "--host": "127.0.0.1",
        "--port": "20002",
        "--kafka-port": "20003",
        "--node-id": "1",
    }
    assert plan.broker_settings(place) == {"LLOG_ZONE": "b"}


def test_settings_of_the_scenario_win_and_are_text() -> None:
    settings = plan.plan_settings(SPLIT, "run-1", {"LLOG_METADATA_URL": "oxia://x"}, Path("/run/tail-cache"))
    assert settings["LLOG_METADATA_URL"] == "oxia://x"
    assert settings["LLOG_LOG_REQUESTS"] == "all"
    assert settings["LLOG_BATCH_MAX_DELAY_MS"] == "200"
    assert settings["LLOG_INSECURE"] == "true"
    assert settings["LLOG_TAIL_CACHE_DIR"] == "/run/tail-cache"
    assert settings["LLOG_TOPIC_PARTITIONS_MAX"] == "2000"


def test_without_a_word_of_the_scenario_only_slow_requests_are_logged() -> None:
    settings = plan.plan_settings(Scenario("x"), "run-1", {}, Path("/run/tail-cache"))
    assert settings.keys() == {"LLOG_LOG_REQUESTS", SCENARIO_VARIABLE}
    assert settings["LLOG_LOG_REQUESTS"] == "slow"


def test_processes_can_read_the_description_of_their_scenario() -> None:
    shown = parse_scenario(plan.describe(SPLIT, "r" * 500))
    assert shown.name == "split"
    assert shown.parameters["brokers"] == 4
    assert shown.parameters["partitions"] == 2_000
    assert shown.parameters["target_mb_per_s"] == 2.5


def test_settings_of_the_shell_do_not_reach_a_run() -> None:
    shell = {"PATH": "/bin", "LLOG_DATA_DIR": "/precious", "LLOG_S3_REGION_NAME": "x", "AWS_PROFILE": "mine"}
    assert plan.inherited(shell, SPLIT) == {"PATH": "/bin"}


def test_access_to_a_store_named_by_url_comes_from_the_shell() -> None:
    shell = {"PATH": "/bin", "LLOG_DATA_DIR": "/precious", "LLOG_S3_REGION_NAME": "x", "AWS_PROFILE": "mine"}
    on_s3 = Scenario("x", stack=Stack(objects="s3://bucket/load"))
    assert plan.inherited(shell, on_s3) == {"PATH": "/bin", "LLOG_S3_REGION_NAME": "x", "AWS_PROFILE": "mine"}


def test_a_compactor_uses_spark_only_if_the_scenario_says_so() -> None:
    for spark, text in ((False, "false"), (True, "true")):
        scenario = Scenario("x", stack=Stack(compactor=Compactor(2, spark)))
        places = plan.plan_compactors(scenario, ports_from(30_000))
        assert [plan.compactor_settings(place, scenario)["LLOG_COMPACTOR_PORT"] for place in places] == [
            "30000",
            "30001",
        ]
        assert plan.compactor_settings(places[0], scenario)["LLOG_COMPACTOR_SPARK"] == text
