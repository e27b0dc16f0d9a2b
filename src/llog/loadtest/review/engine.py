"""Prometheus and Grafana from a container engine, by `deploy/review.yaml`, where their programs are not installed.

An engine runs containers for its clients, so they do not carry the mark of the run and do not end with it: the review
ends them by the name of its project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

ENGINES: Final = ("docker", "podman", "nerdctl")
ENGINE_S_MAX: Final = 20.0
END_S_MAX: Final = 60.0


class Engine(msgspec.Struct, frozen=True):
    """An engine that answers and knows `compose`."""

    program: str
    compose_file: Path
    project: str

    def command(self, *arguments: str) -> list[str]:
        return [self.program, "compose", "-f", str(self.compose_file), "-p", self.project, *arguments]

    def up(self, service: str) -> list[str]:
        return self.command("up", "--no-color", "--abort-on-container-exit", service)

    def end(self, environment: Mapping[str, str]) -> None:
        down = self.command("down", "--volumes", "--remove-orphans", "--timeout", "5")
        subprocess.run(down, env=dict(environment), capture_output=True, timeout=END_S_MAX, check=False)


def find_engine(compose_file: Path, run_id: str, engines: Sequence[str] = ENGINES) -> Engine | None:
    """The first whose daemon answers and whose client has `compose`."""
    for name in engines:
        program = shutil.which(name)
        if program and _answers(program, "info") and _answers(program, "compose", "version"):
            return Engine(program, compose_file, f"llog-review-{run_id.lower()}")
    return None


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=ENGINE_S_MAX, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def variables(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """What `deploy/review.yaml` asks for."""
    return {
        "LLOG_REVIEW_DIR": str(folder),
        "LLOG_REVIEW_USER": f"{os.getuid()}:{os.getgid()}",
        **{f"LLOG_REVIEW_{name.upper()}_PORT": str(port) for name, port in ports.items()},
    }
