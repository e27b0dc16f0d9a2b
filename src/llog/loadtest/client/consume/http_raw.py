"""POST /consume without an HTTP library: prepared bodies, and answers whose records are skipped by the JSON decoder and
scanned where they lie."""

from __future__ import annotations

from collections import Counter
from typing import Final
from urllib.parse import urlsplit

import msgspec
import numpy as np

from llog.errors import InvalidField
from llog.limits import HTTP_TOPIC_PARTITIONS_MAX
from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume.connection import Connection, measure_http
from llog.loadtest.client.consume.link import Asking, BrokerRefuses, Link, Read
from llog.loadtest.client.consume.places import UNKNOWN, Longs

ANSWER_TIMEOUT_S: Final = 10.0
"""Beyond the wait that a request asks for; a paused broker is left after it."""
_STATUS: Final = slice(9, 12)
_OUTSIDE: Final = "OffsetOutOfRange"
_EMPTY: Final = "PartitionNotInitialized"
"""Nothing was written yet."""
_REASON_BYTES_MAX: Final = 200


class _Result(msgspec.Struct, gc=False):
    topic: str
    partition: int
    ok: bool
    high_watermark: int = -1
    next_fetch_offset: int = -1
    records: msgspec.Raw = msgspec.Raw(b"")
    log_start_offset: int = -1
    error_type: str = ""


class _Answer(msgspec.Struct, gc=False):
    results: list[_Result]


class _Partition(msgspec.Struct, gc=False):
    partition: int
    log_start_offset: int
    next_offset: int

    @property
    def end(self) -> int:
        """An empty log is read to its end from the beginning, wherever its offsets begin."""
        return 0 if self.next_offset == self.log_start_offset else self.next_offset


class _Topic(msgspec.Struct, gc=False):
    partitions: list[_Partition]


_ANSWERS: Final = msgspec.json.Decoder(_Answer)
_TOPICS: Final = msgspec.json.Decoder(_Topic)


class HttpEngine:
    async def connect(self, broker: BrokerPlace, asking: Asking) -> Link:
        address = urlsplit(broker.http_url)
        host, port = address.hostname or "", address.port or 80
        link = HttpLink(await Connection.open(host, port, measure_http), f"{host}:{port}", asking)
        try:
            await link.check_ready()
        except BaseException:
            link.close()
            raise
        return link


class HttpLink:
    def __init__(self, connection: Connection, host: str, asking: Asking) -> None:
        self._connection, self._host, self._asking = connection, host, asking
        consumers, places = asking.consumers, asking.places
        self._numbers = {name: number for number, name in enumerate(asking.topics)}
        self._before = [
            b'{"topic":"%b","partition":%d,"partition_max_bytes":%d,"fetch_offset":'
            % (asking.topics[topic].encode(), partition, consumers.partition_max_bytes)
            for topic, partition in zip(places.topics.tolist(), places.numbers.tolist(), strict=True)
        ]
        self._after = b'}],"max_wait_ms":%d,"min_bytes":%d,"max_bytes":%d}' % (
            consumers.max_wait_ms,
            consumers.min_bytes,
            consumers.max_bytes,
        )

    def close(self) -> None:
        self._connection.close()

    async def check_ready(self) -> None:
        await self._ask("GET", "/ready", b"", ANSWER_TIMEOUT_S)

    async def read(self, rows: Longs) -> Read:
        """The first HTTP_TOPIC_PARTITIONS_MAX of them; those that were not asked for come first in the next request,
        because the others have had their answer."""
        places, consumers = self._asking.places, self._asking.consumers
        rows = rows[:HTTP_TOPIC_PARTITIONS_MAX]
        asked = [
            b"%b%d" % (self._before[row], offset)
            for row, offset in zip(rows.tolist(), places.offsets[rows].tolist(), strict=True)
        ]
        body = b'{"topic_partitions":[' + b"},".join(asked) + self._after
        answer = await self._ask("POST", "/consume", body, consumers.max_wait_ms / 1_000 + ANSWER_TIMEOUT_S)
        try:
            return self._scan(_ANSWERS.decode(answer).results)
        except msgspec.DecodeError as error:
            raise InvalidField("consume answer", str(error)) from None

    def _scan(self, results: list[_Result]) -> Read:
        places, scanner = self._asking.places, self._asking.scanner
        read: list[tuple[int, int, int]] = []
        outside: list[tuple[int, int]] = []
        errors: Counter[str] = Counter()
        for result in results:
            topic = self._numbers.get(result.topic, UNKNOWN)
            row = places.row(topic, result.partition) if topic >= 0 else UNKNOWN
            if row < 0:
                raise InvalidField("consume answer", f"{result.topic}:{result.partition} was not asked for")
            if result.ok:
                passed = result.next_fetch_offset - int(places.offsets[row])
                if passed:
                    scanner.text(result.records, topic, result.partition, passed)
                read.append((row, result.next_fetch_offset, result.high_watermark + 1))
            elif result.error_type == _OUTSIDE:
                outside.append((row, result.log_start_offset))
            elif result.error_type == _EMPTY:
                read.append((row, int(places.offsets[row]), UNKNOWN))
            else:
                errors[result.error_type] += 1
        rows = np.array(read, np.int64).reshape(-1, 3)
        beside = np.array(outside, np.int64).reshape(-1, 2)
        return Read(rows[:, 0], rows[:, 1], rows[:, 2], beside[:, 0], beside[:, 1], errors)

    async def ends(self, rows: Longs) -> Longs:
        places = self._asking.places
        ends: Longs = np.full(len(rows), UNKNOWN, np.int64)
        for topic in np.unique(places.topics[rows]).tolist():
            answer = await self._ask("GET", f"/topics/{self._asking.topics[topic]}", b"", ANSWER_TIMEOUT_S)
            try:
                partitions = _TOPICS.decode(answer).partitions
            except msgspec.DecodeError as error:
                raise InvalidField("topic", str(error)) from None
            offsets = {one.partition: one.end for one in partitions}
            for position in np.flatnonzero(places.topics[rows] == topic).tolist():
                ends[position] = offsets.get(int(places.numbers[rows[position]]), UNKNOWN)
        return ends

    async def _ask(self, method: str, path: str, body: bytes, timeout_s: float) -> memoryview:
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        request = [f"{head}content-length: {len(body)}\r\n\r\n".encode(), body]
        answer, begin = await self._connection.ask(request, timeout_s)
        status = bytes(answer[_STATUS]).decode("ascii", "replace")
        if status != "200":
            reason = bytes(answer[begin : begin + _REASON_BYTES_MAX]).decode("utf-8", "replace")
            raise BrokerRefuses(f"{path} status {status}", reason)
        return answer[begin:]
