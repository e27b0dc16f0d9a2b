"""A WAL store on a disk while the bucket behind it is away: it fills up to its limit and no further, and empties when
the bucket is back. `llog up` as a process, with a real S3 server that is cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from llog.limits import MIB
from llog.testing.proxy import TcpProxy
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, Minio, S3Server, free_port
from tests.patience import PATIENCE_SECONDS, until
from tests.servers import started
from tests.system.broker_process import LlogProcess

LIMIT_BYTES: Final = 20 * MIB
REQUEST_BYTES: Final = 1_000_000
pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(600)]


def settings_at(tmp_path: Path, bucket: str, s3_port: int) -> dict[str, str]:
    return {
        "LLOG_METADATA_URL": f"lmdb://{tmp_path}/metadata",
        "LLOG_WAL_URL": f"file://{tmp_path}/wal",
        "LLOG_OBJECTS_URL": f"s3://{bucket}/log",
        "LLOG_S3_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}",
        "LLOG_S3_REGION_NAME": "us-east-1",
        "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
        "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        "LLOG_WAL_MAX_BYTES": "20MiB",
        "LLOG_WAL_GRACE_MS": "10s",
        "LLOG_COMPACTOR_MIN_AGE_MS": "0",
        # Only the pressure of a WAL store that fills up starts compaction within the test.
        "LLOG_COMPACTOR_TRIGGER_AGE_MS": "1h",
        "LLOG_REQUEST_TIMEOUT_MS": "3s",
        "LLOG_HTTP_PORT": str(free_port()),
    }


class Cluster:
    def __init__(self, tmp_path: Path, process: LlogProcess, port: str) -> None:
        self._wal, self._process = tmp_path / "wal", process
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS)
        self.accepted = 0

    async def produce(self) -> httpx.Response:
        batch = {"topic": "orders", "partition": 0, "records": ["x" * REQUEST_BYTES]}
        answer = await self.http.post("/produce", json={"topic_partitions": [batch]})
        self.accepted += answer.status_code == 200
        return answer

    async def is_ready(self) -> bool:
        return (await self.http.get("/ready")).status_code == 200

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._wal.rglob("*") if path.is_file())

    def every_deletion_is_audited(self) -> bool:
        """The vacuum may need several passes: it deletes a blob only when the grace of that blob has passed."""
        gone_bytes = self.accepted * REQUEST_BYTES - self.stored_bytes()
        audited: list[int] = [
            line["after"]["bytes"] for line in self.lines("audit") if line["action"] == "vacuum.delete"
        ]
        return sum(audited) >= gone_bytes

    def lines(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._process.output().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event", "").startswith(event)]


@pytest.fixture
def objects() -> Iterator[S3Server]:
    yield from started(Minio)


async def test_with_the_bucket_away_the_wal_store_fills_to_its_limit_and_empties_when_it_is_back(
    tmp_path: Path, objects: S3Server
) -> None:
    async with TcpProxy("127.0.0.1", objects.port) as proxy:
        settings = settings_at(tmp_path, objects.bucket, proxy.port)
        with LlogProcess("up", settings=settings, log=tmp_path / "log") as process:
            await asyncio.to_thread(process.urls, 2)
            cluster = Cluster(tmp_path, process, settings["LLOG_HTTP_PORT"])
            async with cluster.http:
                await fill(cluster, proxy)
                await empty(cluster, proxy)


async def fill(cluster: Cluster, proxy: TcpProxy) -> None:
    assert (await cluster.produce()).status_code == 200
    await proxy.stop()
    answers = [await cluster.produce() for _ in range(60)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} == {503}
    assert all("LLOG_WAL_MAX_BYTES" in answer.json()["error"] for answer in refused)
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert len(refused) >= 60 - LIMIT_BYTES // REQUEST_BYTES, "a limit of 20 MiB takes 20 requests of a megabyte"
    assert cluster.accepted >= 0.75 * LIMIT_BYTES // REQUEST_BYTES, "nothing is refused much below the limit"
    assert cluster.stored_bytes() <= LIMIT_BYTES + 1.1 * REQUEST_BYTES, "one request may pass the limit"
    assert not await cluster.is_ready()
    health = (await cluster.http.get("/health")).json()
    assert health["status"] == "degraded"
    assert any("LLOG_WAL_MAX_BYTES" in reason for reason in health["reasons"])
    wal = (await cluster.http.get("/metrics")).json()["wal"]
    assert (wal["max_bytes"], wal["bytes"] >= 0.75 * LIMIT_BYTES) == (LIMIT_BYTES, True)
    await until(lambda: cluster.lines("the WAL store is three quarters full"), "the compactor to hurry")
    await until(lambda: cluster.lines("the WAL store is full"), "the broker's line")
    await until(lambda: cluster.lines("work fails"), "compaction to begin, and to miss the bucket")


async def empty(cluster: Cluster, proxy: TcpProxy) -> None:
    await proxy.start()
    await until(cluster.is_ready, "compaction and vacuum to make room", pause_seconds=0.2)
    assert cluster.stored_bytes() < LIMIT_BYTES
    assert (await cluster.produce()).status_code == 200
    await until(lambda: len(cluster.lines("the WAL store has room again")) == 1, "the broker's line")
    assert cluster.lines("vacuumed the stores")[0]["blobs_deleted"] > 0
    assert cluster.lines("compacted a log")[0]["bytes"] > 0
    deletions = [line for line in cluster.lines("audit") if line["action"] == "vacuum.delete"]
    assert all(line["principal"].startswith("compactor:") for line in deletions)
    await until(cluster.every_deletion_is_audited, "the audit lines of every byte that left the WAL store")
    wanted = {"topic": "orders", "partition": 0, "fetch_offset": cluster.accepted}
    answer = await cluster.http.post("/consume", json={"topic_partitions": [wanted], "max_bytes": 4 * MIB})
    assert len(answer.json()["results"][0]["records"]) == 1, "every accepted record is there"
