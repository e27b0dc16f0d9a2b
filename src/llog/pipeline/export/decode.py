"""Values of records as columns of a table: raw bytes, JSON or Avro; and the handling of values that cannot be read.

    raw      key, value, topic, partition, offset, timestamp, timestampType, headers
    decoded  the same without `value`, then the schema's columns; with `on_error` column also `_error`, `_raw_value`

The columns and their types follow from the options alone, never from the values. A record with an unreadable value
is kept with its bytes and the reason, in the table (`column`) or in a separate file (`quarantine`), or ends the export
(`fail`). The result for a value does not depend on its neighbours: values are parsed in blocks; if a block does not
parse, each value is checked, and then the halves of the block are parsed, down to the single bad value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llog.errors import ExportFailed, InvalidArgument, ValueTooLarge
from llog.formats.arrow import SCHEMA
from llog.limits import EXPORT_SCHEMA_BYTES_MAX
from llog.pipeline.export.schema_ids import WriterSchemas, ids_in

# Characters kept of the reason why a value could not be decoded.
EXPORT_ERROR_CHARS_MAX: Final = 500

DecodeKind = Literal["raw", "json", "avro", "avro-confluent"]
OnError = Literal["column", "quarantine", "fail"]
Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
ERROR: Final = "_error"
RAW_VALUE: Final = "_raw_value"
ENVELOPE: Final = tuple(field for field in SCHEMA if field.name != "value")
QUARANTINE_SCHEMA: Final = pa.schema([*SCHEMA, pa.field(ERROR, pa.string())])


class Decoding(msgspec.Struct, frozen=True):
    kind: DecodeKind = "raw"
    schema: str = ""
    """The text of a JSON Schema or of an Avro schema: that of the columns. Empty for `avro-confluent` until it is known
    which of the registry's schemas that is."""
    on_error: OnError = "column"
    prefix: str = ""
    """Prepended to the names of the schema's columns."""
    references: tuple[str, ...] = ()
    """The texts of the Avro schemas that `schema` refers to."""

    def __post_init__(self) -> None:
        for name, given, known in (("decode", self.kind, DecodeKind), ("on_error", self.on_error, OnError)):
            if given not in get_args(known):
                raise InvalidArgument(name, f"{given!r} must be one of {', '.join(get_args(known))}")
        if len(self.schema) > EXPORT_SCHEMA_BYTES_MAX:
            raise ValueTooLarge("schema", len(self.schema), EXPORT_SCHEMA_BYTES_MAX)
        if self.kind != "avro-confluent" and (self.kind == "raw") != (self.schema == ""):
            needs = "raw values take no schema" if self.schema else f"{self.kind} values need a schema"
            raise InvalidArgument("schema", needs)


class Values(Protocol):
    """A reader of values of one kind."""

    fields: list[pa.Field]

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        """One row per value; no value is null. Raises `ValueError` if one of them cannot be read."""

    def refused(self, value: bytes) -> str | None:
        """Why the value is bad, if that is quickly found. `parse` or `checked` finds every such value too."""

    def checked(self, values: pa.BinaryArray, rows: pa.StructArray) -> dict[int, str]:
        """By row: why a value that was read is still not one of the schema."""


class DecodedBatch(NamedTuple):
    batch: pa.RecordBatch
    """With the decoder's schema."""
    rejected: pa.RecordBatch | None
    """With `QUARANTINE_SCHEMA`: the records that `batch` leaves out."""
    bad_count: int


class Decoder:
    """Decodes batches of records. Not thread-safe."""

    def __init__(self, decoding: Decoding, writers: WriterSchemas | None = None) -> None:
        self._on_error, self._writers = decoding.on_error, writers or WriterSchemas()
        self._framed = decoding.kind == "avro-confluent"
        self._values = _values_of(decoding, self._writers)
        if self._values is None:
            self.schema = SCHEMA
            return
        own = [field.with_name(decoding.prefix + field.name) for field in self._values.fields]
        errors = [pa.field(ERROR, pa.string()), pa.field(RAW_VALUE, pa.binary())] * (decoding.on_error == "column")
        # Spark and DuckDB ignore the case of column names.
        others = {field.name.lower() for field in (*ENVELOPE, *errors)}
        twice = next((field.name for field in own if field.name.lower() in others), None)
        if twice is not None:
            raise InvalidArgument("schema", f"column {twice!r} exists already; set a prefix for the schema's columns")
        _check_cases(own)
        self.schema = pa.schema([*ENVELOPE, *own, *errors])

    def schema_ids(self, batch: pa.RecordBatch) -> set[int]:
        """The schema ids that the values name; none if they are not of a kind that does."""
        return ids_in(batch["value"]) if self._framed else set()

    def decode(self, batch: pa.RecordBatch) -> DecodedBatch:
        """A batch of records as rows of the table."""
        if self._values is None:
            return DecodedBatch(batch, None, 0)
        parsed, errors = _parsed(self._values, batch["value"])
        if errors and self._on_error == "fail":
            first = min(errors)
            where = f"{batch['topic'][first]}:{batch['partition'][first]} offset {batch['offset'][first]}"
            raise ExportFailed(where, f"its value cannot be read: {errors[first]}")
        columns = [batch[field.name] for field in ENVELOPE] + parsed.flatten()
        bad = np.zeros(batch.num_rows, np.bool_)
        bad[list(errors)] = True
        reasons = pa.array([errors[row] for row in sorted(errors)], pa.string())
        if self._on_error == "column":
            columns += _spread(reasons, batch["value"].filter(pa.array(bad)), bad)
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if not errors or self._on_error == "column":
            return DecodedBatch(rows, None, len(errors))
        rejected = [*batch.filter(pa.array(bad)).columns, reasons]
        return DecodedBatch(
            rows.filter(pa.array(~bad)),
            pa.RecordBatch.from_arrays(rejected, schema=QUARANTINE_SCHEMA),
            len(errors),
        )


def _check_cases(fields: Iterable[pa.Field], place: str = "$") -> None:
    names: dict[str, str] = {}
    for field in fields:
        lower = field.name.lower()
        if lower in names:
            reason = f"{place}: {names[lower]!r} and {field.name!r} are the same column for Spark and DuckDB"
            raise InvalidArgument("schema", reason)
        names[lower] = field.name
        _check_cases(_members(field.type), f"{place}.{field.name}")


def _members(kind: pa.DataType) -> Iterable[pa.Field]:
    """The fields of a record, or of the records in a list or map."""
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return kind if pa.types.is_struct(kind) else ()


def _values_of(decoding: Decoding, writers: WriterSchemas) -> Values | None:
    if decoding.kind == "raw":
        return None
    if decoding.kind == "json":
        from llog.pipeline.export.json_values import JsonValues

        return JsonValues(decoding.schema)
    from llog.pipeline.export.avro import AvroValues

    if not decoding.schema:
        raise InvalidArgument("schema", "the schema of the columns is not known yet")
    by_id = writers if decoding.kind == "avro-confluent" else None
    return AvroValues(decoding.schema, decoding.references, writers=by_id)


def _spread(errors: pa.Array, values: pa.Array, bad: Flags) -> list[pa.Array]:
    """The columns `_error` and `_raw_value`: filled for the bad rows, null elsewhere."""
    if not len(errors):
        return [pa.nulls(len(bad), pa.string()), pa.nulls(len(bad), pa.binary())]
    places = pa.array(np.cumsum(bad) - 1, mask=~bad)
    return [errors.take(places), values.take(places)]


def _shortened(reason: str) -> str:
    return reason[:EXPORT_ERROR_CHARS_MAX]


def _parsed(values: Values, column: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
    """One row per value, null for tombstones and unreadable values; and the reasons by row."""
    valid = np.flatnonzero(np.asarray(column.is_valid()))
    texts = column.drop_null() if column.null_count else column
    good, blocks = list[Longs](), list[pa.StructArray]()
    errors: dict[int, str] = {}
    left = [(np.arange(len(texts)), False)] if len(texts) else []
    while left:
        places, sifted = left.pop()
        block = texts if len(places) == len(texts) else texts.take(pa.array(places))
        try:
            parsed = values.parse(block)
            reasons = values.checked(block, parsed)
            if reasons:
                errors |= {int(valid[places[row]]): _shortened(reason) for row, reason in reasons.items()}
                kept = np.delete(np.arange(len(places)), list(reasons))
                parsed, places = parsed.take(pa.array(kept)), places[kept]
            blocks.append(parsed)
            good.append(valid[places])
        except (ValueError, pa.ArrowException) as error:
            if not sifted:
                refused = {place: values.refused(value) for place, value in enumerate(block.to_pylist())}
                reasons = {place: reason for place, reason in refused.items() if reason is not None}
                errors |= {int(valid[places[place]]): _shortened(reason) for place, reason in reasons.items()}
                rest = np.delete(places, list(reasons))
                left += [(rest, True)] if len(rest) else []
            elif len(places) == 1:
                errors[int(valid[places[0]])] = _shortened(str(error) or type(error).__name__)
            else:
                middle = len(places) // 2
                left += [(places[middle:], True), (places[:middle], True)]  # the lower half next: rows stay in order
    rows = pa.concat_arrays(blocks) if blocks else pa.array([], pa.struct(values.fields))
    if len(rows) == len(column):
        return rows, errors
    places = np.full(len(column), -1, np.int64)
    if good:
        places[np.concatenate(good)] = np.arange(len(rows))
    return rows.take(pa.array(places, mask=places < 0)), errors
