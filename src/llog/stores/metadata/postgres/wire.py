"""PostgreSQL arrays in binary, built in one pass.

A call of `write` sends one array per column. psycopg's list adapter calls an adapter object for every element, which
costs more than the rest of the call; here a column is one join of buffers.
Format: dimensions, null flag, element type, count, lower bound, then per element a length (-1 = null) and the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import ClassVar, Final

import numpy as np
import psycopg
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEAD: Final = struct.Struct(">iiIii")
_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)
_LENGTHS: Final = [_LENGTH.pack(length) for length in range(512)]

_BYTEA, _BIGINT, _INTEGER, _TEXT = 17, 20, 23, 25


class WireArray:
    """An encoded array; subclasses set the element type."""

    __slots__ = ("data",)
    array_oid: ClassVar[int]

    def __init__(self, data: bytes) -> None:
        self.data = data


class TextArray(WireArray):
    __slots__ = ()
    array_oid = 1009


class ByteaArray(WireArray):
    __slots__ = ()
    array_oid = 1001


class BigintArray(WireArray):
    __slots__ = ()
    array_oid = 1016


class IntegerArray(WireArray):
    __slots__ = ()
    array_oid = 1007


def text_array(items: Sequence[str]) -> TextArray:
    return TextArray(_variable(_TEXT, [item.encode() for item in items]))


def bytea_array(items: Sequence[bytes | None]) -> ByteaArray:
    return ByteaArray(_variable(_BYTEA, items))


def _variable(oid: int, items: Sequence[bytes | None]) -> bytes:
    if not items:
        return _HEAD.pack(0, 0, oid, 0, 1)[:12]
    prefixes = [
        _NULL if item is None else _LENGTHS[len(item)] if len(item) < 512 else _LENGTH.pack(len(item)) for item in items
    ]
    bodies = [item or b"" for item in items]
    head = _HEAD.pack(1, int(any(item is None for item in items)), oid, len(items), 1)
    return b"".join(chain((head,), chain.from_iterable(zip(prefixes, bodies, strict=True))))


def integer_array(items: Sequence[int]) -> IntegerArray:
    cells = np.empty(len(items), dtype=[("length", ">i4"), ("value", ">i4")])
    cells["length"], cells["value"] = 4, items
    return IntegerArray(_fixed(_INTEGER, cells))


def bigint_array(items: Sequence[int | None]) -> BigintArray:
    if any(item is None for item in items):
        packed = [None if item is None else item.to_bytes(8, "big", signed=True) for item in items]
        return BigintArray(_variable(_BIGINT, packed))
    cells = np.empty(len(items), dtype=[("length", ">i4"), ("value", ">i8")])
    cells["length"], cells["value"] = 8, items
    return BigintArray(_fixed(_BIGINT, cells))


def _fixed(oid: int, cells: np.ndarray) -> bytes:
    if not len(cells):
        return _HEAD.pack(0, 0, oid, 0, 1)[:12]
    return _HEAD.pack(1, 0, oid, len(cells), 1) + cells.tobytes()


def _dumper(kind: type[WireArray]) -> type[Dumper]:
    class ArrayDumper(Dumper):
        format = Format.BINARY
        oid = kind.array_oid

        def dump(self, obj: WireArray) -> bytes:
            return obj.data

    return ArrayDumper


def adapters() -> AdaptersMap:
    """Register the adapters of these arrays on a connection."""
    known = AdaptersMap(psycopg.adapters)
    for kind in (TextArray, ByteaArray, BigintArray, IntegerArray):
        known.register_dumper(kind, _dumper(kind))
    return known
