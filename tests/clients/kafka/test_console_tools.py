"""Kafka's own console tools, 4.3.1, judge the broker: each is a Java program, started as its script starts it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from llog.testing.kafka_server import java_command, java_packages
from llog.testing.servers import ServerUnavailable
from tests.clients.kafka.brokers import KafkaBroker
from tests.clients.kafka.program_driver import SHORT_LIVED
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.server]
TOOLS: Final = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
}
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Tool:
    """Runs a tool by the name of its script, with the broker's address; returns its standard output."""
    try:
        java = java_command(
            java_packages("kafka"), *SHORT_LIVED, f"-Dlog4j2.configurationFile={_quiet(tmp_path_factory)}"
        )
    except ServerUnavailable as reason:
        pytest.skip(str(reason))

    def run(name: str, *arguments: str, given: str | None = None) -> str:
        ended = subprocess.run(
            [*java, TOOLS[name], "--bootstrap-server", kafka.address, *arguments],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{name} ended with {ended.returncode}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    return run


def _quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of the tools' log: warnings, on standard error."""
    file = tmp_path_factory.mktemp("tools") / "log4j2.properties"
    file.write_text(
        "appender.console.type=Console\nappender.console.name=STDERR\nappender.console.target=SYSTEM_ERR\n"
        "rootLogger.level=WARN\nrootLogger.appenderRef.console.ref=STDERR\n"
    )
    return file


def test_topics_are_created_described_grown_and_deleted(tool: Tool, topic: str) -> None:
    made = tool("kafka-topics", "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=5000000")
    assert f"Created topic {topic}." in made
    described = tool("kafka-topics", "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention\.ms=5000000", described), (
        described
    )
    assert len(re.findall(r"Partition: \d\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3
    tool("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    assert f"{topic}:4:0" in tool("kafka-get-offsets", "--topic", topic).splitlines()
    tool("kafka-topics", "--delete", "--topic", topic)
    assert topic not in tool("kafka-topics", "--list").splitlines()


def test_configs_are_altered_and_described(tool: Tool, topic: str) -> None:
    tool("kafka-topics", "--create", "--topic", topic)
    about = ("--entity-type", "topics", "--entity-name", topic)
    tool("kafka-configs", *about, "--alter", "--add-config", "max.message.bytes=2000000,segment.ms=700000")
    described = tool("kafka-configs", *about, "--describe")
    assert "max.message.bytes=2000000" in described
    assert "segment.ms=700000" in described


def test_records_go_in_by_the_console_and_come_out_by_it(tool: Tool, topic: str) -> None:
    tool("kafka-topics", "--create", "--topic", topic)
    lines = "".join(f"key-{number}\tvalue {number} ü\n" for number in range(20))
    tool(
        "kafka-console-producer",
        "--topic", topic, "--reader-property", "parse.key=true", "--compression-codec", "zstd",
        given=lines,
    )  # fmt: skip
    shown = tool(
        "kafka-console-consumer",
        "--topic", topic, "--partition", "0", "--offset", "5", "--max-messages", "15",
        "--formatter-property", "print.key=true", "--formatter-property", "print.offset=true",
    )  # fmt: skip
    assert shown.splitlines() == [f"Offset:{number}\tkey-{number}\tvalue {number} ü" for number in range(5, 20)]


def test_records_are_counted_deleted_and_sized(tool: Tool, topic: str, tmp_path: Path) -> None:
    """By the tools that measure: one produces fast, one acknowledges each record, two others look at the result."""
    tool("kafka-topics", "--create", "--topic", topic)
    report = tool(
        "kafka-producer-perf-test",
        "--topic", topic, "--num-records", "5000", "--record-size", "500", "--throughput", "-1",
    )  # fmt: skip
    assert "5000 records sent" in report
    told = [json.loads(line) for line in tool(
        "kafka-verifiable-producer", "--topic", topic, "--max-messages", "100", "--acks", "-1",
    ).splitlines()]  # fmt: skip
    acknowledged = [line["offset"] for line in told if line["name"] == "producer_send_success"]
    assert acknowledged == list(range(5_000, 5_100))
    assert tool("kafka-get-offsets", "--topic", topic, "--time", "latest").split() == [f"{topic}:0:5100"]
    wanted = tmp_path / "delete.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4_000}]}))
    assert "low_watermark: 4000" in tool("kafka-delete-records", "--offset-json-file", str(wanted))
    assert tool("kafka-get-offsets", "--topic", topic, "--time", "earliest").split() == [f"{topic}:0:4000"]
    described = json.loads(tool("kafka-log-dirs", "--describe", "--topic-list", topic).splitlines()[-1])
    sizes = [
        partition["size"]
        for broker in described["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    assert sum(sizes) > 500 * 1_000, "the records that are left"


def test_an_election_of_leaders_is_not_needed(tool: Tool, topic: str) -> None:
    tool("kafka-topics", "--create", "--topic", topic)
    answer = tool("kafka-leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "already elected" in answer or "Valid replica already elected" in answer, answer


def test_the_cluster_describes_itself(tool: Tool, kafka: KafkaBroker) -> None:
    versions = tool("kafka-broker-api-versions")
    assert versions.startswith(kafka.address)
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", versions), versions
    assert re.search(r"Fetch\(1\): 4 to 18 \[usable: 18\]", versions), versions
