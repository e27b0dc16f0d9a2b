"""Random values of any message and version, made from the table of facts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from llog.kafka.codec.codec import classes_of
from llog.kafka.codec.table import FIXED, Field, Message, Struct, messages

INTEGERS = {"int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1)}
INTEGERS |= {"int64": (-(2**63), 2**63 - 1), "uint16": (0, 2**16 - 1), "uint32": (0, 2**32 - 1)}
TEXTS = ["", "a", "orders", "größe", "日本", "x" * 63, "x" * 126, "x" * 127, "y" * 300]

Choose = Callable[[random.Random, Field], Any]


def every_version() -> list[tuple[Message, int]]:
    return [(one, v) for one in messages().values() for v in range(one.versions.first, one.versions.last + 1)]


def class_of(message: Message) -> type[msgspec.Struct]:
    return classes_of(message)[message.name]


def any_value(rng: random.Random, field: Field) -> Any:
    """A value of a type that is no struct."""
    if field.type in INTEGERS:
        low, high = INTEGERS[field.type]
        return rng.choice([0, 1, -1 if low else 2, low, high, rng.randint(low, high), rng.randrange(100)])
    if field.type == "bool":
        return rng.random() < 0.5
    if field.type == "float64":
        return rng.choice([0.0, -1.5, 1e300, rng.random()])
    if field.type == "uuid":
        return rng.randbytes(16)
    if field.type == "string":
        return rng.choice(TEXTS)
    return rng.randbytes(rng.choice([0, 1, 5, 126, 127, 200, 2_000]))


def random_message(rng: random.Random, message: Message, version: int, choose: Choose = any_value) -> msgspec.Struct:
    """Fields that the version does not have keep their defaults."""
    classes = classes_of(message)

    def value(field: Field) -> Any:
        if version in field.nullable and rng.random() < 0.2:
            return None
        if field.tag is not None and rng.random() < 0.4:
            return None if field.default is None else getattr(_parent(classes, message.body, field)(), field.name)
        if field.array:
            return [element(field) for _ in range(rng.choice([0, 0, 1, 2, 3, 40 if field.type in FIXED else 4]))]
        return element(field)

    def element(field: Field) -> Any:
        return build(field.struct) if field.struct is not None else choose(rng, field)

    def build(struct: Struct) -> Any:
        fields = [*struct.at(version), *struct.tagged(version)]
        return classes[struct.name](**{field.name: value(field) for field in fields})

    built = build(message.body)
    assert isinstance(built, msgspec.Struct)
    return built


def _parent(classes: dict[str, type], struct: Struct, field: Field) -> type:
    (parent,) = (one for one in _structs(struct) if field in one.fields)
    return classes[parent.name]


def _structs(struct: Struct) -> Iterator[Struct]:
    yield struct
    for field in struct.fields:
        if field.struct is not None:
            yield from _structs(field.struct)
