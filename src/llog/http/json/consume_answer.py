"""The answer to `POST /consume`: the records that were fetched, as JSON.

Payloads that are UTF-8 text are strings, all others base64; a record's absent parts are left out. There are three ways
to make the same answer (a test compares them):

- `PlainAnswer`: records that are nothing but an offset and a text, which nearly all are, are written by a kernel
  straight from the stored batches into one buffer, each byte copied once.
- `shown_columns`: the same kernel on decoded columns, where other records of the answer are not plain.
- msgspec, record by record, for everything else.

Measured: the kernel makes 3.5 × the bytes per second of decoding the batches and encoding their records with msgspec
(benchmark `json_consume`, 200 records of 1 KiB).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from msgspec import UNSET, Raw, UnsetType

from llog.broker.consume.consume import PartitionFetched, quick_bytes
from llog.errors import OffsetOutOfRange
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import TimestampType
from llog.formats.records.record_columns import BinaryColumn, Bytes, Header, RecordColumns
from llog.http.json.schemas import Base64, ConsumeAnswer, ConsumedRecord, ConsumeResult, Text
from llog.listener.http1 import ENCODER


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
    """A list of `ConsumedRecord`, or its JSON."""
    plain = [shown_columns(columns) if _is_bare(columns) else None for columns in runs]
    texts_of_runs = [text for text in plain if text is not None]
    if runs and len(texts_of_runs) == len(runs):
        between = [part for text in texts_of_runs for part in (b",", text)]
        return Raw(b"".join([b"[", *between[1:], b"]"]))
    return [record for columns in runs for record in records_of(columns)]


def records_of(columns: RecordColumns) -> Iterator[ConsumedRecord]:
    """Empty columns, and most are, cost nothing per record."""
    offsets, payloads = columns.offsets.tolist(), texts(columns.values)
    if _is_bare(columns):
        return map(ConsumedRecord, offsets, payloads)
    return _full_records(columns, offsets, payloads)


def _is_bare(columns: RecordColumns) -> bool:
    """The records have nothing but offsets and payloads."""
    return not (_holds_something(columns.keys) or _has_headers(columns) or _stamped(columns).any())


def _has_headers(columns: RecordColumns) -> bool:
    return bool(columns.headers.offsets[-1] > columns.headers.offsets[0])


def _stamped(columns: RecordColumns) -> Any:
    """Which records carry a timestamp of their producer."""
    return columns.timestamp_types == TimestampType.CREATE_TIME


def _holds_something(column: BinaryColumn) -> bool:
    """False when every value is null."""
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


# Text has no control characters but tab and line ends.
_PLAIN: Final = bytes([9, 10, 13, *range(0x20, 0x7F)])
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def texts(column: BinaryColumn) -> list[Text]:
    """Each value as text, or as base64 where it is not text. A column of plain ASCII is decoded in one call."""
    if len(column) == 0:
        return []
    start, end = int(column.offsets[0]), int(column.offsets[-1])
    data = column.data[start:end]
    if not len(column.validity) and _is_plain(data):
        text, ends = str(data.data, "ascii"), (column.offsets - start).tolist()
        return [text[a:b] for a, b in pairwise(ends)]
    return [shown(value) for value in column.tolist()]


def _is_plain(data: Bytes) -> bool:
    """Only bytes of `_PLAIN`. Nearly always two comparisons decide it."""
    printable = not len(data) or bool(data.min() >= 0x20 and data.max() < 0x7F)
    return printable or not data.tobytes().translate(None, _PLAIN)


def shown(value: bytes | None) -> Text:
    """UTF-8 with control characters counts as bytes (`AAE=` in the contract's own example)."""
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


# -- plain records, by a kernel ----------------------------------------------------------------------------------------


_FRAME: Final = tuple(np.frombuffer(text, np.uint8) for text in (b'{"offset":', b',"payload":"', b'"}'))
# With a comma and the digits of an offset.
_ROW_BYTES_MAX: Final = sum(map(len, _FRAME)) + 1 + 19


def shown_columns(columns: RecordColumns) -> memoryview | None:
    """The records as JSON with commas between; None when a payload is not text. For columns that are bare."""
    from llog.http.json import plain_show_kernel as kernel

    values = columns.values
    if len(values.validity):
        return None
    # Room for few escapes: records with many of them are encoded one by one.
    size = (int(values.offsets[-1]) - int(values.offsets[0])) * 5 // 4 + len(columns) * _ROW_BYTES_MAX
    output = np.empty(size, np.uint8)
    offsets, bounds = np.ascontiguousarray(columns.offsets, np.int64), np.ascontiguousarray(values.offsets, np.int32)
    end = kernel.show_columns(output, 0, True, offsets, bounds, values.data, _FRAME)
    return None if end < 0 else output[:end].data


def show_batches(output: Bytes, at: int, batches: Buffer, from_offset: int, *, first: bool) -> tuple[int, int] | None:
    """Write the records from `from_offset` on into `output`: (where they end, how many). None when one is not plain or
    the buffer is too small. `first`: no comma before the first record."""
    from llog.http.json import plain_show_kernel as kernel

    data = np.frombuffer(memoryview(batches).toreadonly(), np.uint8)  # read-only, or the kernel would be compiled twice
    end, records = kernel.show_batches(output, at, first, data, from_offset, _FRAME)
    return None if end < 0 else (end, records)


def warm_up() -> None:
    """Compile or load the kernels before the first request needs them."""
    batch = encode_records([b"warm"], timestamps_ms=0)
    show_batches(np.empty(256, np.uint8), 0, batch, 0, first=True)
    shown_columns(decode_records(batch, "warm-up"))


_START: Final = b'{"results":['
_TAIL: Final = b'],"success_count":%d,"error_count":%d}'
# The end of a result without records; they go before it.
_CLOSING: Final = b"]}"


class PlainAnswer:
    """The answer to one request, made from its stored batches (`ConsumeRequest.quick`) where all records are plain."""

    def __init__(self) -> None:
        self.text: memoryview | None = None
        """None: a record is not plain, and the batches have to be decoded."""

    def __call__(self, fetched: Sequence[PartitionFetched]) -> int | None:
        """Records in the answer; None when the batches have to be decoded. Takes no more memory than `quick_bytes`."""
        try:
            return self._made(fetched)
        except _NotMade:
            return None

    def _made(self, fetched: Sequence[PartitionFetched]) -> int:
        frames = [
            ENCODER.encode(result_of(partition)) for partition in fetched
        ]  # without records: nothing is decoded yet
        failed = sum(partition.error is not None for partition in fetched)
        tail = _TAIL % (len(fetched) - failed, failed)
        found = sum(total_length(partition.batches) for partition in fetched)
        frame_bytes = len(_START) + total_length(frames) + len(frames) + len(tail)
        writing = _Writing(quick_bytes(found) + frame_bytes)
        writing.put(_START)
        for number, (partition, frame) in enumerate(zip(fetched, frames, strict=True)):
            writing.put(b"," if number else b"")
            if not partition.batches:
                writing.put(frame)
                continue
            writing.put(frame[: -len(_CLOSING)])
            writing.show(partition)
            writing.put(_CLOSING)
        writing.put(tail)
        self.text = writing.written()
        return writing.records


class _NotMade(Exception):
    pass


class _Writing:
    def __init__(self, size: int) -> None:
        self._output, self._at, self.records = np.empty(size, np.uint8), 0, 0

    def put(self, text: bytes) -> None:
        end = self._at + len(text)
        if end > len(self._output):  # the records are tiny, or full of escapes
            raise _NotMade
        self._output[self._at : end] = np.frombuffer(text, np.uint8)
        self._at = end

    def show(self, partition: PartitionFetched) -> None:
        first = True
        for batches in partition.batches:
            shown = show_batches(self._output, self._at, batches, partition.fetch_offset, first=first)
            if shown is None:
                raise _NotMade
            self._at, records = shown
            self.records += records
            first = first and records == 0

    def written(self) -> memoryview:
        return self._output[: self._at].data
