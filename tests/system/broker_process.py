"""`llog` as a process of its own, and HTTP clients that remember what they were told."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import httpx

from tests.patience import PATIENCE_SECONDS, until, wait_until

_LISTENS: Final = re.compile(r"^(?:broker \S+ \(\w+\)|compactor) at (https?://[^/\s]+)", re.MULTILINE)
_KAFKA: Final = re.compile(r"^  Kafka: 127\.0\.0\.1:(\d+), node \d+$", re.MULTILINE)


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Only the settings given, whatever the shell says; and no Spark, which would take the machine for itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LLOG_", "AWS_"))}
    ours = {"LLOG_HTTP_PORT": "0", "LLOG_KAFKA_PORT": "0", "LLOG_COMPACTOR_PORT": "0", "LLOG_COMPACTOR_SPARK": "false"}
    return inherited | ours | dict(settings)


def run_llog(
    *arguments: str, settings: Mapping[str, str], standard_input: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llog", *arguments],
        env=environment(settings),
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


class LlogProcess:
    """`with LlogProcess("broker", settings=…, log=…) as broker:` is started there, and never outlives it."""

    def __init__(self, *arguments: str, settings: Mapping[str, str], log: Path, module: str = "llog") -> None:
        self.log = log
        with open(log, "wb") as output:
            self.child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def urls(self, count: int = 1) -> list[str]:
        """Where it listens, when it says so for the `count`-th time."""
        self.wait(lambda: self.child.poll() is not None or len(self._listening()) >= count, "listen")
        assert self.child.poll() is None, f"it ended: {self.output()}"
        return self._listening()

    @property
    def url(self) -> str:
        return self.urls()[0]

    @property
    def kafka_port(self) -> int:
        """Of a broker."""
        self.wait(lambda: self.child.poll() is not None or bool(_KAFKA.search(self.output())), "listen for Kafka")
        assert self.child.poll() is None, f"it ended: {self.output()}"
        [port] = _KAFKA.findall(self.output())
        return int(port)

    def output(self) -> str:
        return self.log.read_text()

    def wait(self, ready: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        try:
            wait_until(ready, what, seconds=seconds, pause_seconds=0.02)
        except AssertionError as error:
            error.add_note(self.output())
            raise

    def wait_closed(self, url: str) -> None:
        """Until it takes no more connections there: it heard of a signal, and a second does not become one with it."""
        address = urlsplit(url)

        def is_closed() -> bool:
            try:
                socket.create_connection((address.hostname or "", address.port or 0), PATIENCE_SECONDS).close()
            except OSError:
                return True
            return False

        self.wait(is_closed, "close its port")

    def terminate(self) -> int:
        """SIGTERM; its exit code."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(10.0)
            except subprocess.TimeoutExpired:
                self.kill()

    def _listening(self) -> list[str]:
        return _LISTENS.findall(self.output())


def batch(topic: str, partition: int, records: Sequence[str], **claim: int) -> dict[str, Any]:
    return {"topic_partitions": [{"topic": topic, "partition": partition, "records": list(records), **claim}]}


async def produce(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The only result; the answer must be 200."""
    answer = await client.post(f"{url}/produce", json=body)
    assert answer.status_code == 200, answer.text
    [result] = answer.json()["results"]
    return dict(result)


async def consume(
    client: httpx.AsyncClient, url: str, topic: str, partition: int, offset: int, max_wait_ms: int = 0
) -> dict[str, Any]:
    asked = {"topic": topic, "partition": partition, "fetch_offset": offset}
    answer = await client.post(f"{url}/consume", json={"topic_partitions": [asked], "max_wait_ms": max_wait_ms})
    assert answer.status_code == 200, answer.text
    [result] = answer.json()["results"]
    return dict(result)


async def read_all(client: httpx.AsyncClient, url: str, topic: str, partition: int) -> dict[int, str]:
    """Every record by its offset."""
    found: dict[int, str] = {}
    offset = 1
    while True:
        told = await consume(client, url, topic, partition, offset)
        found |= {record["offset"]: record["payload"] for record in told["records"]}
        if told["next_fetch_offset"] > told["high_watermark"]:
            return found
        assert told["next_fetch_offset"] > offset, told
        offset = told["next_fetch_offset"]


class Sent(NamedTuple):
    partition: int
    sequence: int
    records: list[str]


class Producer:
    """Sends batch after batch, each with its sequence, until the broker is gone; remembers what was acknowledged."""

    def __init__(self, number: int, topic: str, partitions: int) -> None:
        self.producer_id, self._topic, self.partition = 1_000 + number, topic, number % partitions
        self.acknowledged: list[tuple[Sent, int]] = []
        """With the offset of the first record."""
        self.unanswered: Sent | None = None
        self._sequence = 0

    def _next(self) -> Sent:
        records = [f"{self.producer_id}/{self._sequence + number}" for number in range(3)]
        sent = Sent(self.partition, self._sequence, records)
        self._sequence += len(records)
        return sent

    async def run(self, client: httpx.AsyncClient, url: str) -> None:
        while self.unanswered is None:
            sent = self._next()
            try:
                await self.send(client, url, sent)
            except httpx.TransportError:
                self.unanswered = sent

    async def send(self, client: httpx.AsyncClient, url: str, sent: Sent) -> dict[str, Any]:
        claim = {"producer_id": self.producer_id, "epoch": 0, "sequence": sent.sequence}
        answer = await client.post(f"{url}/produce", json=batch(self._topic, sent.partition, sent.records, **claim))
        if answer.status_code == 503 and "results" not in answer.json():
            raise httpx.RemoteProtocolError("the broker is stopping")  # refused before anything was accepted
        assert answer.status_code == 200, answer.text
        [result] = answer.json()["results"]
        self.acknowledged.append((sent, result["start_offset"]))
        return dict(result)


async def check_stored(client: httpx.AsyncClient, url: str, topic: str, producers: Sequence[Producer]) -> int:
    """Whatever was acknowledged is there, at its offset, once, and each producer's records are in its order; how many
    records that are."""
    logs = {p: await read_all(client, url, topic, p) for p in {p.partition for p in producers}}
    for stored in logs.values():
        repeated = [payload for payload, count in Counter(stored.values()).items() if count > 1]
        assert not repeated, f"stored twice: {repeated}"
    for producer in producers:
        stored = logs[producer.partition]
        for sent, start_offset in producer.acknowledged:
            told = [stored.get(start_offset + number) for number in range(len(sent.records))]
            assert told == sent.records, f"acknowledged at {start_offset}: {sent.records}; there: {told}"
        own = [int(text.partition("/")[2]) for text in stored.values() if text.startswith(f"{producer.producer_id}/")]
        assert own == list(range(len(own))), f"producer {producer.producer_id}: out of order"
    return sum(map(len, logs.values()))


async def run_for(
    seconds: float, producers: Sequence[Producer], client: httpx.AsyncClient, url: str
) -> asyncio.Future[list[None]]:
    """The producers at work for a while, and on: the future ends when the broker is gone."""
    working = asyncio.gather(*(producer.run(client, url) for producer in producers))
    await asyncio.sleep(seconds)
    await until(lambda: working.done() or all(producer.acknowledged for producer in producers))
    return working
