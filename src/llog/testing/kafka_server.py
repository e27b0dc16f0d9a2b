"""Apache Kafka itself, one node without ZooKeeper, as the reference that ours is compared with; and its Java packages.

`make servers` fetches the packages by Maven into the servers' cache. Where they or Java are missing,
`ServerUnavailable` says why and the test skips with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from llog.testing.servers import Server, ServerProcess, ServerUnavailable, cache_directory, free_port

HEAP_MIB: Final = 512
STARTED: Final = "Kafka Server started"
# Any 16 bytes in base64: the node is alone.
CLUSTER_ID: Final = "bGxvZy10ZXN0LWthZmthMA"
_LOG4J: Final = """\
appender.console.type=Console
appender.console.name=STDOUT
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c %m%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=STDOUT
logger.started.name=kafka.server.KafkaRaftServer
logger.started.level=INFO
"""


def java_packages(name: str) -> Path:
    """The directory with the jars of `servers/<name>/pom.xml`."""
    found = sorted(cache_directory().glob(f"{name}-*/lib"))
    if not found:
        raise ServerUnavailable(f"the packages of {name} are not fetched: `make servers` fetches them (needs Maven)")
    return found[-1]


def java_command(packages: Path, *options: str) -> list[str]:
    """`java` with these jars in its class path; the main class and its arguments follow."""
    program = shutil.which("java")
    if program is None:
        raise ServerUnavailable("Java is not installed (17 or newer)")
    return [program, *options, "-cp", f"{packages}/*"]


class KafkaServer(Server):
    """Apache Kafka on a loopback port: broker and controller in one process.

    `options` are lines of its server.properties (`{"flush.messages": "1"}`: an fsync before every answer; Kafka's name
    for it is `log.flush.interval.messages`, both are understood). `tls` is a PEM file with a private key and its
    certificate: clients then have to speak TLS.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        *,
        tls: Path | None = None,
        heap_mib: int = HEAP_MIB,
        java_options: Sequence[str] = (),
    ) -> None:
        packages = java_packages("kafka")
        command = java_command(packages)
        super().__init__()
        self.port, self._controller_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.properties = self.directory / "server.properties"
        lines = self._lines(tls) | {_BROKER_NAMES.get(name, name): value for name, value in (options or {}).items()}
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        (self.directory / "log4j2.properties").write_text(_LOG4J)
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        jvm = [f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", "-XX:+UseG1GC", logging, *java_options]
        self._format = [command[0], "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", logging, *command[1:]]
        self._format += ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self.properties)]
        args = [command[0], *jvm, *command[1:], "kafka.Kafka", str(self.properties)]
        self.process = ServerProcess(args, log=self.directory / "log", cwd=self.directory)

    def _lines(self, tls: Path | None) -> dict[str, str]:
        protocol = "PLAINTEXT" if tls is None else "SSL"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"BROKER://{self.address},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"BROKER://{self.address}",
            "listener.security.protocol.map": f"BROKER:{protocol},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A busy machine may stall the process for long; the only node is not to be taken for dead.
            "broker.session.timeout.ms": "600000",
        }
        if tls is not None:
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tls)}
        return lines

    def start(self) -> None:
        if not (self.directory / "data").exists():
            formatted = subprocess.run(self._format, capture_output=True, text=True, check=False, env=os.environ)
            if formatted.returncode != 0:
                raise RuntimeError(f"Kafka's storage could not be formatted: {formatted.stdout}{formatted.stderr}")
        starts = self._starts() + 1
        self.process.start()
        self.process.wait_ready("kafka", lambda: self._starts() >= starts)

    def _starts(self) -> int:
        log = self.process.log
        return log.read_text(errors="replace").count(STARTED) if log.exists() else 0

    def stop(self) -> None:
        self.process.kill()  # a test's data need not survive


# Names of a topic's configuration, as the broker's defaults are called.
_BROKER_NAMES: Final = {"flush.messages": "log.flush.interval.messages", "max.message.bytes": "message.max.bytes"}
