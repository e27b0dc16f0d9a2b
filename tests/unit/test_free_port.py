"""Ports for servers under test: found free, and given once, whoever asks at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llog.testing import servers

PROGRAM = """
import sys
from llog.testing import servers
servers.PORT_FIRST, servers.PORT_LAST = 31_000, 31_400
print(*[servers.free_port() for _ in range(60)], flush=True)
sys.stdin.read()  # as long as it lives they are its own
"""


def test_no_two_processes_are_given_the_same_port(tmp_path: Path) -> None:
    given: list[str] = []
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"TMPDIR": str(tmp_path)},
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        given += process.stdout.readline().split()
    for process in processes:
        process.communicate()
    assert len(given) == len(set(given)) == 180


def test_the_port_that_minio_refuses_is_never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = servers.MINIO_CONSOLE_PORT
    monkeypatch.setattr(servers, "PORT_FIRST", first)
    monkeypatch.setattr(servers, "PORT_LAST", first + 20)
    assert first not in {servers.free_port() for _ in range(10)}
