"""Kafka's message definitions, read from a named version of the kafka-clients package.

Maven fetches the package from the repository that its settings name. The definitions stay outside the repository.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

KAFKA_CLIENTS_VERSION: Final = "4.3.1"
FETCH_SECONDS_MAX: Final = 300
ROOT: Final = Path(__file__).parents[2]
DIRECTORY: Final = ROOT / "build/kafka-clients"

Definition = dict[str, Any]


class JarUnavailable(Exception):
    """The package is not at hand and could not be fetched; the message says why."""


def fetch() -> Path:
    """The path of the package, fetched unless it was before."""
    jar = DIRECTORY / f"kafka-clients-{KAFKA_CLIENTS_VERSION}.jar"
    if jar.exists():
        return jar
    maven = shutil.which("mvn")
    if maven is None:
        raise JarUnavailable("Maven (mvn) is not installed")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as scratch:  # two tests may fetch it at the same time
        _copy(maven, scratch)
        (Path(scratch) / jar.name).replace(jar)
    return jar


def _copy(maven: str, directory: str) -> None:
    artifact = f"-Dartifact=org.apache.kafka:kafka-clients:{KAFKA_CLIENTS_VERSION}"
    command = [maven, "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={directory}"]
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise JarUnavailable(f"Maven did not fetch it within {FETCH_SECONDS_MAX} s") from None
    if done.returncode:
        raise JarUnavailable(f"Maven could not fetch it: {done.stdout.strip()[-500:]}")


def definitions(jar: Path) -> list[Definition]:
    """All message definitions; they are JSON with comment lines."""
    with zipfile.ZipFile(jar) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("common/message/"))
        return [_definition(archive.read(name).decode()) for name in names if name.endswith(".json")]


def _definition(text: str) -> Definition:
    parsed = json.loads("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//")))
    assert isinstance(parsed, dict)
    return parsed
