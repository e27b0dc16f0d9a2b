"""A WAL store that is full refuses records; it accepts them again when it has room."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import llog.testing
from llog.broker import wal_usage
from llog.broker.wal_usage import WalUsage
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.wrappers import MeteredObjectStore
from tests.patience import PATIENCE_SECONDS, wait_until

MIB = 1 << 20


async def test_uploads_count_at_once_and_deletions_with_the_next_measurement(caplog: pytest.LogCaptureFixture) -> None:
    store = MeteredObjectStore(MemoryObjectStore("memory://wal"))
    await store.put("wal/before", [b"x" * 400])
    usage = WalUsage(store, "wal/", 1_000)
    await usage.measure()
    assert (usage.used_bytes, usage.refusal()) == (400, "")
    await store.put("wal/more", [b"x" * 600])
    assert usage.used_bytes == 1_000
    assert "LLOG_WAL_MAX_BYTES" in usage.refusal()
    with caplog.at_level(logging.INFO, "llog.broker"):
        await usage.measure()
        assert usage.refusal()
        await store.delete("wal/before")
        assert usage.refusal()
        await usage.measure()
    assert (usage.used_bytes, usage.refusal()) == (600, "")
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the WAL store is full",
        "the WAL store has room again",
    ]


def test_a_broker_refuses_records_at_the_limit_and_accepts_them_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_usage, "WAL_MEASURE_LOCAL_MS", 50)
    wal = tmp_path / "wal"
    stores = {"wal_url": f"file://{wal}", "objects_url": f"file://{tmp_path}/far", "wal_max_bytes": MIB}
    body = {"topic_partitions": [{"topic": "orders", "partition": 0, "records": ["x" * 100_000]}]}
    with (
        llog.testing.broker(tmp_path, **stores) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE_SECONDS) as http,
    ):
        answers = [http.post("/produce", json=body) for _ in range(15)]
        accepted = [answer for answer in answers if answer.status_code == 200]
        assert 5 <= len(accepted) <= 11, "the limit has room for ten"
        refused = answers[-1]
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "LLOG_WAL_MAX_BYTES" in refused.json()["error"]
        health = http.get("/health").json()
        assert health["status"] == "degraded"
        assert any("LLOG_WAL_MAX_BYTES" in reason for reason in health["reasons"])
        assert http.get("/ready").status_code == 503
        metrics = http.get("/metrics/prometheus").text
        assert "llog_wal_max_bytes 1.048576e+06" in metrics
        for blob in sorted(path for path in wal.rglob("*") if path.is_file())[:5]:
            blob.unlink()
        wait_until(lambda: http.get("/ready").status_code == 200, "room again")
        assert http.post("/produce", json=body).status_code == 200


def test_many_requests_at_the_same_moment_do_not_pass_the_limit(tmp_path: Path) -> None:
    stores = {"wal_url": f"file://{tmp_path}/wal", "objects_url": f"file://{tmp_path}/far", "wal_max_bytes": MIB}
    body = {"topic_partitions": [{"topic": "orders", "partition": 0, "records": ["x" * 50_000]}]}
    with (
        llog.testing.broker(tmp_path, batch_max_delay_ms=200, **stores) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE_SECONDS, limits=httpx.Limits(max_connections=64)) as http,
        ThreadPoolExecutor(64) as threads,
    ):
        answers = list(threads.map(lambda _: http.post("/produce", json=body).status_code, range(192)))
        assert set(answers) == {200, 503}
        assert answers.count(200) >= 5
    stored = sum(path.stat().st_size for path in (tmp_path / "wal").rglob("*") if path.is_file())
    assert stored <= MIB + 60_000, "one request may pass the limit"
