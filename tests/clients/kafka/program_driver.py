"""Clients of other languages: a program of ours for each, which does what a line of JSON says and answers with another.

The programs are built from their sources here when a test first needs them: franz-go in `franz`, Java in `java`.
Where Go or Java is missing, or a package cannot be had, `ServerUnavailable` says so.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llog.testing.kafka_server import java_command, java_packages
from llog.testing.servers import ServerUnavailable, cache_directory
from tests.clients.kafka.brokers import KafkaBroker
from tests.clients.kafka.driver import PLAIN, ClientDriver, Fetched, How, Refused, Sent

HERE: Final = Path(__file__).parent
BUILD_SECONDS_MAX: Final = 900
# A JVM that lives for seconds compiles fast instead of well.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "-Xshare:auto")


def built(name: str, sources: Sequence[Path], build: Sequence[str], output: str) -> Path:
    """A file or directory in the cache, under a name that changes with the sources; `{output}` of the command is it."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    target = cache_directory() / f"{name}-{digest}" / output
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w") as lock:  # several test processes may need it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as stage:
            made = Path(stage) / output
            command = [argument.replace("{output}", str(made)) for argument in build]
            ended = subprocess.run(
                command,
                cwd=sources[0].parent,
                env=os.environ | {"CGO_ENABLED": "0"},
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS_MAX,
                check=False,
            )
            assert ended.returncode == 0, f"{name} does not build: {ended.stdout}{ended.stderr}"
            made.rename(target)
    return target


def go_program(directory: Path) -> Path:
    go = shutil.which("go")
    if go is None:
        raise ServerUnavailable("Go is not installed")
    # Only the first module proxy is asked, as in servers/build.sh.
    proxy = subprocess.run([go, "env", "GOPROXY"], capture_output=True, text=True, check=True).stdout.split(",")[0]
    fetch = [go, "mod", "download"]
    fetched = subprocess.run(
        fetch, cwd=directory, env=os.environ | {"GOPROXY": proxy.strip()}, capture_output=True, text=True, check=False
    )
    if fetched.returncode != 0:
        raise ServerUnavailable(f"the modules of {directory.name} cannot be had: {fetched.stderr[-500:]}")
    sources = [directory / "main.go", directory / "go.mod", directory / "go.sum"]
    return built(f"client-{directory.name}", sources, [go, "build", "-trimpath", "-o", "{output}", "."], "program")


def java_classes(source: Path) -> Path:
    javac = shutil.which("javac")
    if javac is None:
        raise ServerUnavailable("a Java compiler is not installed (JDK 17 or newer)")
    packages = java_packages("kafka")
    build = [javac, "-d", "{output}", "-cp", f"{packages}/*", source.name]
    return built("client-java", [source, packages.parents[0] / "lib" / _newest_clients(packages)], build, "classes")


def _newest_clients(packages: Path) -> str:
    return next(path.name for path in packages.glob("kafka-clients-*.jar"))


class ProgramDriver(ClientDriver):
    """One of the programs, as a child process."""

    def __init__(self, command: Sequence[str], broker: KafkaBroker) -> None:
        ca_file = "" if broker.ca_file is None else str(broker.ca_file)
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the driver
        self._child = subprocess.Popen(
            [*command, broker.address, ca_file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def _call(self, operation: str, topic: str = "", **more: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"op": operation, "topic": topic, **more}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the program ended: {self._errors.read()[-3_000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer

    def produce(self, topic: str, records: Sequence[Sent], how: How = PLAIN) -> list[int]:
        sent = [
            {
                "value": _text(record.value),
                "key": _text(record.key),
                "headers": [{"name": name, "value": _text(value)} for name, value in record.headers],
                "timestamp_ms": record.timestamp_ms,
                "partition": record.partition,
            }
            for record in records
        ]
        return list(self._call("produce", topic, records=sent, how=how._asdict())["offsets"])

    def fetch(self, topic: str, starts: Mapping[int, int], count: int) -> list[Fetched]:
        answer = self._call(
            "fetch", topic, starts={str(partition): at for partition, at in starts.items()}, count=count
        )
        return [_fetched(record) for record in answer["records"]]

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        offset: int | None = self._call("offset_at", topic, partition=partition, time_ms=time_ms)["offset"]
        return offset

    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        self._call("create", topic, partitions=partitions, configs=dict(configs or {}), validate_only=validate_only)

    def delete(self, topic: str) -> None:
        self._call("delete", topic)

    def grow(self, topic: str, partitions: int) -> None:
        self._call("grow", topic, partitions=partitions)

    def topics(self) -> dict[str, int]:
        return dict(self._call("topics")["topics"])

    def configs(self, topic: str) -> dict[str, str | None]:
        return dict(self._call("configs", topic)["configs"])

    def set_config(self, topic: str, name: str, value: str | None) -> None:
        self._call("set_config", topic, name=name, value=value)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        return int(self._call("delete_records", topic, partition=partition, before=before)["low_watermark"])

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()
        self._errors.close()


class FranzDriver(ProgramDriver):
    """franz-go."""

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__([str(go_program(HERE / "franz"))], broker)


class JavaDriver(ProgramDriver):
    """The official Java clients."""

    def __init__(self, broker: KafkaBroker) -> None:
        classes = java_classes(HERE / "java" / "Program.java")
        *java, path = java_command(java_packages("kafka"), *SHORT_LIVED)
        super().__init__([*java, f"{classes}:{path}", "Program"], broker)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def _fetched(record: Mapping[str, Any]) -> Fetched:
    return Fetched(
        record["partition"],
        record["offset"],
        _bytes(record["value"]),
        _bytes(record["key"]),
        tuple((header["name"], _bytes(header["value"])) for header in record["headers"]),
        record["timestamp_ms"],
        record["is_append_time"],
    )
