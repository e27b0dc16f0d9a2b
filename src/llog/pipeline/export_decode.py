"""Values of records as columns of a table: raw bytes, JSON or Avro; and what becomes of values that cannot be read.

    raw      key, value, topic, partition, offset, timestamp, timestampType, headers
    decoded  the same without `value`, then the schema's own columns; with `on_error` column also `_error`, `_raw_value`

What must stay true
- the columns and their types follow from the options alone, never from what the values hold;
- a record is never lost in silence. One whose value cannot be read is kept with its bytes and the reason, in the table
  (`column`) or in a file beside it (`quarantine`), or ends the export (`fail`);
- what is read does not depend on the neighbours: values are parsed in blocks, and where a block does not parse, its
  halves are, down to the single value that is to blame.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llog.errors import ExportFailed, InvalidArgument, ValueTooLarge
from llog.formats.arrow import SCHEMA
from llog.limits import EXPORT_ERROR_CHARS_MAX, EXPORT_SCHEMA_BYTES_MAX

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
    """The text of a JSON Schema or of an Avro schema."""
    on_error: OnError = "column"
    prefix: str = ""
    """In front of the names of the schema's columns."""

    def __post_init__(self) -> None:
        if len(self.schema) > EXPORT_SCHEMA_BYTES_MAX:
            raise ValueTooLarge("schema", len(self.schema), EXPORT_SCHEMA_BYTES_MAX)
        if (self.kind == "raw") != (self.schema == ""):
            needs = "raw values take no schema" if self.schema else f"{self.kind} values need one"
            raise InvalidArgument("schema", needs)


class Values(Protocol):
    """How the values of one kind are read."""

    fields: list[pa.Field]

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        """A row per value, none of which is null; `ValueError` where one of them cannot be read."""


class Decoded(NamedTuple):
    batch: pa.RecordBatch
    """Of the decoder's schema."""
    rejected: pa.RecordBatch | None
    """Of `QUARANTINE_SCHEMA`: what the batch does not hold."""
    bad_count: int


class Decoder:
    """Not for two threads at once."""

    def __init__(self, decoding: Decoding) -> None:
        self._on_error = decoding.on_error
        self._values = _values_of(decoding)
        if self._values is None:
            self.schema = SCHEMA
            return
        own = [field.with_name(decoding.prefix + field.name) for field in self._values.fields]
        errors = [pa.field(ERROR, pa.string()), pa.field(RAW_VALUE, pa.binary())] * (decoding.on_error == "column")
        # Spark and DuckDB do not tell `Key` from `key`.
        others = {field.name.lower() for field in (*ENVELOPE, *errors)}
        twice = next((field.name for field in own if field.name.lower() in others), None)
        if twice is not None:
            raise InvalidArgument("schema", f"column {twice!r} is there already; a prefix would tell them apart")
        self.schema = pa.schema([*ENVELOPE, *own, *errors])

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """A batch of records as rows of the table."""
        if self._values is None:
            return Decoded(batch, None, 0)
        parsed, errors = _parsed(self._values, batch["value"])
        if errors and self._on_error == "fail":
            first = min(errors)
            where = f"{batch['topic'][first]}:{batch['partition'][first]} offset {batch['offset'][first]}"
            raise ExportFailed(where, f"its value cannot be read: {errors[first]}")
        columns = [batch[field.name] for field in ENVELOPE] + parsed.flatten()
        bad = np.zeros(batch.num_rows, np.bool_)
        bad[list(errors)] = True
        told = pa.array([errors[row] for row in sorted(errors)], pa.string())
        if self._on_error == "column":
            columns += _spread(told, batch["value"].filter(pa.array(bad)), bad)
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if not errors or self._on_error == "column":
            return Decoded(rows, None, len(errors))
        rejected = [*batch.filter(pa.array(bad)).columns, told]
        return Decoded(
            rows.filter(pa.array(~bad)),
            pa.RecordBatch.from_arrays(rejected, schema=QUARANTINE_SCHEMA),
            len(errors),
        )


def _values_of(decoding: Decoding) -> Values | None:
    if decoding.kind == "raw":
        return None
    if decoding.kind == "json":
        from llog.pipeline.export_json import JsonValues

        return JsonValues(decoding.schema)
    from llog.pipeline.export_avro import AvroValues

    return AvroValues(decoding.schema, confluent=decoding.kind == "avro-confluent")


def _spread(errors: pa.Array, values: pa.Array, bad: Flags) -> list[pa.Array]:
    """Two columns: what belongs to the bad rows there, null elsewhere."""
    if not len(errors):
        return [pa.nulls(len(bad), pa.string()), pa.nulls(len(bad), pa.binary())]
    places = pa.array(np.cumsum(bad) - 1, mask=~bad)
    return [errors.take(places), values.take(places)]


def _parsed(values: Values, column: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
    """A row per value, nulls for tombstones and for values that cannot be read, and by row why they cannot."""
    there = np.flatnonzero(np.asarray(column.is_valid()))
    texts = column.drop_null() if column.null_count else column
    good, blocks = list[Longs](), list[pa.StructArray]()
    errors: dict[int, str] = {}
    left = [(0, len(texts))] if len(texts) else []
    while left:
        begin, end = left.pop()
        try:
            blocks.append(values.parse(texts[begin:end]))
            good.append(there[begin:end])
        except (ValueError, pa.ArrowException) as error:
            if end - begin == 1:
                errors[int(there[begin])] = str(error)[:EXPORT_ERROR_CHARS_MAX] or type(error).__name__
                continue
            middle = (begin + end) // 2
            left += [(middle, end), (begin, middle)]  # the lower half next: rows stay in order
    rows = pa.concat_arrays(blocks) if blocks else pa.array([], pa.struct(values.fields))
    if len(rows) == len(column):
        return rows, errors
    places = np.full(len(column), -1, np.int64)
    if good:
        places[np.concatenate(good)] = np.arange(len(rows))
    return rows.take(pa.array(places, mask=places < 0)), errors
