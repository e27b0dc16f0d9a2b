"""Kernels that write records as the JSON of an answer: {"offset":7,"payload":"…"}, with commas between.

`show_batches` reads record batches, `show_columns` decoded columns. Both write payloads that are text and stop at
anything else, and where `output` is full; then msgspec encodes the records. Text means the same as in `consume_answer`,
and is escaped as msgspec escapes it. Call them through `consume_answer`, which states the measured gain.
"""

# Inside a kernel, numba infers the types of integers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import copy_bytes, inlined, kernel, load_word, low_zeros

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

NOT_SHOWN = -1

_ZERO = 0x30
_COMMA = 0x2C
_QUOTE = 0x22
_BACKSLASH = 0x5C
_SPACE = 0x20
_DELETE = 0x7F
_TAB = 0x09
_LINE_FEED = 0x0A
_CARRIAGE_RETURN = 0x0D
_DIGITS_MAX = 19

# Positions in a RecordBatch.
_LENGTH_AT = 8
_LENGTH_END = 12
_ATTRIBUTES_AT = 21
_LAST_DELTA_AT = 23
_COUNT_AT = 57
_HEADER = 61
# Not compressed, not transactional, not a control batch, and with one timestamp for all records.
_BARE_ATTRIBUTES = 0x08

# Eight bytes at once: a bit of `_TOPS` is set where a byte matches.
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_SPACES = np.uint64(_SPACE) * _ONES
_QUOTES = np.uint64(_QUOTE) * _ONES
_BACKSLASHES = np.uint64(_BACKSLASH) * _ONES
_DELETES = np.uint64(_DELETE) * _ONES


@inlined
def _unlike(word: np.uint64) -> np.uint64:
    """0 when JSON shows all eight bytes unchanged (printable ASCII but quote and backslash). Otherwise the lowest set
    bit is in the first byte that JSON does not; higher bits mean nothing."""
    quote, backslash, delete = word ^ _QUOTES, word ^ _BACKSLASHES, word ^ _DELETES
    found = ((word - _SPACES) & ~word) | ((quote - _ONES) & ~quote)
    found |= ((backslash - _ONES) & ~backslash) | ((delete - _ONES) & ~delete) | word
    return found & _TOPS


@inlined
def _text_bytes(data: Bytes, at: int, end: int) -> int:
    """The length of the UTF-8 character at `at` outside ASCII; 0 when it is not valid."""
    lead = np.int64(data[at])
    if lead < 0xC2 or lead > 0xF4:
        return 0
    more = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
    if at + more >= end:
        return 0
    second = np.int64(data[at + 1])
    low = 0xA0 if lead == 0xE0 else (0x90 if lead == 0xF0 else 0x80)
    high = 0x9F if lead == 0xED else (0x8F if lead == 0xF4 else 0xBF)
    if second < low or second > high:
        return 0
    for place in range(2, more + 1):
        if data[at + place] & 0xC0 != 0x80:
            return 0
    return 1 + more


@inlined
def _escape(byte: int) -> int:
    """The byte behind the backslash; 0 for a byte that is not text."""
    if byte in (_QUOTE, _BACKSLASH):
        return byte
    if byte == _LINE_FEED:
        return 0x6E
    if byte == _TAB:
        return 0x74
    if byte == _CARRIAGE_RETURN:
        return 0x72
    return 0


@inlined
def _unchanged_until(data: Bytes, at: int, end: int) -> int:
    """The end of the bytes that JSON shows unchanged; NOT_SHOWN at a broken character."""
    while at < end:
        if at + 8 <= end:
            unlike = _unlike(load_word(data, at))
            if unlike == np.uint64(0):
                at += 8
                continue
            at += low_zeros(unlike) >> 3
        byte = data[at]
        if byte >= 0x80:
            size = _text_bytes(data, at, end)
            if size == 0:
                return NOT_SHOWN
            at += size
        elif byte < _SPACE or byte in (_QUOTE, _BACKSLASH, _DELETE):
            return at
        else:
            at += 1
    return at


@inlined
def _put_text(output: Bytes, at: int, data: Bytes, begin: int, end: int) -> int:
    while True:
        stop = _unchanged_until(data, begin, end)
        if stop < 0 or stop - begin > output.size - at:
            return NOT_SHOWN
        copy_bytes(output, at, data, begin, stop - begin)
        at += stop - begin
        if stop == end:
            return at
        escape = _escape(np.int64(data[stop]))
        if escape == 0 or output.size - at < 2:
            return NOT_SHOWN
        output[at] = _BACKSLASH
        output[at + 1] = escape
        at += 2
        begin = stop + 1


@inlined
def _put_digits(output: Bytes, at: int, value: int) -> int:
    """`value` is not negative."""
    digits = 1
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    for place in range(digits):
        output[at + digits - 1 - place] = np.uint8(_ZERO + value % 10)
        value //= 10
    return at + digits


@inlined
def _put_record(
    output: Bytes, at: int, first: bool, offset: int, data: Bytes, begin: int, end: int, frame: tuple[Bytes, ...]
) -> int:
    """`frame`: the text before the offset, between offset and payload, and behind the payload."""
    before, between, behind = frame
    if output.size - at < 1 + before.size + _DIGITS_MAX + between.size:
        return NOT_SHOWN
    if not first:
        output[at] = _COMMA
        at += 1
    copy_bytes(output, at, before, 0, before.size)
    at = _put_digits(output, at + before.size, offset)
    copy_bytes(output, at, between, 0, between.size)
    at = _put_text(output, at + between.size, data, begin, end)
    if at < 0 or output.size - at < behind.size:
        return NOT_SHOWN
    copy_bytes(output, at, behind, 0, behind.size)
    return at + behind.size


@kernel
def show_columns(
    output: Bytes, at: int, first: bool, offsets: Longs, bounds: Ints, data: Bytes, frame: tuple[Bytes, ...]
) -> int:
    """The end of the text that begins at `at`, or NOT_SHOWN. Row i's payload is data[bounds[i] : bounds[i + 1]]."""
    for row in range(offsets.size):
        begin, end = np.int64(bounds[row]), np.int64(bounds[row + 1])
        at = _put_record(output, at, first, offsets[row], data, begin, end, frame)
        if at < 0:
            return NOT_SHOWN
        first = False
    return at


@inlined
def _number(data: Bytes, at: int, size: int) -> int:
    """Big-endian; unsigned unless it has eight bytes."""
    value = np.int64(0)
    for place in range(size):
        value = (value << 8) | np.int64(data[at + place])
    return value


@inlined
def _varint(data: Bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    """(value, position behind it); the position is -1 when the number reaches `end` or has more than `bits`."""
    raw, shift = np.int64(0), 0
    while at < end:
        byte = np.int64(data[at])
        room = bits - shift
        if room < 7 and byte >> room != 0:
            return 0, -1
        raw |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), at
        shift += 7
    return 0, -1


@kernel
def show_batches(
    output: Bytes, at: int, first: bool, data: Bytes, from_offset: int, frame: tuple[Bytes, ...]
) -> tuple[int, int]:
    """(end of the text that begins at `at`, records shown) for the records from `from_offset` on, or (NOT_SHOWN, 0)."""
    shown, position = 0, 0
    while position < data.size:
        if data.size - position < _HEADER:
            return NOT_SHOWN, 0
        size = _LENGTH_END + _number(data, position + _LENGTH_AT, 4)
        count = _number(data, position + _COUNT_AT, 4)
        last_delta = _number(data, position + _LAST_DELTA_AT, 4)
        bare = _number(data, position + _ATTRIBUTES_AT, 2) == _BARE_ATTRIBUTES
        if not bare or size < _HEADER or size > data.size - position:
            return NOT_SHOWN, 0
        base_offset, end = _number(data, position, 8), position + size
        position += _HEADER
        previous = -1
        for _ in range(count):
            length, begin = _varint(data, position, end, 32)
            if begin < 0 or length < 1 or length > end - begin:
                return NOT_SHOWN, 0
            position = begin + length
            _, begin = _varint(data, begin + 1, position, 64)
            if begin < 0:
                return NOT_SHOWN, 0
            delta, begin = _varint(data, begin, position, 32)
            if begin < 0 or delta <= previous or delta > last_delta:
                return NOT_SHOWN, 0
            previous = delta
            key_bytes, begin = _varint(data, begin, position, 32)
            if begin < 0 or key_bytes != -1:
                return NOT_SHOWN, 0
            value_bytes, begin = _varint(data, begin, position, 32)
            # Nothing may follow the payload but the number of headers, 0.
            if begin < 0 or value_bytes < 0 or value_bytes != position - begin - 1 or data[position - 1] != 0:
                return NOT_SHOWN, 0
            if base_offset + delta < from_offset:
                continue
            at = _put_record(output, at, first, base_offset + delta, data, begin, position - 1, frame)
            if at < 0:
                return NOT_SHOWN, 0
            first = False
            shown += 1
        if position != end:
            return NOT_SHOWN, 0
    return at, shown
