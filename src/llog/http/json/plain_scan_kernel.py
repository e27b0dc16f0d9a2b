"""The kernel that reads a plain produce request: where each topic, number and record lies in the body.

It returns REFUSED for anything it does not know exactly, wrong or only unusual (an escape in a string, a record with a
key, a number with a fraction, a name twice); then a JSON decoder reads the body and explains the error. So it must
never accept what the decoder would refuse. Every position is checked before it is read. Call it through `plain_scan`,
which states the measured gain.
"""

# Inside a kernel, numba infers the types of integers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from llog.formats.records.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

REFUSED = -1
NO_ROOM = -2
# Columns of the table of batches.
TOPIC_START = 0
TOPIC_END = 1
PARTITION = 2
PRODUCER_ID = 3
EPOCH = 4
SEQUENCE = 5
ROWS = 6
COLUMNS = 7
_ABSENT = -1
_DIGITS_MAX = 18

_LANES = 32
_SPACE = 0x20
_QUOTE = 0x22
_BACKSLASH = 0x5C
_COMMA = 0x2C
_COLON = 0x3A
_ZERO = 0x30
_NINE = 0x39


@intrinsic
def _marks(_context: Any, data: Any, at: Any) -> Any:
    """A bit for each of the 32 bytes at `at` that is a quote, a backslash, a control character or not ASCII."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        array, position = arguments
        lanes = ir.VectorType(ir.IntType(8), _LANES)
        pointer = builder.gep(context.make_array(data)(context, builder, array).data, [position])
        loaded = builder.load(builder.bitcast(pointer, lanes.as_pointer()), align=1)
        quotes, slashes, spaces = (ir.Constant(lanes, [byte] * _LANES) for byte in (_QUOTE, _BACKSLASH, _SPACE))
        found = builder.or_(builder.icmp_unsigned("==", loaded, quotes), builder.icmp_unsigned("==", loaded, slashes))
        # As a signed number, a byte that is not ASCII is negative.
        found = builder.or_(found, builder.icmp_signed("<", loaded, spaces))
        return builder.bitcast(found, ir.IntType(_LANES))

    return types.uint32(data, types.int64), emit


@intrinsic
def _first_bit(_context: Any, bits: Any) -> Any:
    """The index of the lowest set bit; at least one is set."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(1)), ir.IntType(64))

    return types.int64(types.uint32), emit


@inlined
def _skip_space(body: Bytes, at: int) -> int:
    while at < body.size and (body[at] == _SPACE or body[at] == 0x0A or body[at] == 0x0D or body[at] == 0x09):
        at += 1
    return at


@inlined
def _past(body: Bytes, at: int, wanted: int) -> int:
    """The position behind the character `wanted` and the white space around it; REFUSED when it is not there."""
    at = _skip_space(body, at)
    if at >= body.size or body[at] != wanted:
        return REFUSED
    return _skip_space(body, at + 1)


@inlined
def _text_end(body: Bytes, at: int, seen: Bytes) -> int:
    """The closing quote of the string that begins at `at` (behind its opening quote); REFUSED when it holds an escape.
    Sets `seen` when the string is not all ASCII."""
    while at + _LANES <= body.size:
        marks: Any = _marks(body, at)
        if marks == 0:
            at += _LANES
            continue
        at += _first_bit(marks)
        if body[at] == _QUOTE:
            return at
        if body[at] < 0x80:
            return REFUSED
        seen[0] = 1
        at += 1
    while at < body.size:
        byte = body[at]
        if byte == _QUOTE:
            return at
        if byte == _BACKSLASH or byte < _SPACE:
            return REFUSED
        if byte >= 0x80:
            seen[0] = 1
        at += 1
    return REFUSED


@inlined
def _number_end(body: Bytes, at: int) -> int:
    """The end of the digits that begin at `at`; REFUSED unless they are a JSON integer ≥ 0."""
    begin = at
    while at < body.size and _ZERO <= body[at] <= _NINE:
        at += 1
    if at == begin or at - begin > _DIGITS_MAX or (body[begin] == _ZERO and at - begin > 1):
        return REFUSED
    return at


@inlined
def _number(body: Bytes, begin: int, end: int) -> int:
    value = 0
    for at in range(begin, end):
        value = value * 10 + np.int64(body[at]) - _ZERO
    return value


@inlined
def _is(body: Bytes, begin: int, end: int, name: Bytes) -> bool:
    if end - begin != name.size:
        return False
    same = True
    for index in range(name.size):
        same = same and body[begin + index] == name[index]
    return same


@inlined
def _read_records(body: Bytes, at: int, row: int, starts: Longs, sizes: Longs, seen: Bytes) -> tuple[int, int]:
    """A list of at least one string: (position behind it, next row). The position is NO_ROOM when rows run out."""
    at = _past(body, at, 0x5B)
    if at == REFUSED:
        return REFUSED, row
    while True:
        if at >= body.size or body[at] != _QUOTE:
            return REFUSED, row
        if row >= starts.size:
            return NO_ROOM, row
        end = _text_end(body, at + 1, seen)
        if end == REFUSED:
            return REFUSED, row
        starts[row] = at + 1
        sizes[row] = end - at - 1
        row += 1
        at = _skip_space(body, end + 1)
        if at >= body.size:
            return REFUSED, row
        if body[at] == 0x5D:
            return at + 1, row
        if body[at] != _COMMA:
            return REFUSED, row
        at = _skip_space(body, at + 1)


@inlined
def _read_batch(
    body: Bytes,
    at: int,
    row: int,
    batch: Longs,
    starts: Longs,
    sizes: Longs,
    seen: Bytes,
    names: tuple[Bytes, ...],
) -> tuple[int, int]:
    """One object of the list: (position behind it, next row)."""
    topic, partition, records, producer_id, epoch, sequence = names
    for column in range(COLUMNS):
        batch[column] = _ABSENT
    at = _past(body, at, 0x7B)
    if at == REFUSED:
        return REFUSED, row
    while True:
        if at >= body.size or body[at] != _QUOTE:
            return REFUSED, row
        begin = at + 1
        end = _text_end(body, begin, seen)
        if end == REFUSED:
            return REFUSED, row
        at = _past(body, end + 1, _COLON)
        if at == REFUSED:
            return REFUSED, row
        column = _ABSENT
        if _is(body, begin, end, records):
            if batch[ROWS] != _ABSENT:
                return REFUSED, row
            first = row
            at, row = _read_records(body, at, row, starts, sizes, seen)
            if at < 0:
                return at, row
            batch[ROWS] = row - first
        elif _is(body, begin, end, topic):
            if batch[TOPIC_START] != _ABSENT or at >= body.size or body[at] != _QUOTE:
                return REFUSED, row
            batch[TOPIC_START] = at + 1
            at = _text_end(body, at + 1, seen)
            if at == REFUSED:
                return REFUSED, row
            batch[TOPIC_END] = at
            at += 1
        else:
            if _is(body, begin, end, partition):
                column = PARTITION
            elif _is(body, begin, end, producer_id):
                column = PRODUCER_ID
            elif _is(body, begin, end, epoch):
                column = EPOCH
            elif _is(body, begin, end, sequence):
                column = SEQUENCE
            if column == _ABSENT or batch[column] != _ABSENT:
                return REFUSED, row
            end = _number_end(body, at)
            if end == REFUSED:
                return REFUSED, row
            batch[column] = _number(body, at, end)
            at = end
        at = _skip_space(body, at)
        if at >= body.size:
            return REFUSED, row
        if body[at] == 0x7D:
            break
        if body[at] != _COMMA:
            return REFUSED, row
        at = _skip_space(body, at + 1)
    if batch[TOPIC_START] == _ABSENT or batch[PARTITION] == _ABSENT or batch[ROWS] == _ABSENT:
        return REFUSED, row
    return at + 1, row


@kernel
def scan_request(
    body: Bytes,
    batches: Longs,
    starts: Longs,
    sizes: Longs,
    seen: Bytes,
    outer: Bytes,
    topic: Bytes,
    partition: Bytes,
    records: Bytes,
    producer_id: Bytes,
    epoch: Bytes,
    sequence: Bytes,
) -> tuple[int, int]:
    """Fill the table of batches (see COLUMNS) and the start and size of each record; return (batches, records).

    `seen` is set when the body is not all ASCII; the caller checks that it is UTF-8. `batches` is REFUSED when the body
    is not plain or has more batches than the table, NO_ROOM when it has more records than `starts`.
    """
    names = (topic, partition, records, producer_id, epoch, sequence)
    row = 0
    count = 0
    at = _past(body, 0, 0x7B)
    if at == REFUSED or at >= body.size or body[at] != _QUOTE:
        return REFUSED, 0
    end = _text_end(body, at + 1, seen)
    if end == REFUSED or not _is(body, at + 1, end, outer):
        return REFUSED, 0
    at = _past(body, end + 1, _COLON)
    if at == REFUSED:
        return REFUSED, 0
    at = _past(body, at, 0x5B)
    if at == REFUSED:
        return REFUSED, 0
    while True:
        if count >= batches.shape[0]:
            return REFUSED, 0
        at, row = _read_batch(body, at, row, batches[count], starts, sizes, seen, names)
        if at < 0:
            return at, 0
        count += 1
        at = _skip_space(body, at)
        if at >= body.size:
            return REFUSED, 0
        if body[at] == 0x5D:
            break
        if body[at] != _COMMA:
            return REFUSED, 0
        at = _skip_space(body, at + 1)
    at = _past(body, at + 1, 0x7D)
    if at == REFUSED or at != body.size:
        return REFUSED, 0
    return count, row
