"""Kafka Connect, standalone, with the file connectors: lines of a file go into a topic and out into another file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llog.testing.servers import free_port
from tests.conformance.java import Java, properties
from tests.conformance.outcome import Result
from tests.conformance.packages import maven_packages
from tests.conformance.suite import Claims, Suite, Target

VERSION: Final = "4.3.1"
MAIN: Final = "org.apache.kafka.connect.cli.ConnectStandalone"
LINES: Final = 5_000
ARRIVE_SECONDS_MAX: Final = 90


def run(target: Target) -> list[Result]:
    packages = maven_packages("kafka-apps")
    claims, directory = Claims(), target.directory
    source, sink = directory / "source.txt", directory / "sink.txt"
    files = _configuration(target, packages, source, sink)
    java = Java(packages, directory)

    source.write_text(_lines(0, LINES))
    with claims.claim("the sink's file has the source's lines, in order"), java.service(MAIN, *files) as connect:
        connect.until("the lines have arrived", lambda: _size(sink) >= source.stat().st_size, ARRIVE_SECONDS_MAX)
        assert sink.read_text() == source.read_text(), "the files differ"
    with open(source, "a") as file:
        file.write(_lines(LINES, 2 * LINES))
    with (
        claims.claim("after a restart both connectors continue where they stopped: each line once"),
        java.service(MAIN, *files) as connect,
    ):
        connect.until("the lines have arrived", lambda: _size(sink) >= source.stat().st_size, ARRIVE_SECONDS_MAX)
        assert sink.read_text() == source.read_text(), "the files differ"
    return claims.results


def _configuration(target: Target, packages: Path, source: Path, sink: Path) -> list[Path]:
    directory = target.directory
    text = "org.apache.kafka.connect.storage.StringConverter"
    worker = properties(
        directory / "worker.properties",
        [
            ("bootstrap.servers", target.address),
            ("key.converter", text),
            ("value.converter", text),
            ("offset.storage.file.filename", directory / "offsets"),
            ("offset.flush.interval.ms", 1000),
            ("listeners", f"http://127.0.0.1:{free_port()}"),
            ("plugin.discovery", "only_scan"),
            ("consumer.auto.offset.reset", "earliest"),
        ],
    )
    file = "org.apache.kafka.connect.file"
    names = {"tasks.max": 1, "topic": "connect-lines"}
    from_file = {"name": "from-file", "connector.class": f"{file}.FileStreamSourceConnector", "file": source}
    to_file = {"name": "to-file", "connector.class": f"{file}.FileStreamSinkConnector", "file": sink}
    return [
        worker,
        properties(directory / "source.properties", list((from_file | names).items())),
        properties(directory / "sink.properties", [*to_file.items(), ("tasks.max", 1), ("topics", "connect-lines")]),
    ]


# Only ASCII: the file source counts characters where it later skips bytes.
def _lines(first: int, end: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, end))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


SUITE: Final = Suite(
    "connect", "Kafka Connect, standalone", VERSION, run, note=f"file source and sink, {2 * LINES:,} lines, a restart"
)
