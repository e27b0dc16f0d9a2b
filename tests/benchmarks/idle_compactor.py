"""What `llog compactor` costs beside idle logs: `python -m tests.benchmarks.idle_compactor lmdb --logs 10 1000`.

For each number of logs: create them, append to each of them, let the service compact them, wait until it is at rest,
and count for a while. The service is a real process with its default settings, except that bytes are compacted at once
and the vacuum grace is short, so that the wait is. Counted are its own meters of its stores (calls, and keys read or
written), its processor time, and for LMDB the transactions of the environment, which include what no meter sees, such
as renewed leases. Figures are per hour.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import lmdb
import psutil

from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.settings import Settings
from llog.testing.servers import OxiaServer, PostgresServer
from llog.wiring import Use, opened_log
from tests.system.broker_process import LlogProcess

TOPIC_PARTITIONS: Final = 10
APPEND_LOGS: Final = 500
# At rest is a service that hardly called a store for this long: longer than the time within which it looks again at a
# log that changed.
REST_SECONDS: Final = 320.0
REST_CALLS_MAX: Final = 10
REST_WAIT_SECONDS_MAX: Final = 3_600.0
READS: Final = ("get", "get_many", "ceiling", "scan", "scan_tree")
WRITES: Final = ("put", "delete", "write")


class Counted(NamedTuple):
    at: float
    calls: int
    keys_read: int
    keys_written: int
    object_requests: int
    cpu_seconds: float
    transactions: int
    lagging: int
    by_operation: Mapping[str, int]
    keys_by_operation: Mapping[str, int]
    objects_by_operation: Mapping[str, int]


class IdleCost(NamedTuple):
    """Per hour."""

    store: str
    logs: int
    seconds: float
    calls: float
    keys_read: float
    keys_written: float
    object_requests: float
    cpu_percent: float
    transactions: float
    by_operation: Mapping[str, int]
    """Calls during the measurement, not per hour."""
    objects_by_operation: Mapping[str, int]
    """Object requests during the measurement, not per hour."""


# -- the cluster -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stores(kind: str, directory: Path, grace: str) -> Iterator[dict[str, str]]:
    """The settings of a process that uses these stores."""
    settings = {
        "LLOG_OBJECTS_URL": f"file://{directory}/objects",
        "LLOG_COMPACTOR_MIN_AGE_MS": "0",
        "LLOG_COMPACTOR_TRIGGER_AGE_MS": "1s",
        "LLOG_VACUUM_GRACE_MS": grace,
    }
    if kind == "lmdb":
        yield settings | {"LLOG_METADATA_URL": f"lmdb://{directory}/metadata"}
    elif kind == "oxia":
        with OxiaServer(shards=4) as oxia:
            yield settings | {"LLOG_METADATA_URL": f"oxia://{oxia.address}"}
    else:
        with PostgresServer() as postgres:
            yield settings | {"LLOG_METADATA_URL": postgres.url}


async def seed(settings: Mapping[str, str], count: int) -> list[Log]:
    """Topics with TOPIC_PARTITIONS logs each, and one append to each log."""
    topics = -(-count // TOPIC_PARTITIONS)
    logs = [Log(f"idle-{number // TOPIC_PARTITIONS:05d}", number % TOPIC_PARTITIONS) for number in range(count)]
    async with opened_log(Settings.from_env(dict(settings)), blobs=Use.PUT, segments=Use.PUT) as opened:
        context = opened.context
        for number in range(topics):
            partitions = min(TOPIC_PARTITIONS, count - number * TOPIC_PARTITIONS)
            await create_topic(context, f"idle-{number:05d}", partitions=partitions)
        appender = Appender(context)
        for start in range(0, count, APPEND_LOGS):
            await append(appender, logs[start : start + APPEND_LOGS], context.now_ms())
        await appender.close()
    return logs


async def append(appender: Appender, logs: Sequence[Log], now_ms: int) -> None:
    body = [encode_records([b"x" * 100], timestamps_ms=now_ms)]
    outcomes = await appender.append([EncodedGroup(log, 1, "kafka-v2", body, now_ms) for log in logs])
    assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes


# -- counting ----------------------------------------------------------------------------------------------------------


def count(compactor: LlogProcess, environment: lmdb.Environment | None) -> Counted:
    page: dict[str, Any] = httpx.get(f"{compactor.url}/metrics", timeout=60).json()
    operations = page["metadata"]["operations"]
    times = psutil.Process(compactor.child.pid).cpu_times()
    return Counted(
        at=time.monotonic(),
        calls=sum(int(one["calls"]) for one in operations.values()),
        keys_read=sum(int(operations[name]["items"]) for name in READS if name in operations),
        keys_written=sum(int(operations[name]["items"]) for name in WRITES if name in operations),
        object_requests=sum(int(one["calls"]) for one in page["s3"]["operations"].values()),
        cpu_seconds=times.user + times.system,
        transactions=0 if environment is None else int(environment.info()["last_txnid"]),
        lagging=int(page["compaction"]["lag"]["logs"]),
        by_operation={name: int(one["calls"]) for name, one in operations.items()},
        keys_by_operation={name: int(one["items"]) for name, one in operations.items()},
        objects_by_operation={name: int(one["calls"]) for name, one in page["s3"]["operations"].items()},
    )


def segments_in(objects: Path) -> int:
    return sum(1 for _ in objects.glob("*/*/partitions/*/data/compacted/*"))


def wait_for_rest(compactor: LlogProcess, environment: lmdb.Environment | None) -> bool:
    """False: the service did not come to rest in time, so it is measured as it is."""
    began, then = time.monotonic(), count(compactor, environment)
    while time.monotonic() - began < REST_WAIT_SECONDS_MAX:
        time.sleep(REST_SECONDS)
        now = count(compactor, environment)
        if not now.lagging and now.object_requests == then.object_requests and now.calls - then.calls <= REST_CALLS_MAX:
            return True
        then = now
    return False


def cost(store: str, logs: int, before: Counted, after: Counted) -> IdleCost:
    seconds = after.at - before.at
    hourly = 3_600 / seconds
    return IdleCost(
        store,
        logs,
        round(seconds, 1),
        round((after.calls - before.calls) * hourly),
        round((after.keys_read - before.keys_read) * hourly),
        round((after.keys_written - before.keys_written) * hourly),
        round((after.object_requests - before.object_requests) * hourly),
        round((after.cpu_seconds - before.cpu_seconds) / seconds * 100, 2),
        round((after.transactions - before.transactions) * hourly),
        _moved(before.by_operation, after.by_operation),
        _moved(before.objects_by_operation, after.objects_by_operation),
    )


def _moved(before: Mapping[str, int], after: Mapping[str, int]) -> Mapping[str, int]:
    return {name: calls - before.get(name, 0) for name, calls in after.items() if calls != before.get(name, 0)}


def measure(
    kind: str, logs: int, *, seconds: float, warm_up_seconds: float, grace: str = "10s", rest: bool = True
) -> IdleCost:
    with tempfile.TemporaryDirectory(prefix="llog-idle-") as place, stores(kind, Path(place), grace) as settings:
        asyncio.run(seed(settings, logs))
        with LlogProcess("compactor", settings=settings, log=Path(place) / "log") as compactor:
            began = time.monotonic()
            environment = None
            if kind == "lmdb":
                environment = lmdb.open(f"{place}/metadata", readonly=True, lock=False)
            objects = Path(place) / "objects"
            compactor.wait(lambda: segments_in(objects) >= logs, "compact every log", seconds=REST_WAIT_SECONDS_MAX)
            print(f"{kind}, {logs} logs: compacted after {time.monotonic() - began:.0f} s", flush=True)
            time.sleep(max(0.0, warm_up_seconds - (time.monotonic() - began)))
            if rest:
                quiet = wait_for_rest(compactor, environment)
                print(f"{kind}, {logs} logs: at rest after {time.monotonic() - began:.0f} s: {quiet}", flush=True)
            before = count(compactor, environment)
            time.sleep(seconds)
            after = count(compactor, environment)
    return cost(kind, logs, before, after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", choices=["lmdb", "oxia", "postgres"])
    parser.add_argument("--logs", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warm-up", type=float, default=0.0)
    parser.add_argument("--grace", default="10s", help="LLOG_VACUUM_GRACE_MS of the service")
    parser.add_argument("--no-rest", action="store_true", help="measure after the warm-up, at rest or not")
    chosen = parser.parse_args()
    for logs in chosen.logs:
        measured = measure(
            chosen.store,
            logs,
            seconds=chosen.seconds,
            warm_up_seconds=chosen.warm_up,
            grace=chosen.grace,
            rest=not chosen.no_rest,
        )
        print(json.dumps(measured._asdict()), flush=True)


if __name__ == "__main__":
    main()
