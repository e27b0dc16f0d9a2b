"""The schema ids in values, and the schemas that they name.

A value in Confluent's form begins with a zero byte and, in four bytes, the id of the Avro schema it was written with. A
registry, or a directory with a file per id, has the schemas. Only the driver asks it: a task that meets an id it has no
answer for writes nothing and reports the id; the driver looks it up, once, and runs the task again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from llog.errors import ExportFailed
from llog.limits import MIB

SCHEMA_ID_BYTES: Final = 5
# Ids that are looked up for one commit, and the bytes of the schemas that its tasks carry.
EXPORT_SCHEMA_IDS_MAX: Final = 1_000
EXPORT_WRITER_SCHEMAS_BYTES_MAX: Final = 8 * MIB


class WriterSchemas(msgspec.Struct, frozen=True):
    """What is known of schema ids. Part of a plan: a value is good or bad by this alone, whoever finishes the plan."""

    found: dict[int, tuple[str, ...]] = {}
    """By id: the texts of the schemas that it refers to, each after those that it needs itself, then its own."""
    missing: dict[int, str] = {}
    """By id: why there is no schema."""
    full: bool = False
    """There are too many ids; no more are looked up."""

    def unknown(self, ids: Iterable[int]) -> list[int]:
        """The ids that must be looked up, lowest first."""
        if self.full:
            return []
        return sorted(one for one in ids if one not in self.found and one not in self.missing)

    def reason(self, schema_id: int) -> str:
        """Why a value with this id has no schema."""
        many = f"was not looked up: the values name more than {EXPORT_SCHEMA_IDS_MAX} ids"
        return f"schema id {schema_id} {self.missing.get(schema_id, many)}"

    def merged(self, other: WriterSchemas, target: str) -> WriterSchemas:
        """Both; of two answers for an id the one of `self`. Raises `ExportFailed` for too many bytes."""
        found = {**{one: texts for one, texts in other.found.items() if one not in self.missing}, **self.found}
        missing = {**other.missing, **self.missing}
        byte_length = sum(len(text) for texts in found.values() for text in texts)
        if byte_length > EXPORT_WRITER_SCHEMAS_BYTES_MAX:
            reason = (
                f"the schemas of its values have {byte_length:,} bytes, more than {EXPORT_WRITER_SCHEMAS_BYTES_MAX:,}"
            )
            raise ExportFailed(target, f"{reason}; export the raw values")
        return WriterSchemas(
            found, {one: why for one, why in missing.items() if one not in found}, self.full or other.full
        )


def ids_in(values: pa.Array) -> set[int]:
    """The distinct schema ids of the values that begin with one."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return set()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    starts = ends[:-1][(ends[1:] - ends[:-1]) >= SCHEMA_ID_BYTES]
    text = np.frombuffer(data, np.uint8)
    starts = starts[text[starts] == 0]
    four = text[starts[:, None] + np.arange(1, SCHEMA_ID_BYTES)]
    ids: set[int] = set(np.unique(np.ascontiguousarray(four).view(">u4")).tolist())
    return ids
