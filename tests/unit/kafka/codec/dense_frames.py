"""Frames whose decoded values are as large as possible: one array filled with the smallest elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from llog.kafka.codec import encode_bytes
from llog.kafka.codec.codec import classes_of
from llog.kafka.codec.sizes import least_element_bytes
from llog.kafka.codec.table import FIXED, Field, Message, Struct


def dense_frames(message: Message, version: int, frame_bytes: int) -> Iterator[tuple[Field, int, bytes]]:
    """For each array of a version: its field, a number of elements, and a frame of about `frame_bytes` full of them."""
    classes, flexible = classes_of(message), version in message.flexible

    def smallest(struct: Struct) -> msgspec.Struct:
        values: dict[str, Any] = {field.name: None for field in struct.at(version) if version in field.nullable}
        for field in struct.at(version):
            if field.struct is not None and not field.array and version not in field.nullable:
                values[field.name] = smallest(field.struct)
        value: msgspec.Struct = classes[struct.name](**values)
        return value

    def filled(struct: Struct) -> Iterator[tuple[Field, int, msgspec.Struct]]:
        """The struct with each array in it filled, one at a time."""
        for field in struct.at(version):
            if field.array:
                yield field, len(elements(field)), _with(smallest(struct), field, elements(field))
            if field.struct is not None:
                for dense, count, inner in filled(field.struct):
                    yield dense, count, _with(smallest(struct), field, [inner] if field.array else inner)

    def elements(field: Field) -> list[Any]:
        size = least_element_bytes(field, version, flexible)
        element: Any = smallest(field.struct) if field.struct is not None else ""
        if field.type in FIXED:
            element = 2 ** (8 * size - 1) - 1
        return [element] * (frame_bytes // size)

    for field, count, value in filled(message.body):
        yield field, count, encode_bytes(value, version)


def _with(value: msgspec.Struct, field: Field, content: Any) -> msgspec.Struct:
    return msgspec.structs.replace(value, **{field.name: content})
