"""The options and columns of a write, checked before anything is written.

`topic` is named as in Spark's Kafka sink; `queryId`, `batchId`, `compression`, `blobBytes` and `llog.…` are ours. An
option `llog.metadata.url` is the setting LLOG_METADATA_URL; the environment supplies the rest. An unknown or invalid
option or column is an error that names it. Options accept no secret, because Spark shows them in its plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from llog.errors import InvalidArgument
from llog.limits import GIB, SINK_BLOB_BYTES
from llog.log.keys import OFFSET_MAX, check_topic
from llog.pipeline.sink.task import codec_of
from llog.settings import Settings
from llog.spark.source.options import (
    HOW_TO_WRITE,
    SETTINGS_PREFIX,
    WRITING,
    close_to,
    external_name,
    setting_of,
    size_of,
    stripped,
)
from llog.spark.source.options import (
    OPTIONS as READING,
)

# The rows of a blob are one Arrow column, which has 32-bit offsets.
SINK_BLOB_BYTES_MAX: Final = GIB
# Options that Spark passes to every sink.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})

_TEXT: Final[tuple[type[DataType], ...]] = (StringType, BinaryType)
_COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType, TimestampNTZType),
}
_HEADERS: Final = "array<struct<key:string,value:binary>>"
# Columns of a table that was read from a log; written records get new ones.
_LEFT_ASIDE: Final = frozenset({"offset", "timestampType"})


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's plans contain the options, so they hold no secret."""

    topic: str | None = None
    query: str | None = None
    """Identifies repeated batches; None: not given."""
    batch: int = 0
    compression: str = "none"
    blob_bytes: int = SINK_BLOB_BYTES
    settings: dict[str, str] = {}
    none: bool = False
    """No option was given."""

    def settings_in_force(self) -> Settings:
        return Settings.from_env(None, **self.settings)


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """`given` has names in any case, as Spark passes them. Raises `InvalidArgument` naming the option."""
    lowered = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS}
    settings = dict(setting_of(name, value) for name, value in lowered.items() if name.startswith(SETTINGS_PREFIX))
    texts = {}
    for name, value in lowered.items():
        if name in WRITING:
            texts[WRITING[name]] = stripped(WRITING[name], value)
        elif not name.startswith(SETTINGS_PREFIX):
            raise InvalidArgument(name, _unknown(name))
    if "batchId" in texts and (streaming or "queryId" not in texts):
        reason = "a stream numbers its own batches; remove the option" if streaming else "needs the option queryId"
        raise InvalidArgument("batchId", reason)
    compression = texts.get("compression", "none").lower()
    codec_of(compression)
    return SinkOptions(
        topic=check_topic(texts["topic"]) if "topic" in texts else None,
        query=external_name("queryId", texts["queryId"]) if "queryId" in texts else None,
        batch=_number("batchId", texts.get("batchId", "0")),
        compression=compression,
        blob_bytes=_blob_bytes(texts["blobBytes"]) if "blobBytes" in texts else SINK_BLOB_BYTES,
        settings=settings,
        none=not lowered,
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises `InvalidArgument` naming the column."""
    names = [field.name for field in schema.fields]
    if "value" not in names:
        raise InvalidArgument("value", f"the table has no such column; it has {', '.join(names) or 'none'}")
    if options.topic is None and "topic" not in names:
        # Spark passes no options of CREATE TABLE AS SELECT, nor of a table that rows are inserted into.
        hint = f"; Spark passes no options of a table: {HOW_TO_WRITE}" if options.none else ""
        raise InvalidArgument("topic", f"set the option topic, or give the rows a column topic{hint}")
    for field in schema.fields:
        if field.name not in _LEFT_ASIDE:
            _check_column(field)


def _check_column(field: StructField) -> None:
    if field.name == "headers":
        fits, wanted = _is_headers(field.dataType), _HEADERS
    elif field.name in _COLUMNS:
        fits = isinstance(field.dataType, _COLUMNS[field.name])
        wanted = " or ".join(kind.typeName() for kind in _COLUMNS[field.name])
    else:
        known = [*_COLUMNS, "headers"]
        close = get_close_matches(field.name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InvalidArgument(field.name, f"is not a column of a record; the columns are {', '.join(known)}{hint}")
    if isinstance(field.dataType, NullType) and field.name not in ("value", "topic"):
        return
    if not fits:
        raise InvalidArgument(field.name, f"the column is {field.dataType.simpleString()}, but must be {wanted}")


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    names, kinds = [field.name for field in fields], [type(field.dataType) for field in fields]
    return names == ["key", "value"] and kinds == [StringType, BinaryType]


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) > OFFSET_MAX:
        raise InvalidArgument(name, f"{text!r} must be a number from 0 to {OFFSET_MAX}")
    return int(text)


def _blob_bytes(text: str) -> int:
    size = size_of("blobBytes", text)
    if size > SINK_BLOB_BYTES_MAX:
        raise InvalidArgument("blobBytes", f"{text} is more than {SINK_BLOB_BYTES_MAX} bytes")
    return size


def _unknown(name: str) -> str:
    if name.startswith("kafka."):
        return "is for Kafka brokers; llog writes to the object store: name the cluster by llog.metadata.url"
    if name == "path":
        return "save() and start() take no path; set the option topic, or give the rows a column topic"
    if name in READING:
        return "is an option of reads; name the target by topic"
    return f"is not an option of the sink llog{close_to(name, WRITING)}"
