"""Kafka's own classes judge our codec: they read random messages of every version and write the same bytes."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from llog.kafka.codec import encode_bytes
from llog.kafka.codec.table import messages
from tests.kafka_schemas import jar
from tests.unit.kafka.codec.random_messages import every_version, random_message

ECHO = Path(__file__).with_name("Echo.java")
MESSAGES_PER_VERSION = 4
JAVA_SECONDS_MAX = 300


@pytest.mark.slow
def test_kafka_reads_our_messages_and_writes_the_same_bytes() -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("Java is not installed")
    try:
        package = jar.fetch()
    except jar.JarUnavailable as reason:
        pytest.skip(f"kafka-clients {jar.KAFKA_CLIENTS_VERSION}: {reason}")
    frames: list[tuple[str, int, bytes]] = []
    for message, version in every_version():
        rng = random.Random(f"java {message.name} {version}")
        values = [random_message(rng, message, version) for _ in range(MESSAGES_PER_VERSION)]
        frames += [(message.name, version, encode_bytes(value, version)) for value in values]
    done = subprocess.run(
        [java, "-cp", str(package), str(ECHO)],
        input=struct.pack(">i", len(frames)) + b"".join(_work(*one) for one in frames),
        capture_output=True,
        timeout=JAVA_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    position = 0
    for name, version, frame in frames:
        (size,) = struct.unpack_from(">i", done.stdout, position)
        echo = done.stdout[position + 4 : position + 4 + abs(size)]
        position += 4 + abs(size)
        assert size >= 0, f"{name} v{version}: {echo.decode()}"
        assert echo == frame, f"{name} v{version}"
    assert position == len(done.stdout)


def _work(name: str, version: int, frame: bytes) -> bytes:
    key = messages()[name].key or 0
    return struct.pack(">H", len(name)) + name.encode() + struct.pack(">hhi", key, version, len(frame)) + frame
