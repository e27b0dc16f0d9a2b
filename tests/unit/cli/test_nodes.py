"""The processes of `llog up --brokers N` and of LLOG_WORKERS: their ports, names and node ids."""

from __future__ import annotations

import socket

import pytest

from llog.cli.nodes import HeldPorts, plan_brokers
from llog.errors import SettingsError
from llog.settings import Settings
from llog.settings.listening import SharedPorts, listening_socket


def settings(**given: object) -> Settings:
    return Settings.from_env({}, **{"client_identifier": "here", "data_dir": "/nowhere", **given})


def options(commands: list[list[str]], name: str) -> list[str]:
    return [command[command.index(name) + 1] for command in commands if name in command]


def test_each_broker_has_its_own_ports_and_name() -> None:
    commands = plan_brokers(settings(http_port=9000), count=3)
    assert options(commands, "--port") == ["9000", "9001", "9002"]
    assert options(commands, "--kafka-port") == ["9092", "9093", "9094"]
    assert options(commands, "--broker-id") == ["here-0", "here-1", "here-2"]
    assert all("--host" not in command and "--supervised" in command for command in commands)
    assert all("--node-id" not in command and "--shared-port" not in command for command in commands)


def test_port_0_is_any_port_for_each_and_no_kafka_is_none_for_each() -> None:
    commands = plan_brokers(settings(http_port=0, kafka_port=""), count=2, host="::1")
    assert options(commands, "--port") == ["0", "0"]
    assert options(commands, "--kafka-port") == ["", ""]
    assert options(commands, "--host") == ["::1", "::1"]


def test_workers_share_the_ports_of_the_settings_and_have_the_following_ones() -> None:
    given = settings(kafka_advertised="kafka.example:19092", node_id=7)
    commands = plan_brokers(given, count=2, shared=SharedPorts(8080, 9092))
    assert options(commands, "--shared-port") == ["8080", "8080"]
    assert options(commands, "--shared-kafka-port") == ["9092", "9092"]
    assert options(commands, "--port") == ["8081", "8082"]
    assert options(commands, "--kafka-port") == ["9093", "9094"]
    assert options(commands, "--kafka-advertised") == ["kafka.example:19093", "kafka.example:19094"]
    assert options(commands, "--node-id") == ["7", "8"]


def test_an_advertised_name_without_a_port_stays_as_it_is() -> None:
    commands = plan_brokers(settings(kafka_advertised="kafka.example"), count=2)
    assert options(commands, "--kafka-advertised") == ["kafka.example", "kafka.example"]


@pytest.mark.parametrize("name", ["metadata_url", "objects_url", "wal_url"])
def test_stores_in_memory_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"LLOG_{name.upper()}"):
        plan_brokers(settings(**{name: "memory://x"}), count=2)


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"http_port": 65_534}, "LLOG_HTTP_PORT"),
        ({"kafka_port": 65_534}, "LLOG_KAFKA_PORT"),
        ({"kafka_advertised": "kafka.example:65534"}, "LLOG_KAFKA_ADVERTISED"),
    ],
)
def test_ports_that_do_not_exist_are_refused(given: dict[str, object], variable: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        plan_brokers(settings(**given), count=3)
    assert len(plan_brokers(settings(**given), count=2)) == 2


def test_shared_ports_are_picked_once_and_held_for_workers_alone() -> None:
    with HeldPorts(settings(http_port=0, kafka_port=0), None) as held:
        assert held.ports.kafka is not None
        assert 0 not in held.ports
        assert held.url == f"http://127.0.0.1:{held.ports.http}"
        assert held.kafka == f"127.0.0.1:{held.ports.kafka}"
        # Two workers listen there, and the socket of the supervisor takes no connection from them.
        workers = [
            listening_socket("127.0.0.1", held.ports.kafka, of="LLOG_KAFKA", backlog=64, reuse_port=True)
            for _ in range(2)
        ]
        try:
            for _ in range(16):
                socket.create_connection(("127.0.0.1", held.ports.kafka), 5).close()
            with pytest.raises(SettingsError, match="LLOG_KAFKA_PORT"):
                HeldPorts(settings(http_port=0, kafka_port=held.ports.kafka), None).__enter__()
        finally:
            for worker in workers:
                worker.close()
