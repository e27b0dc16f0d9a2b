"""`POST /consume`: records from many logs, as soon as there are enough of them.

A well-formed request is answered with 200, also when some partitions fail: each tells for itself. What must stay true:
payloads that are UTF-8 come as text, all others as base64; what a record does not have is not shown; a large answer is
made in a thread; a poll that waits ends early when the broker stops.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from litestar import Request, Response, post
from msgspec import UNSET, Raw, UnsetType

from llog.broker.consume import ConsumeRequest, PartitionFetch, PartitionFetched
from llog.errors import InvalidArgument, OffsetOutOfRange, RequestRefused
from llog.formats.record_batch import TimestampType
from llog.formats.record_columns import BinaryColumn, Bytes, Header, RecordColumns
from llog.http.answers import AnswerShare, held_bytes
from llog.http.body import AnyRequest, decoded_body
from llog.http.openapi import operation
from llog.http.plain_show import is_plain_json, is_printable, shown_plain
from llog.http.produce_encode import checked_log
from llog.http.replies import ENCODER, bytes_reply
from llog.http.runtime import Access, Runtime, request_record, runtime_of
from llog.http.schemas import Base64, ConsumeAnswer, ConsumeBody, ConsumedRecord, ConsumeResult, Text
from llog.log.keys import Log


@post(
    "/consume",
    status_code=200,
    opt={Access.KEY: Access.READ},
    summary="Fetch records from one or many logs",
    operation_class=operation(ConsumeBody, {200: (ConsumeAnswer, "Records, or an error, per partition.")}),
)
async def consume(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    runtime = runtime_of(request)
    wanted = plan_consume(await decoded_body(request, ConsumeBody))
    share = AnswerShare(runtime.answers)
    request_record(request).on_finished = share.give
    fetched = await fetch(runtime, replace(wanted, hold=share.hold), gone=lambda: _disconnected(request))
    share.hold(held_bytes(fetched))
    size = sum(run.columns.values.data.nbytes for partition in fetched for run in partition.runs)
    text = await runtime.off_loop(size, lambda: ENCODER.encode(answer_of(fetched)))
    share.shrink(len(text))
    return bytes_reply(text)


def plan_consume(body: ConsumeBody) -> ConsumeRequest:
    partitions: dict[Log, PartitionFetch] = {}
    for number, wanted in enumerate(body.topic_partitions):
        path = f"topic_partitions[{number}]"
        log = checked_log(wanted.topic, wanted.partition, f"{path}.topic")
        if log in partitions:
            raise InvalidArgument(path, f"{log} is named twice")
        partitions[log] = PartitionFetch(log, wanted.fetch_offset, wanted.partition_max_bytes)
    return ConsumeRequest(tuple(partitions.values()), body.max_wait_ms, body.min_bytes, body.max_bytes)


async def fetch(
    runtime: Runtime, wanted: ConsumeRequest, *, gone: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> Sequence[PartitionFetched]:
    """Consume, waiting no longer than until the broker stops (then what there is counts), or until the client is gone
    (then nothing is read for it any more)."""
    services = runtime.broker
    if wanted.max_wait_ms == 0 or runtime.stopping.is_set():
        return await services.consume(replace(wanted, max_wait_ms=0))
    polling = asyncio.ensure_future(services.consume(wanted))
    stopping = asyncio.ensure_future(runtime.stopping.wait())
    leaving = asyncio.ensure_future(gone() if gone is not None else runtime.stopping.wait())
    try:
        await asyncio.wait({polling, stopping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if polling.done():
            return await polling
        if not stopping.done() and not runtime.stopping.is_set():
            raise RequestRefused("the client went away while it waited")
    finally:
        for task in (polling, stopping, leaving):
            task.cancel()
    return await services.consume(replace(wanted, max_wait_ms=0))


async def _disconnected(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# -- records as JSON ---------------------------------------------------------------------------------------------------


def answer_of(fetched: Sequence[PartitionFetched]) -> ConsumeAnswer:
    results = [_result(partition) for partition in fetched]
    failed = sum(not result.ok for result in results)
    return ConsumeAnswer(results, len(results) - failed, failed)


def _result(partition: PartitionFetched) -> ConsumeResult:
    log, error = partition.log, partition.error
    if error is None:
        return ConsumeResult(
            topic=log.topic,
            partition=log.partition,
            ok=True,
            fetch_offset=partition.fetch_offset,
            high_watermark=partition.high_watermark,
            next_fetch_offset=partition.next_fetch_offset,
            records=_records([run.columns for run in partition.runs]),
        )
    out_of_range = error if isinstance(error, OffsetOutOfRange) else None
    return ConsumeResult(
        topic=log.topic,
        partition=log.partition,
        ok=False,
        fetch_offset=partition.fetch_offset,
        high_watermark=UNSET if out_of_range is None else out_of_range.next_offset - 1,
        log_start_offset=UNSET if out_of_range is None else out_of_range.log_start_offset,
        error_type=type(error).__name__,
        error=str(error),
    )


def _records(runs: Sequence[RecordColumns]) -> Any:
    """A list of `ConsumedRecord`, or what it would be encoded as."""
    if runs and all(_is_bare(columns) and is_plain_json(columns.values) for columns in runs):
        shown_runs = [part for columns in runs for part in (b",", shown_plain(columns))]
        return Raw(b"".join([b"[", *shown_runs[1:], b"]"]))
    return [record for columns in runs for record in records_of(columns)]


def records_of(columns: RecordColumns) -> Iterator[ConsumedRecord]:
    """Records as they are shown. Columns that are empty, and most are, cost nothing per record."""
    offsets, payloads = columns.offsets.tolist(), texts(columns.values)
    if _is_bare(columns):
        return map(ConsumedRecord, offsets, payloads)
    return _full_records(columns, offsets, payloads)


def _is_bare(columns: RecordColumns) -> bool:
    """Offsets and payloads are all there is to show."""
    return not (_holds_something(columns.keys) or _has_headers(columns) or _stamped(columns).any())


def _has_headers(columns: RecordColumns) -> bool:
    return bool(columns.headers.offsets[-1] > columns.headers.offsets[0])


def _stamped(columns: RecordColumns) -> Any:
    """Which records carry a time that their producer gave."""
    return columns.timestamp_types == TimestampType.CREATE_TIME


def _holds_something(column: BinaryColumn) -> bool:
    """False only when every value is null; where that takes a closer look, True."""
    return len(column.validity) == 0 or bool(column.validity.any())


def _full_records(columns: RecordColumns, offsets: list[int], payloads: list[Text]) -> Iterator[ConsumedRecord]:
    rows, headed = len(offsets), _has_headers(columns)
    keys: list[Text] = texts(columns.keys) if _holds_something(columns.keys) else [None] * rows
    times: list[int | UnsetType] = [
        timestamp_ms if shown else UNSET
        for timestamp_ms, shown in zip(columns.timestamps_ms.tolist(), _stamped(columns).tolist(), strict=True)
    ]
    for row in range(rows):
        headers = _headers(columns.headers[row]) if headed else {}
        yield ConsumedRecord(offsets[row], payloads[row], keys[row], headers, times[row])


# Text as people write it: no control characters but tab and line ends.
_PLAIN: Final = bytes([9, 10, 13, *range(0x20, 0x7F)])
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def texts(column: BinaryColumn) -> list[Text]:
    """Each value as text where it is text, else as base64. A column of plain ASCII, the common one, is cut at once."""
    if len(column) == 0:
        return []
    start, end = int(column.offsets[0]), int(column.offsets[-1])
    data = column.data[start:end]
    if not len(column.validity) and _is_plain(data):
        text, ends = str(data.data, "ascii"), (column.offsets - start).tolist()
        return [text[a:b] for a, b in pairwise(ends)]
    return [shown(value) for value in column.tolist()]


def _is_plain(data: Bytes) -> bool:
    """Nothing but `_PLAIN`. Nearly always neither tabs nor line ends are there, and then two quick looks are enough."""
    return is_printable(data) or not data.tobytes().translate(None, _PLAIN)


def shown(value: bytes | None) -> Text:
    """UTF-8 with control characters is bytes that happen to decode (`AAE=` in the contract's own example)."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return Base64(value)
    return Base64(value) if _CONTROL.search(text) else text


def _headers(headers: Sequence[Header]) -> dict[str, Text | list[Text]]:
    """A name that occurs several times gets a list."""
    found: dict[str, list[Text]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(shown(value))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
