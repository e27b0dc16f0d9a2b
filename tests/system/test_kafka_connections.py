"""Idle Kafka connections cost kilobytes: ten thousand of them fit into 150 MB.

Every client has asked for the versions of the broker and fetched nothing since, as a pool of clients at night.
"""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import Final

import psutil
import pytest

from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.limits import MIB
from llog.testing.servers import free_port
from tests.kafka_client import frame_of
from tests.patience import PATIENCE_SECONDS
from tests.system.broker_process import LlogProcess

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
CONNECTIONS: Final = 10_000 if SOAK else 1_500
CONNECTION_BYTES_MAX: Final = 150_000_000 // 10_000
FILES_BESIDE: Final = 200
pytestmark = [pytest.mark.slow, pytest.mark.serial]


def allow_files(count: int) -> None:
    """For this process and its children; skips where the system does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"the system allows {hard} open files, {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


def asked(port: int, frame: bytes) -> socket.socket:
    """A connection that sent a request and got the beginning of its answer."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    connection.sendall(frame)
    assert len(connection.recv(4)) == 4
    return connection


def test_idle_connections_cost_kilobytes(tmp_path: Path) -> None:
    allow_files(CONNECTIONS + FILES_BESIDE)
    port = free_port()
    settings = {"LLOG_DATA_DIR": str(tmp_path / "data"), "LLOG_KAFKA_PORT": str(port)}
    frame = b"".join(frame_of(ApiVersionsRequest("test", "1.0"), 3))
    connections: list[socket.socket] = []
    with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
        assert broker.url
        try:
            connections += [asked(port, frame) for _ in range(10)]
            process = psutil.Process(broker.child.pid)
            before = process.memory_info().rss
            connections += [asked(port, frame) for _ in range(CONNECTIONS - 10)]
            growth = process.memory_info().rss - before
            assert len([one for one in process.net_connections("tcp") if one.status == "ESTABLISHED"]) >= CONNECTIONS
        finally:
            for connection in connections:
                connection.close()
    print(f"{CONNECTIONS} connections: {growth / MIB:.1f} MiB, {growth // CONNECTIONS} bytes each")
    assert growth < CONNECTIONS * CONNECTION_BYTES_MAX
