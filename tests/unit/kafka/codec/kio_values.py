"""Our messages as kio's entities and back, for comparing the two codecs.

kio has a class per version with the same fields in the same order, so fields correspond by position. It gives some
numbers a type of their own: error codes, durations, points in time.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import uuid
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from kio.index import load_entity_module, load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from llog.kafka.codec.table import ZERO_UUID, Field, Message, Struct
from tests.unit.kafka.codec.random_messages import any_value

ERROR_CODES: Final = [code.value for code in ErrorCode]
MILLISECOND: Final = datetime.timedelta(milliseconds=1)
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@cache
def entity_class(message: Message, version: int) -> Any:
    """kio's class for a version of a message. Raises `kio.index.KioIndexError` if it has none."""
    kind = EntityType[message.kind]
    if message.key is None:
        module = load_entity_module(_kio_name(message), version, kind)  # type: ignore[arg-type]
    else:
        module = load_payload_module(message.key, version, kind)  # type: ignore[arg-type]
    return getattr(module, message.name)


def _kio_name(message: Message) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in message.name).removeprefix("_")


def kio_encode(entity: Any) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def kio_decode(entity: Any, data: bytes) -> Any:
    """Only for bytes that kio or we encoded: its native reader ends the process on hostile ones."""
    value, size = entity_reader(entity)(data, 0)
    assert size == len(data)
    return value


def chosen_for_kio(rng: random.Random, field: Field) -> Any:
    """A value that kio's types can express."""
    value = any_value(rng, field)
    if field.type == "int16" and field.name.endswith("error_code"):
        return rng.choice(ERROR_CODES)
    if field.type in ("int32", "int64") and field.name.endswith(("_ms", "timestamp")):
        return rng.choice([0, 1, rng.randrange(2**31)])
    return value


def to_entity(message: Message, version: int, value: msgspec.Struct) -> Any:
    return _entity(entity_class(message, version), message.body, version, value)


def _entity(entity: Any, struct: Struct, version: int, value: Any) -> Any:
    fields = [field for field in struct.fields if version in field.versions]
    theirs = dataclasses.fields(entity)
    assert len(fields) == len(theirs), f"{entity} has {[one.name for one in theirs]}"
    pairs = zip(fields, theirs, strict=True)
    return entity(**{their.name: _value(our, their, version, getattr(value, our.name)) for our, their in pairs})


def _value(field: Field, their: Any, version: int, value: Any) -> Any:
    if value is None:
        return None
    if field.struct is not None:
        entity = _plain_type(their.type)
        if field.array:
            return tuple(_entity(entity, field.struct, version, one) for one in value)
        return _entity(entity, field.struct, version, value)
    kind = their.metadata["kafka_type"]
    return tuple(_simple(kind, one) for one in value) if field.array else _simple(kind, value)


def _simple(kind: str, value: Any) -> Any:
    if kind == "uuid":
        return None if value == ZERO_UUID else uuid.UUID(bytes=value)
    if kind == "error_code":
        return ErrorCode(value)
    if kind.startswith("timedelta"):
        return value * MILLISECOND
    if kind.startswith("datetime"):
        return None if value == -1 else EPOCH + value * MILLISECOND
    return value


def _plain_type(kind: Any) -> Any:
    """The class in `tuple[C, ...]`, `C | None` or both."""
    while get_origin(kind) is not None or isinstance(kind, UnionType):
        if get_origin(kind) in (UnionType, Union):
            (kind,) = (one for one in get_args(kind) if one is not type(None))
        else:
            kind = get_args(kind)[0]
    return kind
