"""The answer to `POST /consume`: what was fetched, as JSON.

What must stay true: payloads that are UTF-8 come as text, all others as base64; what a record does not have is not
shown. Answers of plain records are made another way (`plain_answer`), and look the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

from llog.broker.consume.consume import PartitionFetched
from llog.errors import OffsetOutOfRange
from llog.formats.records.record_batch import TimestampType
from llog.formats.records.record_columns import BinaryColumn, Bytes, Header, RecordColumns
from llog.http.json.plain_show import shown_columns
from llog.http.json.schemas import Base64, ConsumeAnswer, ConsumedRecord, ConsumeResult, Text


def answer_of(fetched: Sequence[PartitionFetched]) -> ConsumeAnswer:
    results = [result_of(partition) for partition in fetched]
    failed = sum(not result.ok for result in results)
    return ConsumeAnswer(results, len(results) - failed, failed)


def result_of(partition: PartitionFetched) -> ConsumeResult:
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
    plain = [shown_columns(columns) if _is_bare(columns) else None for columns in runs]
    texts_of_runs = [text for text in plain if text is not None]
    if runs and len(texts_of_runs) == len(runs):
        between = [part for text in texts_of_runs for part in (b",", text)]
        return Raw(b"".join([b"[", *between[1:], b"]"]))
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
    printable = not len(data) or bool(data.min() >= 0x20 and data.max() < 0x7F)
    return printable or not data.tobytes().translate(None, _PLAIN)


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
