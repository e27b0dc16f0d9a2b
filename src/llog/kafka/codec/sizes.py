"""How small a struct can be on the wire, and how large in memory: what a count is checked against.

A count that lies is found by the first: its elements do not fit into the frame. A frame that is full of the smallest
elements is found by the second: 3 bytes can become a struct, a string and a view, which take 225.
"""

from __future__ import annotations

from typing import Final

from llog.kafka.codec.table import BUFFERS, FIXED, Field, Struct

# Sizes of objects in CPython, rounded up as its allocator does.
_STRUCT_BYTES: Final = 16
_LIST_BYTES: Final = 64
_SLOT_BYTES: Final = 8
_GROWING_SLOT_BYTES: Final = 10  # a list that grows has room for an eighth more
_VIEW_BYTES: Final = 192
_STRING_BYTES: Final = 64  # without the characters: these take up to 4 times their size in the frame
_NUMBER_BYTES: Final = {"bool": 0, "int8": 32, "uint32": 48, "int64": 48, "uuid": 64}


def least_bytes(struct: Struct, version: int, flexible: bool) -> int:
    """Bytes on the wire of the smallest value of a struct. Never 0."""
    size = 1 if flexible else 0
    for field in struct.at(version):
        size += _least_bytes_of(field, version, flexible)
    assert size, f"{struct.name} v{version} has no bytes"
    return size


def least_element_bytes(field: Field, version: int, flexible: bool) -> int:
    """The same for an element of an array."""
    if field.struct is not None:
        return least_bytes(field.struct, version, flexible)
    if field.type in FIXED:
        return FIXED[field.type][1]
    return 1 if flexible and not field.legacy else 2


def _least_bytes_of(field: Field, version: int, flexible: bool) -> int:
    compact = flexible and not field.legacy
    if field.array:
        return 1 if compact else 4
    if field.struct is not None:
        return 1 if version in field.nullable else least_bytes(field.struct, version, flexible)
    if field.type in FIXED:
        return FIXED[field.type][1]
    return 1 if compact else 2 if field.type == "string" else 4


def decoded_element_bytes(field: Field, version: int) -> int:
    """Memory of an element of an array, without the characters of its strings and the elements of its arrays."""
    if field.struct is None and field.type in FIXED:
        return 2 * _SLOT_BYTES + _simple_bytes(field.type)  # in the tuple that `struct` makes, and in the list
    return _GROWING_SLOT_BYTES + (_simple_bytes(field.type) if field.struct is None else _bytes(field.struct, version))


def _bytes(struct: Struct, version: int) -> int:
    size = _STRUCT_BYTES + _SLOT_BYTES * len(struct.fields)
    for field in struct.fields:
        if field.array:
            size += _LIST_BYTES  # also in versions without the field
        elif version in field.versions:
            size += _simple_bytes(field.type) if field.struct is None else _bytes(field.struct, version)
    return size


def _simple_bytes(kind: str) -> int:
    if kind in FIXED:
        return _NUMBER_BYTES.get(kind, 32)
    return _VIEW_BYTES if kind in BUFFERS else _STRING_BYTES
