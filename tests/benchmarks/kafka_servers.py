"""The servers that Kafka benchmarks measure: a broker of ours and Apache Kafka, each in a process of its own.

Both get the same requests on topics of their own. A topic lives for one round; then its files are removed outside the
clock, so that pages of memory are used again. In a virtual machine a page that was never touched costs several times
what is written to it, and a disk that only fills up would measure the machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from llog.testing.kafka_server import KafkaServer
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, VersityGateway, free_port, port_open
from tests.benchmarks.http_load import cpu_seconds
from tests.benchmarks.kafka_load import Command, Loaded, LoadProcess, Target
from tests.benchmarks.kafka_wire import KafkaSocket
from tests.system.broker_process import LlogProcess

PARTITIONS: Final = 16
# The tail cache holds what one round writes, and no more.
SETTINGS: Final = {"LLOG_TAIL_CACHE_MAX_BYTES": "256MiB", "LLOG_AUTO_PARTITIONS_MAX": "20000"}
FSYNC: Final = {"flush.messages": "1"}
# As Kafka's own start script sets them, and one more.
JAVA_OPTIONS: Final = (
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    # Threads that end would take their processor time out of the count.
    "-XX:-UseDynamicNumberOfCompilerThreads",
)
HEAP_MIB: Final = 1_024


class KafkaTarget:
    """A server that speaks Kafka: where it listens, what it costs, where its files are."""

    def __init__(self, name: str, port: int, pid: int, directory: Path) -> None:
        self.name, self.port, self.pid, self._directory = name, port, pid, directory
        self._socket = KafkaSocket(port)
        self._topics: list[str] = []

    def cpu_seconds(self) -> float:
        return cpu_seconds([self.pid])

    def topic(self, configs: Mapping[str, str] | None = None, partitions: int = PARTITIONS) -> Target:
        return self.named_topic(configs, partitions)[1]

    def named_topic(self, configs: Mapping[str, str] | None = None, partitions: int = PARTITIONS) -> tuple[str, Target]:
        """A new topic; `tidy` removes it."""
        name, topic_id = self._socket.create_topic(partitions, configs)
        self._topics.append(name)
        return name, Target(self.port, topic_id, partitions)

    def tidy(self) -> None:
        """Remove all topics, and the blobs of ours."""
        if self._topics:
            self._socket.delete_topics(self._topics)
            self._topics.clear()
        for blobs in self._directory.glob("**/wal-shared"):
            for name in os.listdir(blobs):
                os.unlink(blobs / name)

    def close(self) -> None:
        self._socket.close()


class Measured:
    """What a load cost the server."""

    def __init__(self, loaded: Loaded, cpu: float) -> None:
        self.loaded, self.cpu = loaded, cpu

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu / self.loaded.megabytes * 1_000

    @property
    def cores(self) -> float:
        return self.cpu / self.loaded.seconds


def measure(server: KafkaTarget, load: LoadProcess, command: Command) -> Measured:
    before = server.cpu_seconds()
    loaded = load.run(command)
    return Measured(loaded, server.cpu_seconds() - before)


@contextmanager
def llog_kafka(settings: Mapping[str, str] | None = None) -> Iterator[KafkaTarget]:
    """`llog broker` with a Kafka listener; on LMDB and files, if the settings name no other stores."""
    port = free_port()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llog-bench-")))
        ours = {"LLOG_DATA_DIR": str(directory / "data"), "LLOG_KAFKA_PORT": str(port)}
        process = stack.enter_context(
            LlogProcess("broker", settings=ours | SETTINGS | dict(settings or {}), log=directory / "log")
        )
        process.wait(lambda: process.child.poll() is not None or port_open(port), "listen for Kafka clients")
        assert process.child.poll() is None, process.output()
        target = KafkaTarget("llog", port, process.child.pid, directory / "data")
        stack.callback(target.close)
        yield target


@contextmanager
def llog_kafka_on_s3() -> Iterator[KafkaTarget]:
    """The same with objects in an S3 server."""
    with VersityGateway() as server:
        settings = {
            "LLOG_OBJECTS_URL": f"s3://{server.bucket}/log",
            "LLOG_S3_ENDPOINT_URL": server.endpoint,
            "LLOG_S3_REGION_NAME": "us-east-1",
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        with llog_kafka(settings) as target:
            yield target


@contextmanager
def apache_kafka() -> Iterator[KafkaTarget]:
    """Apache Kafka; `FSYNC` as a topic's configs makes it wait for the disk before it answers."""
    options = {"log.segment.delete.delay.ms": "100"}
    with KafkaServer(options, heap_mib=HEAP_MIB, java_options=JAVA_OPTIONS) as server:
        target = KafkaTarget("Kafka", server.port, server.process.pid, Path("/nonexistent"))
        try:
            yield target
        finally:
            target.close()
