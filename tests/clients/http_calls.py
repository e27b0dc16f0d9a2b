"""A running broker as a client sees it, and the calls that many claims are made of."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.patience import PATIENCE_SECONDS
from tests.system.broker_process import LlogProcess

Json = dict[str, Any]


class Running(NamedTuple):
    """A process of ours, the directory of its stores, and a client of it."""

    process: LlogProcess
    directory: Path
    http: httpx.Client
    started_between_ms: tuple[int, int]

    @property
    def url(self) -> str:
        return self.process.url

    def get(self, path: str) -> Json:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def metric(self, path: str) -> float:
        """The number at a dotted path of the JSON page; 0 where nothing was counted yet."""
        found: Any = self.get("/metrics")
        for name in path.split("."):
            found = found.get(name, 0) if isinstance(found, dict) else 0
        assert isinstance(found, int | float), path
        return found


@contextmanager
def running(*arguments: str, directory: Path, name: str, **settings: str) -> Iterator[Running]:
    """`llog …` on stores in the directory, until the block ends."""
    answer = {"LLOG_DATA_DIR": str(directory / "data")} | {key.upper(): text for key, text in settings.items()}
    before_ms = time.time_ns() // 1_000_000
    with (
        LlogProcess(*arguments, settings=answer, log=directory / f"log-{name}") as process,
        httpx.Client(base_url=process.url, timeout=PATIENCE_SECONDS) as http,
    ):
        yield Running(process, directory, http, (before_ms, time.time_ns() // 1_000_000))


def unused_topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def a_batch(topic: str, partition: int, *records: object, **claim: int) -> Json:
    return {"topic": topic, "partition": partition, "records": list(records), **claim}


def wanted(topic: str, partition: int, fetch_offset: int, **more: int) -> Json:
    return {"topic": topic, "partition": partition, "fetch_offset": fetch_offset, **more}


def post_produce(http: httpx.Client, *batches: Mapping[str, Any]) -> httpx.Response:
    return http.post("/produce", json={"topic_partitions": list(batches)})


def produced(http: httpx.Client, *batches: Mapping[str, Any]) -> list[Json]:
    """The results; every batch must have landed."""
    answer = post_produce(http, *batches)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["results"])


def post_consume(http: httpx.Client, *partitions: Mapping[str, Any], **controls: int) -> httpx.Response:
    return http.post("/consume", json={"topic_partitions": list(partitions), **controls})


def consumed(http: httpx.Client, *partitions: Mapping[str, Any], **controls: int) -> list[Json]:
    answer = post_consume(http, *partitions, **controls)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["results"])


def payloads(http: httpx.Client, topic: str, partition: int = 0, fetch_offset: int = 1) -> list[Any]:
    """All from the offset on; an answer may hold less than there is."""
    found: list[Any] = []
    while True:
        [result] = consumed(http, wanted(topic, partition, fetch_offset))
        assert result["ok"], result
        found += [record["payload"] for record in result["records"]]
        if result["next_fetch_offset"] > result["high_watermark"]:
            return found
        assert result["next_fetch_offset"] > fetch_offset, result
        fetch_offset = result["next_fetch_offset"]


def refused_field(answer: httpx.Response, status: int = 400) -> str:
    """The field that a refusal names; every refusal says what, and under which request id."""
    body = answer.json()
    assert answer.status_code == status, answer.text
    assert body["error_type"]
    assert body["error"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return str(body.get("field", ""))


def events_of(lines: Iterator[str], count: int) -> Sequence[Json]:
    """The first events of a stream, by field."""
    events: list[Json] = []
    event: Json = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if not line:
            if event:
                events.append(event)
            if len(events) == count:
                return events
            event = {}
            continue
        field, _, value = line.partition(": ")
        event[field] = value
    return events
