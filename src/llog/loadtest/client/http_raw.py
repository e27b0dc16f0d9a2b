"""The raw HTTP engine: prepared `POST /produce` requests, and of their answers the status and what a failure says.

Numbers that change have a fixed place in the body, padded with blanks, which JSON allows before a value.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

from llog import errors
from llog.errors import LoadTestError
from llog.loadtest.client.stamp import DIGITS, Longs, parse_stamps, stamp_places, write_stamps
from llog.loadtest.client.wire import (
    ACCEPTED,
    TEXT,
    Connecting,
    Frame,
    FramePool,
    Identity,
    Outcome,
    Request,
    Stream,
    Verdict,
    gravest,
    key_digits,
    places,
    prepared_values,
)
from llog.loadtest.scenario.model import Records

PRODUCER_ID_MIN: Final = 10**17
PRODUCER_ID_MAX: Final = 10**18
"""All ids have 18 digits, the most that a broker reads fast."""
HEAD_BYTES_MAX: Final = 65_536
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([0-9]{3})")
_NO_RUN: Final = "0" * 8
_NUMBERS: Final = b'"partition":%6d,"producer_id":%18d,"epoch":%5d,"sequence":%10d'
_NUMBERS_AT: Final = b'"partition":'
_KEY: Final = b'{"key":"%b","payload":"'
"""A value follows."""


def _names(*roots: type[errors.LlogError]) -> Iterator[str]:
    for root in roots:
        yield root.__name__
        yield from _names(*root.__subclasses__())


_RETRY: Final = frozenset(
    _names(
        errors.AppendNotCommitted,
        errors.BackPressureRejected,
        errors.LogBusy,
        errors.RequestOverload,
        errors.StoreError,
        errors.UncertainOutcome,
    )
)
_VERDICTS: Final = {
    errors.DuplicateSequence.__name__: Verdict.ACCEPTED,
    errors.OutOfOrderSequence.__name__: Verdict.EARLIER_MISSING,
    errors.ProducerEpochFenced.__name__: Verdict.FORGOTTEN,
    errors.UnknownProducer.__name__: Verdict.FORGOTTEN,
    **dict.fromkeys(_RETRY, Verdict.RETRY),
}


class _Result(msgspec.Struct):
    ok: bool = False
    error_type: str = ""


class _Answer(msgspec.Struct):
    results: list[_Result] = []
    error_type: str = ""


class _Shape(NamedTuple):
    topic: str
    partitions: int
    batch_records: int


class _Layout(NamedTuple):
    content: bytes
    stamps: Longs
    keys: Longs
    numbers: Longs
    """Places of the numbers of each batch, a row for each."""


class HttpWire:
    def __init__(self, run: str, records: Records) -> None:
        self._run, self._records = run, records
        self._layouts: dict[_Shape, _Layout] = {}
        self._pool = FramePool(self._new_frame)
        self._decoder = msgspec.json.Decoder(_Answer)

    def frame(self, stream: Stream) -> Frame:
        group = stream.plan.group
        return self._pool.take(_Shape(group.topic_name, len(group.partitions), stream.plan.batch_records))

    def give_back(self, frame: Frame) -> None:
        self._pool.give_back(frame)

    def fill(self, request: Request, producer: int) -> None:
        stream, body = request.stream, request.frame.body
        layout = self._layouts[request.frame.shape]
        fixed = (request.identity.producer_id, request.identity.epoch, request.broker_sequence)
        texts = b"".join([_NUMBERS % (partition, *fixed) for partition in stream.plan.group.partitions])
        body[layout.numbers] = np.frombuffer(texts, np.uint8).reshape(layout.numbers.shape)
        if len(layout.keys):
            body[layout.keys] = key_digits(self._records.keys, len(layout.keys))
        due_us = round(request.due_s * 1e6)
        group = stream.plan.group
        write_stamps(body, layout.stamps, self._run, producer, group.topic, stream.partitions, request.sequence, due_us)

    def measure(self, data: bytearray) -> tuple[int, int] | None:
        end = data.find(_HEAD_END)
        if end < 0:
            if len(data) > HEAD_BYTES_MAX:
                raise LoadTestError(f"an HTTP head of more than {HEAD_BYTES_MAX} bytes")
            return None
        length = _LENGTH.search(data, 0, end + 2)
        if length is None or _STATUS.match(data) is None:
            raise LoadTestError(f"an HTTP answer without status or content-length: {bytes(data[:80])!r}")
        begin = end + len(_HEAD_END)
        return begin, begin + int(length[1])

    def outcome(self, data: bytearray, begin: int, end: int) -> Outcome:
        status = int(data[9:12])
        if status == 200:
            return ACCEPTED
        try:
            answer = self._decoder.decode(memoryview(data)[begin:end])
        except msgspec.DecodeError:
            answer = _Answer()
        if status == 409 and answer.results:
            return gravest(map(_outcome, answer.results))
        reason = f"{status} {answer.error_type or (answer.results[0].error_type if answer.results else '')}".rstrip()
        return Outcome(Verdict.RETRY if status >= 500 or status == 408 else Verdict.REFUSED, reason)

    async def prepare(self, connection: Connecting) -> None:
        """Nothing needs to be known."""

    async def identify(self, connection: Connecting) -> Identity:
        return Identity(PRODUCER_ID_MIN + secrets.randbelow(PRODUCER_ID_MAX - PRODUCER_ID_MIN), 0)

    async def probe(self, connection: Connecting) -> None:
        answer = await connection.ask(b"GET /ready HTTP/1.1\r\nhost: llog\r\n\r\n")
        if b'"ready":true' not in answer:
            raise LoadTestError(f"the broker is not ready: {answer[:100]!r}")

    def _new_frame(self, shape: _Shape) -> Frame:
        layout = self._layouts.get(shape)
        if layout is None:
            layout = self._layouts[shape] = _layout(shape, self._records)
        return Frame(shape, layout.content)


def _outcome(result: _Result) -> Outcome:
    if result.ok:
        return ACCEPTED
    return Outcome(_VERDICTS.get(result.error_type, Verdict.REFUSED), result.error_type)


def _layout(shape: _Shape, records: Records) -> _Layout:
    values = prepared_values(records, shape.batch_records, TEXT)
    if records.keys:
        texts = [_KEY % (b"0" * DIGITS) + value + b'"}' for value in values]
    else:
        texts = [b'"' + value + b'"' for value in values]
    batch = b'{"topic":"%b",%b,"records":[%b]}' % (
        shape.topic.encode(),
        _NUMBERS % (0, PRODUCER_ID_MIN, 0, 0),
        b",".join(texts),
    )
    body = b'{"topic_partitions":[%b]}' % b",".join([batch] * shape.partitions)
    head = b"POST /produce HTTP/1.1\r\nhost: llog\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    content = head % len(body) + body
    positions = parse_stamps(content, _NO_RUN).position
    first = content.index(_NUMBERS_AT, content.index(body))
    numbers = first + np.arange(shape.partitions, dtype=np.int64) * (len(batch) + 1)
    width = len(_NUMBERS % (0, PRODUCER_ID_MIN, 0, 0))
    keys = positions - len(_KEY % b"") + len(b'{"key":"') - DIGITS if records.keys else positions[:0]
    return _Layout(content, stamp_places(positions), places(keys, DIGITS), places(numbers, width))
