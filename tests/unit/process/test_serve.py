"""A broker process, from the first moment on."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from llog.http.json import plain_scan
from llog.process import serve, starting
from llog.settings import Settings
from llog.testing.servers import free_port
from tests.patience import PATIENCE_SECONDS, until


async def status_of(url: str) -> str:
    """The status, once the address answers."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as http:

        async def ask() -> str:
            try:
                return str((await http.get(f"{url}/health")).json()["status"])
            except httpx.TransportError:
                return ""

        return str(await until(ask, "an answer from /health"))


async def test_health_says_starting_until_the_kernels_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first start takes seconds to compile them; a supervisor would take silence for a dead process."""
    loading, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        loading.set()
        go_on.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(plain_scan, "warm_up", slowly)
    monkeypatch.setattr(starting, "STARTING_SILENCE_MS", 1)
    stores = {
        "metadata_url": "memory://serve",
        "objects_url": "memory://serve",
        "http_port": free_port(),
        "kafka_port": "",
    }
    settings, stop = Settings.from_env({}, **stores), asyncio.Event()
    serving = asyncio.create_task(serve.serve(settings, stop, patient=True))
    try:
        assert await asyncio.to_thread(loading.wait, PATIENCE_SECONDS)
        url = f"http://127.0.0.1:{settings.http_port}"
        assert await status_of(url) == "starting"
        go_on.set()

        async def is_ok() -> bool:
            return await status_of(url) == "ok"

        await until(is_ok, "status ok")
    finally:
        go_on.set()
        stop.set()
        await serving
