"""JSON values as columns, by a JSON Schema (`json_schema`).

Arrow parses many values at a time: they are joined by newlines, and every value must become exactly one row. Arrow
reads objects wherever they begin, so two objects in one value, or one spread over two values, must not pass. Therefore
each value must begin with `{` and end with `}` (the next value cannot complete it, because it begins with `{` where a
comma would be needed), and there must be as many rows as values. Arrow reads no maps; objects that hold some are taken
apart first (`_map_column`).

Arrow is laxer than JSON and the schema: it takes NaN for a number, and a missing field for null. Rows where that may
matter are decoded a second time, by msgspec with the types of the schema; that takes about as long as Arrow does.

Every column is nullable, for tombstones and unreadable values. Timestamps have microseconds; finer digits are cut off.
A time without a zone is UTC. An integer may be written 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from llog.errors import InvalidArgument
from llog.pipeline.export.json_schema import JsonColumn, json_columns

_WHITESPACE: Final = b" \t\r\n"
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
# Arrow accepts NaN, Inf and Infinity as numbers, also in fields that it ignores.
_NOT_NUMBERS: Final = (b"NaN", b"Inf")
_NULL: Final = b"null"

Longs = npt.NDArray[np.int64]
Kinds = Callable[[pa.DataType], pa.DataType]
"""The type that Arrow reads for a column of a type."""


class JsonValues:
    """Built from the text of a JSON Schema; raises `InvalidArgument` naming the path that cannot be a column."""

    def __init__(self, schema_text: str) -> None:
        self._root = json_columns(schema_text)
        self.fields: list[pa.Field] = list(self._root.kind)
        self._sift = JsonSift(self._root)
        # Arrow cannot see other fields, and takes a text for a decimal number.
        self._sift_all = any(one.closed or pa.types.is_decimal(one.kind) for one in self._root.within())

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        if not _all_objects(values):
            values = pa.array([value.strip(_WHITESPACE) for value in values.to_pylist()], pa.binary())
            if not _all_objects(values):
                raise ValueError("not a JSON object")
        values.cast(pa.string())  # raises unless all are UTF-8
        try:
            return _rows(self._root, values, _read_kind)
        except pa.ArrowInvalid as error:
            # The lenient types take texts for numbers, so the types of all values must be known to be right.
            if any(self.refused(value) is not None for value in values.to_pylist()):
                raise
            try:
                return _rows(self._root, values, _lenient_kind)
            except pa.ArrowInvalid:
                raise error from None
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None

    def checked(self, values: pa.BinaryArray, rows: pa.StructArray) -> dict[int, str]:
        bad: dict[int, str] = {}
        doubtful = self._doubtful(values, rows)
        for row, value in zip(doubtful.tolist(), values.take(pa.array(doubtful)).to_pylist(), strict=True):
            reason = self.refused(value)
            if reason is not None:
                bad[row] = reason
        for place, array, of_rows in _places(self._root, rows, np.arange(len(rows))):
            for check in place.checks:
                for row in of_rows[check.violations(array)].tolist():
                    bad.setdefault(row, f"{place.place}: breaks {check.rule}")
        return bad

    def refused(self, value: bytes) -> str | None:
        stripped = value.strip(_WHITESPACE)
        if not (stripped.startswith(b"{") and stripped.endswith(b"}")):
            return "not a JSON object"
        return self._sift.refused(stripped)

    def _doubtful(self, values: pa.BinaryArray, rows: pa.StructArray) -> Longs:
        """Rows that Arrow may have read although they are not of the schema."""
        if self._sift_all:
            return np.arange(len(rows))
        doubtful, everything = np.zeros(len(rows), np.bool_), _text_of(values)
        for text in _NOT_NUMBERS:
            if text in everything:
                doubtful |= _matching(values, text)
        for place, array, of_rows in _places(self._root, rows, np.arange(len(rows))):
            for member, child in zip(place.inner(), _children(place, array), strict=True):
                # A field that is not required may be missing, but not be null.
                if child.null_count and (member.required or (not member.nullable and _NULL in everything)):
                    without = _rows_of(place, array, of_rows)[np.asarray(child.is_null())]
                    if not member.required:
                        without = without[_matching(values.take(pa.array(without)), _NULL)]
                    doubtful[without] = True
        return np.flatnonzero(doubtful)


def _text_of(values: pa.BinaryArray) -> bytes:
    """All values, one after the other: much faster to search than each."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    text: bytes = data.slice(ends[0], ends[-1] - ends[0]).to_pybytes()
    return text


def _matching(values: pa.BinaryArray, text: bytes) -> npt.NDArray[np.bool_]:
    """The values that contain the text."""
    flags: npt.NDArray[np.bool_] = pc.match_substring(values, text.decode()).to_numpy(zero_copy_only=False)
    return flags


# -- rows --------------------------------------------------------------------------------------------------------------


def _rows(place: JsonColumn, texts: pa.BinaryArray, kinds: Kinds) -> pa.StructArray:
    """Objects as rows: by Arrow, but for members that hold maps."""
    plain = [(name, member) for name, member in place.members if not _holds_map(member)]
    columns = _parsed(plain, texts, kinds) if plain else {}
    if len(plain) < len(place.members):
        objects = [_MEMBERS.decode(text) for text in texts.to_pylist()]
        for name, member in place.members:
            if name not in columns:
                columns[name] = _map_column(member, [one.get(name) for one in objects], kinds)
    return pa.StructArray.from_arrays([columns[name] for name, _ in place.members], fields=list(place.kind))


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def _holds_map(place: JsonColumn) -> bool:
    return any(pa.types.is_map(one.kind) for one in place.within())


def _map_column(place: JsonColumn, texts: Sequence[msgspec.Raw | None], kinds: Kinds) -> pa.Array:
    """The values of one place, each as its own text."""
    given = [None if text is None or bytes(text) == _NULL else bytes(text) for text in texts]
    null = np.array([text is None for text in given], np.bool_)
    if not given:
        return pa.array([], place.kind)
    if not _holds_map(place):
        lines = [b"{}" if text is None else b'{"v":%s}' % text for text in given]
        return _parsed([("v", place)], pa.array(lines, pa.binary()), kinds)["v"]
    if place.members:
        rows = _rows(place, pa.array([text or b"{}" for text in given], pa.binary()), kinds)
        return pa.StructArray.from_arrays(rows.flatten(), fields=list(place.kind), mask=pa.array(null))
    assert place.item is not None
    if pa.types.is_map(place.kind):
        maps = [{} if text is None else _MEMBERS.decode(text) for text in given]
        items = _map_column(place.item, [item for one in maps for item in one.values()], kinds)
        keys = pa.array([key for one in maps for key in one], pa.string())
        return pa.MapArray.from_arrays(_offsets(maps, null), keys, items, type=place.kind)
    lists = [[] if text is None else _ITEMS.decode(text) for text in given]
    items = _map_column(place.item, [item for one in lists for item in one], kinds)
    return pa.ListArray.from_arrays(_offsets(lists, null), items, type=place.kind)


def _offsets(containers: Sequence[Any], null: npt.NDArray[np.bool_]) -> pa.Array:
    """Where each container begins; null for one that is null."""
    ends = np.concatenate([[0], np.cumsum([len(one) for one in containers])]).astype(np.int32)
    return pa.array(ends, mask=np.append(null, False))


def _parsed(members: Sequence[tuple[str, JsonColumn]], texts: pa.BinaryArray, kinds: Kinds) -> dict[str, pa.Array]:
    """Columns of objects, by Arrow."""
    lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(lines, b"\n")[0].as_buffer()
    table = _read(joined, {name: kinds(member.kind) for name, member in members})
    if table.num_rows != len(texts):
        raise ValueError("more than one JSON object")
    return {name: _converted(table[name], member.kind) for name, member in members}


def _read(text: pa.Buffer, kinds: dict[str, pa.DataType]) -> pa.Table:
    parsing = pj.ParseOptions(
        explicit_schema=pa.schema(list(kinds.items())), unexpected_field_behavior="ignore", newlines_in_values=True
    )
    reading = pj.ReadOptions(block_size=text.size + 1, use_threads=False)
    table = pj.read_json(pa.BufferReader(text), read_options=reading, parse_options=parsing)
    table.validate(full=True)
    return table


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    whole = column.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return whole if whole.type == kind else pc.cast(whole, options=pc.CastOptions(kind, allow_time_truncate=True))


def _read_kind(kind: pa.DataType) -> pa.DataType:
    """The column's own, but for dates, which Arrow takes for a number of days."""
    return pa.string() if pa.types.is_date(kind) else _mapped(kind, _read_kind)


def _lenient_kind(kind: pa.DataType) -> pa.DataType:
    """For other ways to write a value: an integer as 1.0, a decimal with more zeros than its scale, a timestamp with
    digits beyond its unit. (Nanoseconds end in the year 2262, so they are not read always.)"""
    if pa.types.is_integer(kind):
        return pa.decimal128(38, 9)
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, 38 - kind.precision + kind.scale)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", tz=kind.tz)
    return pa.string() if pa.types.is_date(kind) else _mapped(kind, _lenient_kind)


def _mapped(kind: pa.DataType, change: Kinds) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)))
    return kind


def _all_objects(values: pa.BinaryArray) -> bool:
    """Every value begins with { and ends with }."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    if data is None or bool(np.any(ends[1:] - ends[:-1] < 2)):
        return False
    text = np.frombuffer(data, np.uint8)
    return bool(np.all(text[ends[:-1]] == _OPENING) and np.all(text[ends[1:] - 1] == _CLOSING))


# -- places in rows ----------------------------------------------------------------------------------------------------


def _places(place: JsonColumn, array: pa.Array, of_rows: Longs) -> Iterator[tuple[JsonColumn, pa.Array, Longs]]:
    """Every place, its values in an array without nulls at the containers, and the row of each."""
    yield place, array, of_rows
    if array.null_count and (place.members or place.item is not None):
        valid = np.asarray(array.is_valid())
        array, of_rows = array.filter(pa.array(valid)), of_rows[valid]
    for one, child in zip(place.inner(), _children(place, array), strict=True):
        yield from _places(one, child, _rows_of(place, array, of_rows))


def _children(place: JsonColumn, array: pa.Array) -> list[pa.Array]:
    """The values inside the containers that are not null."""
    if place.members:
        valid = array.filter(array.is_valid()) if array.null_count else array
        return list(valid.flatten())
    if place.item is None:
        return []
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    inner = array.items if pa.types.is_map(place.kind) else array.values
    return [inner.slice(first, last - first)]


def _rows_of(place: JsonColumn, array: pa.Array, of_rows: Longs) -> Longs:
    """The rows of the values inside."""
    if place.item is not None:
        repeated: Longs = np.repeat(of_rows, np.diff(array.offsets.to_numpy()))
        return repeated
    return of_rows[np.asarray(array.is_valid())] if array.null_count else of_rows


# -- single values -----------------------------------------------------------------------------------------------------

# Every text that Arrow accepts as a timestamp, or as a date, begins like this.
_INSTANT: Final = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}([T ]|$)")]
_DATE: Final = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
_WHOLE: Final = Annotated[float, msgspec.Meta(multiple_of=1.0)]
_INT64: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class JsonSift:
    """Finds values that do not have the types of a schema one by one, without parsing blocks with Arrow.

    Arrow reports that a block holds a bad value, not which one, and parsing a smaller block takes as long as a hundred
    values here: with a wrong type in half of ten million values, that took an hour. A value that the sift accepts may
    still be refused by Arrow.
    """

    def __init__(self, root: JsonColumn) -> None:
        self._decode = msgspec.json.Decoder(_kind_of(root)).decode

    def refused(self, value: bytes) -> str | None:
        """Why the value cannot be read; None if the sift finds nothing wrong."""
        try:
            self._decode(value)
            value.decode()  # msgspec does not look into fields that it ignores
        except msgspec.ValidationError as error:
            return str(error).replace("`int | float", "`int").replace("that's a multiple of 1.0", "without a fraction")
        except msgspec.DecodeError as error:
            return str(error)
        except UnicodeDecodeError:
            return "not UTF-8"
        except RecursionError:
            pass
        return None


def _kind_of(place: JsonColumn) -> Any:
    kind = _type_of(place)
    return kind | None if place.nullable else kind


def _type_of(place: JsonColumn) -> Any:
    match place.json_type:
        case "string" if pa.types.is_timestamp(place.kind):
            return _INSTANT
        case "string":
            return _DATE if pa.types.is_date(place.kind) else str
        case "integer":
            return (_INT64 if pa.types.is_integer(place.kind) else int) | _WHOLE
        case "number":
            return float
        case "boolean":
            return bool
        case "array":
            assert place.item is not None
            return list[_kind_of(place.item)]  # type: ignore[misc]
    if place.item is not None:
        return dict[str, _kind_of(place.item)]  # type: ignore[misc]
    members: list[Any] = []
    for number, (_, member) in enumerate(place.members):
        own = (f"f{number}", _kind_of(member))
        members.append(own if member.required else (*own, None))
    names = {f"f{number}": name for number, (name, _) in enumerate(place.members)}
    try:
        return msgspec.defstruct("Value", members, rename=names, kw_only=True, forbid_unknown_fields=place.closed)
    except ValueError:
        reason = "a property's name has a quote, a backslash or a control character"
        raise InvalidArgument("schema", f"{place.place}: {reason}") from None
