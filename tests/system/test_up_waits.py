"""`llog up` while a store is unreachable: it waits, reports the store, and starts by itself; SIGTERM stops it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from llog.testing.servers import OxiaServer, ServerUnavailable, free_port, port_open
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.system.broker_process import LlogProcess, batch

pytestmark = pytest.mark.slow

STACKS = pytest.mark.parametrize("arguments", [(), ("--brokers", "2")], ids=["one process", "two brokers"])


def two_ports() -> int:
    """The first of two neighbouring free ports."""
    while port_open((port := free_port()) + 1):
        pass
    return port


def until(url: str, status: str, stack: LlogProcess) -> dict[str, Any]:
    """The health page, once it says so; `/ready` must agree."""

    def page_with_status() -> dict[str, Any] | None:
        assert stack.child.poll() is None, stack.output()
        try:
            health = httpx.get(f"{url}/health", timeout=5)
            ready = httpx.get(f"{url}/ready", timeout=5)
        except httpx.TransportError:  # it does not listen yet, or just changes over from starting
            return None
        assert health.status_code == 200
        if not health.json()["status"] == ready.json()["status"] == status:
            return None
        assert ready.status_code == (200 if status == "ok" else 503)
        return dict(health.json())

    page: dict[str, Any] = wait_until(page_with_status, f"status {status}", pause_seconds=0.1)
    return page


@STACKS
def test_a_stack_stops_on_sigterm_while_its_object_store_is_away(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    port = two_ports()
    settings = {
        "LLOG_DATA_DIR": str(tmp_path / "data"),
        "LLOG_OBJECTS_URL": "s3://bucket/log",
        "LLOG_S3_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "LLOG_S3_REGION_NAME": "us-east-1",
        "LLOG_S3_ACCESS_KEY_ID": "key",
        "LLOG_S3_SECRET_ACCESS_KEY": "secret",
        "LLOG_HTTP_PORT": str(port),
    }
    with LlogProcess("up", *arguments, settings=settings, log=tmp_path / "log") as stack:
        page = until(f"http://127.0.0.1:{port}", "starting", stack)
        assert page["reasons"], page
        refused = httpx.post(f"http://127.0.0.1:{port}/produce", json=batch("orders", 0, ["no"]))
        assert (refused.status_code, refused.json()["error_type"]) == (503, "RequestOverload")
        assert stack.terminate() == 0, stack.output()
    assert "Traceback" not in stack.output()


@pytest.mark.server
def test_a_compactor_of_its_own_waits_for_its_metadata_store_too(tmp_path: Path) -> None:
    try:
        oxia = OxiaServer(sync=False)
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    settings = {
        "LLOG_METADATA_URL": f"oxia://{oxia.address}",
        "LLOG_OBJECTS_URL": f"file://{tmp_path}/objects",
        "LLOG_REQUEST_TIMEOUT_MS": "3s",
    }
    with LlogProcess("compactor", settings=settings, log=tmp_path / "first") as given_up:
        given_up.wait(lambda: bool(waiting(given_up)), "say that it waits")
        assert given_up.terminate() == 0, given_up.output()
    with LlogProcess("compactor", settings=settings, log=tmp_path / "second") as service:
        service.wait(lambda: bool(waiting(service)), "say that it waits")
        with oxia:
            assert httpx.get(f"{service.url}/health").status_code == 200
            assert service.terminate() == 0, service.output()


@pytest.mark.server
@STACKS
def test_a_stack_started_before_its_metadata_store_begins_when_that_is_there(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    try:
        oxia = OxiaServer(sync=False)
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    port = two_ports()
    url = f"http://127.0.0.1:{port}"
    settings = {
        "LLOG_METADATA_URL": f"oxia://{oxia.address}",
        "LLOG_OBJECTS_URL": f"file://{tmp_path}/objects",
        "LLOG_REQUEST_TIMEOUT_MS": "3s",
        "LLOG_HTTP_PORT": str(port),
    }
    with LlogProcess("up", *arguments, settings=settings, log=tmp_path / "log") as stack:
        until(url, "starting", stack)
        # By their own words, each of them waits: the brokers, and the compactor.
        stack.wait(
            lambda: all(f'"llog.{who}"' in waiting(stack) for who in ("broker", "compactor")), "say that it waits"
        )
        with oxia:
            until(url, "ok", stack)
            landed = httpx.post(f"{url}/produce", json=batch("orders", 0, ["alpha"]), timeout=PATIENCE_SECONDS)
            assert landed.status_code == 200, landed.text
            stack.wait(lambda: "compactor at http" in stack.output(), "run a compactor")
            assert stack.terminate() == 0, stack.output()


def waiting(stack: LlogProcess) -> str:
    return "\n".join(line for line in stack.output().splitlines() if "waiting for a store" in line)
