"""The records of a produced batch as rows: JSON values to bytes, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from msgspec import UNSET, UnsetType

from llog.errors import InvalidArgument
from llog.formats.records.record_columns import Header
from llog.http.json.schemas import Base64, RecordObject, Text


class Rows(NamedTuple):
    """The records of a batch, column by column; None where no record has that part."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[list[Header]] | None = None
    timestamps_ms: list[int] | None = None

    def bare_values(self) -> list[bytes] | None:
        """The values when no record has anything else and none is null."""
        if self.keys is None and self.headers is None and self.timestamps_ms is None and None not in self.values:
            return cast(list[bytes], self.values)
        return None

    def only(self, numbers: Sequence[int]) -> Rows:
        """The records with these numbers, in this order."""
        return Rows(
            [self.values[number] for number in numbers],
            None if self.keys is None else [self.keys[number] for number in numbers],
            None if self.headers is None else [self.headers[number] for number in numbers],
            None if self.timestamps_ms is None else [self.timestamps_ms[number] for number in numbers],
        )


def rows_of(records: Sequence[str | RecordObject], path: str, now_ms: int) -> Rows:
    if set(map(type, records)) == {str}:
        return Rows(list(map(str.encode, cast(Sequence[str], records))))
    objects = [record if isinstance(record, RecordObject) else None for record in records]
    values = [
        record.encode() if isinstance(record, str) else _payload(record, f"{path}[{row}]")
        for row, record in enumerate(records)
    ]
    keyed = any(record is not None and record.key is not None for record in objects)
    headed = any(record is not None and record.headers for record in objects)
    stamped = any(record is not None and record.timestamp_ms is not UNSET for record in objects)
    return Rows(
        values,
        [None if record is None else _bytes(record.key) for record in objects] if keyed else None,
        [[] if record is None else _headers(record) for record in objects] if headed else None,
        [now_ms if record is None or record.timestamp_ms is UNSET else record.timestamp_ms for record in objects]
        if stamped
        else None,
    )


def _payload(record: RecordObject, path: str) -> bytes | None:
    given = [name for name in ("base64", "payload", "value") if getattr(record, name) is not UNSET]
    if not given:
        reason = "missing: a record has a value (or payload, which means the same; null: a tombstone) or base64"
        raise InvalidArgument(f"{path}.value", reason)
    if len(given) > 1:
        reason = f"a record has one of base64, payload and value; this one has {given[0]} too: leave one out"
        raise InvalidArgument(f"{path}.{given[-1]}", reason)
    if isinstance(record.base64, bytes):
        return record.base64
    text = record.value if isinstance(record.payload, UnsetType) else record.payload
    assert not isinstance(text, UnsetType)
    return _bytes(text)


def _bytes(text: Text) -> bytes | None:
    if text is None:
        return None
    return text.base64 if isinstance(text, Base64) else text.encode()


def _headers(record: RecordObject) -> list[Header]:
    return [
        (name, _bytes(value))
        for name, values in record.headers.items()
        for value in (values if isinstance(values, list) else [values])
    ]
