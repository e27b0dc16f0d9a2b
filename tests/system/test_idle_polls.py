"""A thousand consumers that wait for nothing cost nothing but the refresh they share.

Counted by the broker's own meters of its stores, read before and after from `/metrics`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from llog.limits import GROUP_SLOTS, MIB
from tests.benchmarks.http_load import Client, post, produce_request
from tests.system.broker_process import LlogProcess

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
POLLS: Final = 1_000
SECONDS: Final = 10.0 if SOAK else 4.0
PARTITIONS: Final = 16
REFRESH_MS: Final = 500
GROWTH_BYTES_MAX: Final = 100_000_000
GET_METRICS: Final = b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n"
# A broker writes nothing for waiting consumers; what it reads for them are control records.
READS: Final = ("get", "get_many")
pytestmark = [pytest.mark.slow, pytest.mark.serial]


def counted(operations: Mapping[str, Mapping[str, Any]], unit: str) -> dict[str, int]:
    return {name: int(operation[unit]) for name, operation in operations.items()}


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


async def test_idle_long_polls_touch_no_object_and_share_one_refresh(tmp_path: Path) -> None:
    settings = {"LLOG_DATA_DIR": str(tmp_path / "data"), "LLOG_TAIL_REFRESH_MS": f"{REFRESH_MS}ms"}
    with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
        asking = await Client([broker.url], 1).open()
        await asking.send_all([produce_request("orders", range(PARTITIONS), PARTITIONS, 100, seed=1)])
        wait_ms = round(SECONDS * 1_000)
        polls = [_poll(number % PARTITIONS, 2, wait_ms) for number in range(POLLS)]
        # Each log was looked at once before anything is counted.
        await asking.send_all([_poll(partition, 2, 1) for partition in range(PARTITIONS)])
        process = psutil.Process(broker.child.pid)
        before, idle_rss = await asking.ask(GET_METRICS), process.memory_info().rss
        clients = await Client([broker.url], POLLS).open()
        began = time.monotonic()
        answers = [connection.ask(poll) for connection, poll in zip(clients.connections, polls, strict=True)]
        most_rss = idle_rss
        while time.monotonic() - began < SECONDS * 0.9:
            await asyncio.sleep(0.1)
            most_rss = max(most_rss, process.memory_info().rss)
        waiting = sum(not answer.done() for answer in answers)
        after = await asking.ask(GET_METRICS)
        took_s = time.monotonic() - began
        await asyncio.gather(*answers)
        most_rss = max(most_rss, process.memory_info().rss)
        clients.close()
        asking.close()
    assert waiting == POLLS, "these were no long polls"
    objects = difference(counted(after["s3"]["operations"], "calls"), counted(before["s3"]["operations"], "calls"))
    assert objects == {}
    metadata_before, metadata_after = (page["metadata"]["operations"] for page in (before, after))
    read = difference(counted(metadata_after, "items"), counted(metadata_before, "items"))
    # The broker's own registration once a second and the claims on slots of groups twice, however many polls there are.
    assert read.pop("scan", 0) <= (took_s + 2) * (1 + 2 * GROUP_SLOTS), read
    assert set(read) <= set(READS), read
    # Every log is read about once per refresh, however many wait on it; the first and the last may be cut.
    allowed = PARTITIONS * (took_s * 1_000 / (REFRESH_MS * 7 / 8) + 2)
    assert sum(read.values()) <= allowed, (read, allowed)
    growth = most_rss - idle_rss
    print(f"{POLLS} polls, {took_s:.1f} s: {read} records read, {allowed:.0f} allowed, {growth / MIB:.1f} MiB more")
    assert growth < GROWTH_BYTES_MAX, f"{growth} bytes for {POLLS} polls"


def _poll(partition: int, offset: int, max_wait_ms: int) -> bytes:
    log = {"topic": "orders", "partition": partition, "fetch_offset": offset}
    return post("/consume", {"topic_partitions": [log], "max_wait_ms": max_wait_ms})
