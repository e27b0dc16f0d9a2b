"""Kafka's command-line tools, as a script of claims about what they print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from llog.testing.kafka_server import java_packages
from tests.conformance.java import Java
from tests.conformance.outcome import Result
from tests.conformance.suite import Claims, Suite, Target

VERSION: Final = "4.3.1"
TOOLS: Final = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
}
Tool = Callable[..., str]
RECORDS: Final = 60
PERF_RECORDS: Final = 20_000


class _Script:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.java = Java(java_packages("kafka"), target.directory)
        self.claims = Claims()
        self.claim = self.claims.claim

    def tool(self, name: str, *arguments: str, given: str | None = None, may_fail: bool = False) -> str:
        before = ("cluster-id",) if name == "kafka-cluster" else ()
        command = (*before, "--bootstrap-server", self.target.address, *arguments)
        return self.java.tool(TOOLS[name], *command, given=given, may_fail=may_fail)

    def run(self) -> list[Result]:
        self._topics()
        self._records()
        for protocol in ("classic", "consumer"):
            self._groups(protocol)
        self._offsets()
        self._perf()
        self._verifiable()
        self._acls()
        self._cluster()
        return self.claims.results

    def _topics(self) -> None:
        with self.claim("kafka-topics creates a topic with configs"):
            made = self.tool("kafka-topics", "--create", "--topic", "tools", "--partitions", "3", "--config",
                             "retention.ms=5000000")  # fmt: skip
            _contains(made, "Created topic tools.")
        with self.claim("kafka-topics describes its partitions and configs"):
            described = self.tool("kafka-topics", "--describe", "--topic", "tools")
            _matches(described, r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention\.ms=5000000")
            if len(re.findall(r"Partition: \d\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) != 3:
                raise AssertionError(described)
        with self.claim("kafka-topics refuses a name that is taken"):
            _contains(self.tool("kafka-topics", "--create", "--topic", "tools", may_fail=True), "already exists")
        with self.claim("kafka-topics adds partitions"):
            self.tool("kafka-topics", "--alter", "--topic", "tools", "--partitions", "4")
            _contains(self.tool("kafka-topics", "--describe", "--topic", "tools"), "PartitionCount: 4")
        with self.claim("kafka-topics deletes a topic"):
            self.tool("kafka-topics", "--create", "--topic", "short-lived")
            self.tool("kafka-topics", "--delete", "--topic", "short-lived")
            _equal("short-lived" in self.tool("kafka-topics", "--list").splitlines(), False)
        with self.claim("kafka-configs alters a topic's configs"):
            about = ("--entity-type", "topics", "--entity-name", "tools")
            self.tool("kafka-configs", *about, "--alter", "--add-config", "max.message.bytes=2000000")
            _contains(self.tool("kafka-configs", *about, "--describe"), "max.message.bytes=2000000")
            self.tool("kafka-configs", *about, "--alter", "--delete-config", "max.message.bytes")
            _equal("max.message.bytes" in self.tool("kafka-configs", *about, "--describe"), False)
        with self.claim("kafka-configs describes a broker's configs"):
            number = re.search(r"\(id: (\d+) ", self.tool("kafka-broker-api-versions"))
            assert number is not None
            shown = self.tool(
                "kafka-configs", "--entity-type", "brokers", "--entity-name", number[1], "--describe", "--all"
            )
            _contains(shown, "auto.create.topics.enable=")

    def _records(self) -> None:
        lines = "".join(f"key-{number}\tvalue {number} ü\n" for number in range(RECORDS))
        with self.claim("kafka-console-producer writes keyed records"):
            self.tool("kafka-topics", "--create", "--topic", "console", "--partitions", "1")
            self.tool("kafka-console-producer", "--topic", "console", "--reader-property", "parse.key=true",
                      "--compression-codec", "zstd", given=lines)  # fmt: skip
        with self.claim("kafka-console-consumer reads a partition from an offset"):
            shown = self.tool("kafka-console-consumer", "--topic", "console", "--partition", "0", "--offset", "5",
                              "--max-messages", "15", "--formatter-property", "print.key=true")  # fmt: skip
            _equal(_records_of(shown), [f"key-{number}\tvalue {number} ü" for number in range(5, 20)])

    def _groups(self, protocol: str) -> None:
        group, topic = f"group-{protocol}", "console"
        consume: tuple[str, ...] = (
            "--topic",
            topic,
            "--group",
            group,
            "--consumer-property",
            f"group.protocol={protocol}",
        )
        if protocol == "classic":
            consume = (*consume, "--from-beginning")
        else:
            consume = (*consume, "--consumer-property", "auto.offset.reset=earliest")
        with self.claim(f"{protocol}: kafka-console-consumer reads by a group"):
            shown = self.tool("kafka-console-consumer", *consume, "--max-messages", "20", "--timeout-ms", "20000")
            _equal(_records_of(shown), [f"value {number} ü" for number in range(20)])
        with self.claim(f"{protocol}: the group continues where it stopped"):
            shown = self.tool("kafka-console-consumer", *consume, "--max-messages", "10", "--timeout-ms", "20000")
            _equal(_records_of(shown), [f"value {number} ü" for number in range(20, 30)])
        with self.claim(f"{protocol}: kafka-consumer-groups lists the group and its type"):
            listed = self.tool("kafka-consumer-groups", "--list", "--type")
            _matches(listed, rf"(?im)^{group}\s+{protocol}\b")
        with self.claim(f"{protocol}: kafka-groups lists the group"):
            _matches(self.tool("kafka-groups", "--list"), rf"(?im)^{group}\s+{protocol}\s+consumer")
        with self.claim(f"{protocol}: kafka-consumer-groups describes positions and lag"):
            described = self.tool("kafka-consumer-groups", "--describe", "--group", group)
            _matches(described, rf"{group}\s+{topic}\s+0\s+30\s+{RECORDS}\s+{RECORDS - 30}\b")
        with self.claim(f"{protocol}: kafka-consumer-groups describes the state of an empty group"):
            state = self.tool("kafka-consumer-groups", "--describe", "--state", "--group", group)
            _matches(state, rf"{group}\s.*\bEmpty\s+0")
        with self.claim(f"{protocol}: kafka-consumer-groups resets positions"):
            about = ("--group", group, "--topic", topic)
            answer = self.tool("kafka-consumer-groups", "--reset-offsets", *about, "--to-offset", "7", "--execute")
            _matches(answer, rf"{group}\s+{topic}\s+0\s+7\b")
            shown = self.tool("kafka-console-consumer", *consume, "--max-messages", "1", "--timeout-ms", "20000")
            _equal(_records_of(shown), ["value 7 ü"])
        with self.claim(f"{protocol}: kafka-consumer-groups shifts and moves positions by time"):
            move = ("--reset-offsets", "--group", group, "--topic", topic, "--execute")
            _matches(self.tool("kafka-consumer-groups", *move, "--shift-by", "2"), rf"{topic}\s+0\s+10\b")
            moved = self.tool("kafka-consumer-groups", *move, "--to-datetime", "2020-01-01T00:00:00.000")
            _matches(moved, rf"{topic}\s+0\s+0\b")
        with self.claim(f"{protocol}: kafka-consumer-groups deletes positions"):
            answer = self.tool("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
            _matches(answer, rf"{topic}\s+0\s+Successful")
        with self.claim(f"{protocol}: kafka-consumer-groups deletes the group"):
            answer = self.tool("kafka-consumer-groups", "--delete", "--group", group)
            _contains(answer, "was successful")
            _equal(group in self.tool("kafka-consumer-groups", "--list").splitlines(), False)

    def _offsets(self) -> None:
        with self.claim("kafka-get-offsets shows the ends of partitions"):
            ends = self.tool("kafka-get-offsets", "--topic", "console", "--time", "latest").split()
            _equal(ends, [f"console:0:{RECORDS}"])
        with self.claim("kafka-delete-records moves the start of a partition"):
            wanted = self.target.directory / "delete.json"
            log = {"topic": "console", "partition": 0, "offset": 40}
            wanted.write_text(json.dumps({"version": 1, "partitions": [log]}))
            _contains(self.tool("kafka-delete-records", "--offset-json-file", str(wanted)), "low_watermark: 40")
            starts = self.tool("kafka-get-offsets", "--topic", "console", "--time", "earliest").split()
            _equal(starts, ["console:0:40"])
        with self.claim("kafka-log-dirs sums the bytes of a topic"):
            described = self.tool("kafka-log-dirs", "--describe", "--topic-list", "console").splitlines()[-1]
            [directory] = json.loads(described)["brokers"][0]["logDirs"]
            _equal(sum(partition["size"] for partition in directory["partitions"]) > 0, True)

    def _perf(self) -> None:
        with self.claim("kafka-producer-perf-test sends all records"):
            self.tool("kafka-topics", "--create", "--topic", "perf", "--partitions", "3")
            report = self.tool("kafka-producer-perf-test", "--topic", "perf", "--num-records", str(PERF_RECORDS),
                               "--record-size", "500", "--throughput", "-1")  # fmt: skip
            _contains(report, f"{PERF_RECORDS} records sent")
        with self.claim("kafka-consumer-perf-test reads them all by a group"):
            report = self.tool("kafka-consumer-perf-test", "--topic", "perf", "--num-records", str(PERF_RECORDS),
                               "--timeout", "30000")  # fmt: skip
            row = next(line for line in report.splitlines() if line[:4].isdigit()).split(", ")
            _equal(int(row[4]) >= PERF_RECORDS, True)
        with self.claim("kafka-e2e-latency measures a producer and a consumer"):
            report = self.tool("kafka-e2e-latency", "--topic", "e2e", "--num-records", "50", "--producer-acks", "all",
                               "--record-size", "100")  # fmt: skip
            _matches(report, r"Percentiles: 50th = ")

    def _verifiable(self) -> None:
        with self.claim("kafka-verifiable-producer: every record is acknowledged at its offset"):
            self.tool("kafka-topics", "--create", "--topic", "verified", "--partitions", "1")
            lines = _events(
                self.tool("kafka-verifiable-producer", "--topic", "verified", "--max-messages", "200", "--acks", "-1")
            )
            sent = [line["offset"] for line in lines if line["name"] == "producer_send_success"]
            _equal(sent, list(range(200)))
        for protocol in ("classic", "consumer"):
            with self.claim(f"{protocol}: kafka-verifiable-consumer consumes and commits them"):
                lines = _events(
                    self.tool(
                        "kafka-verifiable-consumer", "--topic", "verified", "--group-id", f"verified-{protocol}",
                        "--max-messages", "200", "--reset-policy", "earliest", "--group-protocol", protocol,
                    )
                )  # fmt: skip
                _equal(sum(line["count"] for line in lines if line["name"] == "records_consumed"), 200)
                committed = [line for line in lines if line["name"] == "offsets_committed" and line["success"]]
                _equal(committed[-1]["offsets"][0]["offset"], 200)

    def _acls(self) -> None:
        about = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "tools")
        with self.claim("kafka-acls adds and lists an entry"):
            self.tool("kafka-acls", "--add", *about)
            _matches(self.tool("kafka-acls", "--list", "--topic", "tools"), r"User:alice.*operation=READ")
        with self.claim("kafka-acls removes an entry"):
            self.tool("kafka-acls", "--remove", "--force", *about)
            _equal("User:alice" in self.tool("kafka-acls", "--list", "--topic", "tools"), False)
        with self.claim("kafka-configs sets and describes SCRAM credentials"):
            user = ("--entity-type", "users", "--entity-name", "alice")
            self.tool("kafka-configs", "--alter", *user, "--add-config", "SCRAM-SHA-256=[password=alice-secret]")
            _contains(self.tool("kafka-configs", "--describe", *user), "SCRAM-SHA-256")
            self.tool("kafka-configs", "--alter", *user, "--delete-config", "SCRAM-SHA-256")

    def _cluster(self) -> None:
        with self.claim("kafka-leader-election finds no election needed"):
            answer = self.tool("kafka-leader-election", "--election-type", "preferred", "--topic", "tools",
                               "--partition", "0")  # fmt: skip
            _contains(answer, "already elected")
        with self.claim("kafka-cluster shows the cluster's id"):
            _matches(self.tool("kafka-cluster"), r"Cluster ID: \S+")
        with self.claim("kafka-broker-api-versions lists the versions"):
            _matches(self.tool("kafka-broker-api-versions"), r"Fetch\(1\): 4 to 18 \[usable: 18\]")
        with self.claim("kafka-transactions lists transactions"):
            _contains(self.tool("kafka-transactions", "list"), "TransactionalId")


def _contains(text: str, part: str) -> None:
    assert part in text, f"{part!r} is not in: {text}"


def _matches(text: str, pattern: str) -> None:
    assert re.search(pattern, text), f"{pattern!r} does not match: {text}"


def _equal(found: object, wanted: object) -> None:
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def _records_of(shown: str) -> list[str]:
    """The lines that are records; the consumer counts them on another line."""
    return [line for line in shown.splitlines() if line.startswith(("key-", "value "))]


def _events(shown: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.splitlines() if line.startswith("{")]


def run(target: Target) -> list[Result]:
    return _Script(target).run()


SUITE: Final = Suite("tools", "Kafka's command-line tools", VERSION, run, note="a script of claims about their output")
