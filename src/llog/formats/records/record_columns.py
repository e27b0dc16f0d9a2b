"""Records as columns, in the shape of Arrow: offsets, one run of bytes, a validity bitmap.

The common form between the wire (`encode`, `decode`) and tables (`arrow`), passed on without copies. Every array is
contiguous and read-only, so that threads can share columns and Arrow can use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from llog.errors import InvalidArgument, ValueTooLarge

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Header = tuple[str, bytes | None]
Scalar = TypeVar("Scalar", bound=np.generic)

BINARY_COLUMN_BYTES_MAX: Final = 2**31 - 1
"""Offsets are 32 bits, as in Arrow's binary type."""


def frozen(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """`array` itself, made read-only."""
    array.setflags(write=False)
    return array


NOTHING: Final[Bytes] = frozen(np.empty(0, np.uint8))


class BinaryColumn(msgspec.Struct, frozen=True, eq=False):
    """Byte strings, some of them null. Row i is data[offsets[i]:offsets[i + 1]]."""

    offsets: Ints
    data: Bytes
    validity: Bytes = msgspec.field(default_factory=lambda: NOTHING)
    """One bit per row, least significant first, 0 for null; empty if no row is null."""
    first_bit: int = 0
    """Bit of row 0 in the bitmap; not 0 for a part of a longer column."""

    def __post_init__(self) -> None:
        if len(self.offsets) == 0:
            raise InvalidArgument("offsets", "a column of n rows has n + 1 offsets")
        if len(self.validity) and len(self.validity) * 8 < self.first_bit + len(self):
            raise InvalidArgument("validity", f"{len(self.validity)} bytes for {len(self)} rows")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def from_row(self, row: int) -> BinaryColumn:
        """The same without the rows before `row`; nothing is copied."""
        first_bit = self.first_bit + row if len(self.validity) else 0
        return BinaryColumn(self.offsets[row:], self.data, self.validity, first_bit)

    def is_null(self, row: int) -> bool:
        bit = self.first_bit + row
        return len(self.validity) != 0 and not self.validity[bit >> 3] >> (bit & 7) & 1

    def __getitem__(self, row: int) -> bytes | None:
        return None if self.is_null(row) else self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def null_flags(self) -> npt.NDArray[np.bool_]:
        if len(self.validity) == 0:
            return np.zeros(len(self), np.bool_)
        bits = np.unpackbits(self.validity, count=self.first_bit + len(self), bitorder="little")
        flags: npt.NDArray[np.bool_] = bits[self.first_bit :] == 0
        return flags

    def tolist(self) -> list[bytes | None]:
        start, end = int(self.offsets[0]), int(self.offsets[-1])
        data, ends = self.data[start:end].tobytes(), (self.offsets - start).tolist()
        rows = zip(ends[:-1], ends[1:], self.null_flags().tolist(), strict=True)
        return [None if null else data[a:b] for a, b, null in rows]


class HeaderColumn(msgspec.Struct, frozen=True, eq=False):
    """Each record's headers: record i has those of rows offsets[i] … offsets[i + 1]. Keys are UTF-8, never null."""

    offsets: Ints
    keys: BinaryColumn
    values: BinaryColumn

    def __post_init__(self) -> None:
        if len(self.offsets) == 0 or len(self.keys) != len(self.values):
            raise InvalidArgument("headers", "list offsets, keys and values have contradicting lengths")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> list[Header]:
        rows = range(self.offsets[row], self.offsets[row + 1])
        return [((self.keys[i] or b"").decode(), self.values[i]) for i in rows]


class RecordColumns(msgspec.Struct, frozen=True, eq=False):
    """Records in offset order, a column per field."""

    offsets: Longs
    timestamps_ms: Longs
    timestamp_types: npt.NDArray[np.int8]
    """0: the producer's clock, 1: the broker's (`TimestampType`)."""
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn

    def __post_init__(self) -> None:
        columns = (self.timestamps_ms, self.timestamp_types, self.keys, self.values, self.headers)
        if {len(column) for column in columns} != {len(self.offsets)}:
            raise InvalidArgument("columns", "must have the same number of rows")

    def __len__(self) -> int:
        return len(self.offsets)

    def row_of(self, offset: int) -> int:
        """The first row at or after `offset`; len(self) if there is none."""
        return int(np.searchsorted(self.offsets, offset, side="left"))

    def from_row(self, row: int) -> RecordColumns:
        """The same without the rows before `row`; nothing is copied."""
        return RecordColumns(
            offsets=self.offsets[row:],
            timestamps_ms=self.timestamps_ms[row:],
            timestamp_types=self.timestamp_types[row:],
            keys=self.keys.from_row(row),
            values=self.values.from_row(row),
            headers=HeaderColumn(self.headers.offsets[row:], self.headers.keys, self.headers.values),
        )


def null_column(rows: int) -> BinaryColumn:
    return BinaryColumn(frozen(np.zeros(rows + 1, np.int32)), NOTHING, frozen(np.zeros((rows + 7) // 8, np.uint8)))


def no_headers(rows: int) -> HeaderColumn:
    nothing = BinaryColumn(frozen(np.zeros(1, np.int32)), NOTHING)
    return HeaderColumn(frozen(np.zeros(rows + 1, np.int32)), nothing, nothing)


def columns_from_rows(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header] | None] | None = None,
    timestamps_ms: int | Sequence[int] | Longs,
) -> RecordColumns:
    """Columns from Python rows; offsets count from 0. `timestamps_ms` is one for all or one per record."""
    rows = len(values)
    try:
        given = np.array(timestamps_ms, np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument("timestamps_ms", str(error)) from None
    timestamps = given if given.ndim else np.full(rows, given)
    for name, column in (("keys", keys), ("headers", headers), ("timestamps_ms", timestamps)):
        if column is not None and len(column) != rows:
            raise InvalidArgument(name, f"{len(column)} for {rows} values")
    return RecordColumns(
        offsets=frozen(np.arange(rows, dtype=np.int64)),
        timestamps_ms=frozen(timestamps),
        timestamp_types=frozen(np.zeros(rows, np.int8)),
        keys=null_column(rows) if keys is None else binary_column("keys", keys),
        values=binary_column("values", values),
        headers=no_headers(rows) if headers is None else _header_column(headers),
    )


def binary_column(name: str, rows: Sequence[bytes | None]) -> BinaryColumn:
    """A column of these byte strings; error messages use `name`."""
    validity = NOTHING
    try:
        data, lengths = _joined(rows)
    except TypeError:
        # Most columns have no nulls, and searching for nulls costs more than joining.
        valid = np.fromiter((row is not None for row in rows), np.bool_, len(rows))
        validity = frozen(np.packbits(valid, bitorder="little"))
        try:
            data, lengths = _joined([b"" if row is None else row for row in rows])
        except TypeError as error:
            raise InvalidArgument(name, str(error)) from None
    if int(lengths.sum()) != len(data):
        raise InvalidArgument(name, "a view of something other than bytes")
    if len(data) > BINARY_COLUMN_BYTES_MAX:
        raise ValueTooLarge(name, len(data), BINARY_COLUMN_BYTES_MAX)
    return BinaryColumn(_ends(lengths), np.frombuffer(data, np.uint8), validity)


def _joined(rows: Sequence[bytes | None]) -> tuple[bytes, Longs]:
    """Raises TypeError if a row is not bytes."""
    data = b"".join(rows)  # type: ignore[arg-type]
    return data, np.fromiter(map(len, rows), np.int64, len(rows))  # type: ignore[arg-type]


def _header_column(rows: Sequence[Sequence[Header] | None]) -> HeaderColumn:
    lists = [row or () for row in rows]
    try:
        flat = list(chain.from_iterable(lists))
        keys = [key.encode() for key, _ in flat]
        values = [value for _, value in flat]
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument("headers", f"each is a pair of text and bytes: {error}") from None
    offsets = _ends(np.fromiter(map(len, lists), np.int64, len(rows)))
    return HeaderColumn(offsets, binary_column("headers", keys), binary_column("headers", values))


def _ends(lengths: Longs) -> Ints:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return frozen(offsets)
