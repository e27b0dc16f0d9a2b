"""Producers that send every request once, and a checker of what became of it.

Why it exists: whether a broker keeps its promises when it is killed, stopped or cut off from its stores is judged from
outside, by what its clients were told and what readers find afterwards. Nothing is ever sent again, so each payload
(all are different) has one of four fates: acknowledged at an offset, refused, unanswered or uncertain, never sent.

What must stay true: an acknowledged record is at its offset; a refused one, or one that never left, is nowhere; what
nobody knows of is there once or not at all; nothing else is there, and no offset is left out.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.patience import until
from tests.system.broker_process import consume

TOPIC: Final = "load"
UNCERTAIN: Final = "AppendUncertain"
PAUSE_SECONDS: Final = 0.02
READ_WAIT_SECONDS: Final = 60.0


@dataclass
class Fates:
    """What clients know of the records they made."""

    acknowledged: dict[int, dict[int, str]] = field(default_factory=dict)
    """Payloads by partition and offset."""
    refused: set[str] = field(default_factory=set)
    """They were told that it is not there, or it was never sent."""
    unknown: set[str] = field(default_factory=set)
    """Unanswered, or answered with "nobody can tell"."""
    answers: Counter[str] = field(default_factory=Counter)
    """By status and kind of error."""
    slowest_seconds: float = 0.0
    """The longest that anybody waited for an answer, or for the end of the connection."""

    @property
    def acknowledged_count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def acknowledge(self, partition: int, start_offset: int, payloads: Sequence[str]) -> None:
        told = self.acknowledged.setdefault(partition, {})
        for offset, payload in enumerate(payloads, start_offset):
            assert offset not in told, f"offset {offset} of {partition}: {told[offset]!r} and {payload!r}"
            told[offset] = payload

    def judge(self, answer: httpx.Response, batches: Sequence[tuple[int, list[str]]]) -> None:
        """Of one request, batch by batch."""
        body: dict[str, Any] = answer.json()
        uncertain = [result.get("error_type") == UNCERTAIN for result in body.get("results", [])]
        if answer.status_code == 503 and not any(uncertain):
            assert answer.headers.get("retry-after"), f"503 without Retry-After: {body}"
        if "results" not in body:
            # Refused whole: before anything was accepted.
            assert answer.status_code in (408, 503), f"{answer.status_code}: {body}"
            self.answers[f"{answer.status_code} {body.get('error_type')}"] += 1
            self.refused.update(payload for _, payloads in batches for payload in payloads)
            return
        for result, (partition, payloads) in zip(body["results"], batches, strict=True):
            kind = "" if result["ok"] else result["error_type"]
            self.answers[f"{answer.status_code} {kind}".strip()] += 1
            if result["ok"]:
                assert result["count"] == len(payloads), result
                self.acknowledge(partition, result["start_offset"], payloads)
            elif kind == UNCERTAIN:
                self.unknown.update(payloads)
            else:
                self.refused.update(payloads)


class Load:
    """Some producers at work, each with one request at a time, on whatever broker it is pointed at."""

    def __init__(
        self,
        rng: random.Random,
        *,
        producers: int = 8,
        partitions: int = 4,
        payload_bytes: int = 60,
        timeout_seconds: float = 60.0,
    ) -> None:
        self.fates = Fates()
        self.partitions = partitions
        self.in_flight = 0
        self._rng, self._payload_bytes, self._timeout = rng, payload_bytes, timeout_seconds
        self._number = 0
        self._producers, self._tasks = producers, list[asyncio.Task[None]]()

    def start(self, *urls: Callable[[], str | None]) -> None:
        """Each producer keeps to one of these; None: nobody is there just now."""
        self._tasks += [
            asyncio.create_task(self._produce(urls[number % len(urls)])) for number in range(self._producers)
        ]

    async def stop(self) -> None:
        """Let every request under way come to its end."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        self._tasks.clear()
        self._stopping = False

    async def abort(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    _stopping = False

    async def wait_acknowledged(self, more: int, seconds: float = 40.0) -> None:
        """Until so many more records were acknowledged than now."""
        wanted = self.fates.acknowledged_count + more

        def are_acknowledged() -> bool:
            self.check_running()
            return self.fates.acknowledged_count >= wanted

        await until(are_acknowledged, f"{more} more records acknowledged", seconds=seconds)

    def check_running(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _produce(self, url: Callable[[], str | None]) -> None:
        async with httpx.AsyncClient(timeout=self._timeout) as client:
            while not self._stopping:
                where = url()
                if where is None:
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                answered = await self._send(client, where)
                if not answered:
                    await asyncio.sleep(PAUSE_SECONDS)

    def _batches(self) -> list[tuple[int, list[str]]]:
        rng = self._rng
        chosen = rng.sample(range(self.partitions), rng.randint(1, min(2, self.partitions)))
        return [(partition, [self._payload() for _ in range(rng.randint(1, 4))]) for partition in chosen]

    def _payload(self) -> str:
        self._number += 1
        return f"{self._number}:".ljust(self._payload_bytes, "x")

    async def _send(self, client: httpx.AsyncClient, url: str) -> bool:
        """False: nothing was accepted."""
        batches = self._batches()
        body = {"topic_partitions": [{"topic": TOPIC, "partition": p, "records": records} for p, records in batches]}
        payloads = [payload for _, records in batches for payload in records]
        began = time.monotonic()
        self.in_flight += 1
        try:
            answer = await client.post(f"{url}/produce", json=body)
        except httpx.ConnectError:
            self.fates.refused.update(payloads)
            self.fates.answers["never sent"] += 1
            return False
        except httpx.TimeoutException:
            raise AssertionError(f"no answer within {self._timeout} s") from None
        except httpx.TransportError:
            self.fates.unknown.update(payloads)
            self.fates.answers["unanswered"] += 1
            return False
        finally:
            self.in_flight -= 1
            self.fates.slowest_seconds = max(self.fates.slowest_seconds, time.monotonic() - began)
        self.fates.judge(answer, batches)
        return answer.status_code == 200


async def read_log(client: httpx.AsyncClient, url: str, partition: int, start: int = 1) -> dict[int, str]:
    """Every record from an offset on; a log that nobody wrote to yet has none. Trouble with a store is waited out."""
    found: dict[int, str] = {}
    offset, deadline = start, time.monotonic() + READ_WAIT_SECONDS
    while True:
        told = await consume(client, url, TOPIC, partition, offset)
        if not told["ok"]:
            if told["error_type"] in ("PartitionNotInitialized", "TopicNotFound"):
                return found
            assert time.monotonic() < deadline, told
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        for record in told["records"]:
            assert record["offset"] == start + len(found), f"partition {partition}: {offset} … leaves out offsets"
            found[record["offset"]] = record["payload"]
        if told["next_fetch_offset"] > told["high_watermark"]:
            return found
        assert told["next_fetch_offset"] > offset, told
        offset = told["next_fetch_offset"]


Stored = dict[int, dict[int, str]]


async def read_logs(client: httpx.AsyncClient, url: str, partitions: Iterable[int]) -> Stored:
    return {partition: await read_log(client, url, partition) for partition in partitions}


def check(fates: Fates, stored: Stored, *, answered_all: bool = False) -> None:
    """`answered_all`: whatever was accepted was answered, so what nobody heard of is not there either."""
    for partition, told in fates.acknowledged.items():
        records = stored.get(partition, {})
        lost = {offset: payload for offset, payload in told.items() if records.get(offset) != payload}
        assert not lost, f"partition {partition}: acknowledged, and not there: {_some(lost)} of {len(told)}"
    payloads = Counter(payload for records in stored.values() for payload in records.values())
    twice = [payload for payload, count in payloads.items() if count > 1]
    assert not twice, f"stored twice: {_some(twice)}"
    known = {payload for told in fates.acknowledged.values() for payload in told.values()}
    there = payloads.keys() - known
    refused = there & fates.refused
    assert not refused, f"refused, and there: {_some(refused)}"
    strangers = there - fates.unknown
    assert not strangers, f"nobody sent: {_some(strangers)}"
    if answered_all:
        assert not there, f"accepted, and not answered: {_some(there)}"


def _some(things: Iterable[object]) -> str:
    listed = list(things)
    return f"{len(listed)}, such as {listed[:5]}"
