"""How the columns of a target may change from export to export.

Columns may be added, also inside records, and may become wider in the ways that Iceberg allows: int32 to int64, float
to double, and more digits of a decimal. Files that exist stay as they are: a reader finds null in columns that were
added later, and widens numbers as it reads. Every other change would make such a reader fail or invent values, so it is
refused by the column's name before anything is written.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from llog.errors import ExportRefused
from llog.pipeline.export.decode import ERROR, RAW_VALUE

Columns = tuple[tuple[str, str], ...]
_ELSEWHERE: Final = "or export to another target"


def columns_of(schema: pa.Schema) -> Columns:
    """Names and types, for people and for comparison."""
    return tuple((field.name, str(field.type)) for field in schema)


def packed(schema: pa.Schema) -> str:
    """A schema as text that `unpacked` reads."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def unpacked(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def evolved(target: str, held: pa.Schema, wanted: pa.Schema, *, kept: Iterable[str] | None = None) -> pa.Schema:
    """The columns of the target once it holds records of `wanted` too. Raises `ExportRefused` naming the column.

    `kept`: the columns that an export must go on writing; all by default."""
    fields = {field.name: field for field in held}
    for name in fields if kept is None else kept:
        if name in fields and wanted.get_field_index(name) < 0:
            raise _removed(target, name, fields[name].type)
    return pa.schema(_merged(target, list(held), list(wanted), ""))


def _merged(target: str, held: list[pa.Field], wanted: list[pa.Field], place: str) -> list[pa.Field]:
    fields = {field.name: field for field in held}
    cases = {name.lower(): name for name in fields}
    for field in wanted:
        path, before = f"{place}{field.name}", fields.get(field.name)
        if before is not None:
            both = before.with_type(_wider(target, before.type, field.type, path))
            fields[field.name] = both.with_nullable(before.nullable or field.nullable)
            continue
        twin = cases.setdefault(field.name.lower(), field.name)
        if twin != field.name:
            reason = f"column {path} differs from its column {place}{twin} only in upper and lower case"
            raise ExportRefused(target, f"{reason}, which Spark and DuckDB ignore; rename it, {_ELSEWHERE}")
        fields[field.name] = field
    return list(fields.values())


def _wider(target: str, held: pa.DataType, wanted: pa.DataType, path: str) -> pa.DataType:
    """The type that holds values of both."""
    if pa.types.is_struct(held) and pa.types.is_struct(wanted):
        for field in held:
            if wanted.get_field_index(field.name) < 0:
                raise _removed(target, f"{path}.{field.name}", field.type)
        return pa.struct(_merged(target, list(held), list(wanted), f"{path}."))
    if _is_list(held) and _is_list(wanted):
        item = _wider(target, held.value_type, wanted.value_type, f"{path}[]")
        return pa.list_(held.value_field.with_type(item))
    if pa.types.is_map(held) and pa.types.is_map(wanted) and _plain(held.key_type) == _plain(wanted.key_type):
        return pa.map_(_plain(held.key_type), _wider(target, held.item_type, wanted.item_type, f"{path}{{}}"))
    held = _plain(held)
    if held == _plain(wanted) or _widens(held, wanted):
        return _plain(wanted)
    allowed = "only int32 → int64, float → double and more digits of a decimal are possible"
    reason = f"its column {path} is {held}, but the schema says {wanted}: {allowed}"
    raise ExportRefused(target, f"{reason}; undo that change of the schema, {_ELSEWHERE}")


def _widens(held: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_decimal128(held) and pa.types.is_decimal128(wanted):
        return bool(held.scale == wanted.scale and held.precision <= wanted.precision)
    return (held, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without differences that do not exist on disk."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _removed(target: str, path: str, kind: pa.DataType) -> ExportRefused:
    reason = f"its column {path} ({kind}) is not in the schema any more"
    hint = "keep it there, so that values without it give null (an Avro schema needs a default for that)"
    if path in (ERROR, RAW_VALUE):
        hint = "export with --on-error column as before"
    elif path == "value":
        hint = "export raw values as before"
    return ExportRefused(target, f"{reason}; {hint}, {_ELSEWHERE}")
