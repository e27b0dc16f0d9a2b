"""The kernel that looks for what a JSON decoder accepts silently or explains badly: a key twice in one object, and half
of a surrogate pair.

It follows the structure of a body without checking it, so it is exact for JSON, and for anything else it only stays
inside the buffer. Keys are compared as text, with their escapes resolved. The keys of an object are compared with each
other one by one while they are few, and by their hashes otherwise; the hash is seeded, so that a client cannot choose
keys that collide. Call it through `body_check`.
"""

# Inside a kernel, numba infers the types of integers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import copy_bytes, inlined, kernel, load_word, low_zeros

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

# What was found.
NOTHING = 0
DUPLICATE = 1
LONE_SURROGATE = 2

# Columns of a frame, which is an object or a list that the position is inside of.
IS_LIST = 0
INDEX = 1
"""Of the element in the list."""
KEY_BEGIN = 2
"""Of the last key of the object: its text between the quotes."""
KEY_END = 3
EXPECTS_KEY = 4
FIRST_KEY = 5
"""The number of the object's first key among the keys that are kept."""
FRAME_COLUMNS = 6

# Columns of a kept key: its text with escapes resolved, in the buffer of texts, and its place in the body.
_TEXT_BEGIN = 0
_TEXT_END = 1
_BODY_BEGIN = 2
_BODY_END = 3
_KEY_COLUMNS = 4

# Up to this many keys of an object are compared one by one.
_FEW_KEYS = 16

_QUOTE = 0x22
_BACKSLASH = 0x5C
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(_QUOTE) * _ONES
_BACKSLASHES = np.uint64(_BACKSLASH) * _ONES


@inlined
def _plain_end(body: Bytes, at: int) -> int:
    """The next quote or backslash from `at` on, or the end of the body."""
    while at + 8 <= body.size:
        word: Any = load_word(body, at)
        quote, backslash = word ^ _QUOTES, word ^ _BACKSLASHES
        found = (((quote - _ONES) & ~quote) | ((backslash - _ONES) & ~backslash)) & _TOPS
        if found != np.uint64(0):
            return at + (low_zeros(found) >> 3)
        at += 8
    while at < body.size and body[at] != _QUOTE and body[at] != _BACKSLASH:
        at += 1
    return at


@inlined
def _unit(body: Bytes, at: int) -> int:
    """The number of the escape `\\uXXXX` that begins at `at`; -1 when there is none."""
    if at + 6 > body.size or body[at] != _BACKSLASH or body[at + 1] != 0x75:
        return -1
    value = np.int64(0)
    for place in range(at + 2, at + 6):
        digit = np.int64(body[place])
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x41 <= (digit & 0xDF) <= 0x46:
            digit = (digit & 0xDF) - 0x37
        else:
            return -1
        value = value * 16 + digit
    return value


@inlined
def _put_point(texts: Bytes, at: int, point: int) -> int:
    """Write a character as UTF-8; returns the position behind it."""
    if point < 0x80:
        texts[at] = point
        return at + 1
    if point < 0x800:
        texts[at] = 0xC0 | (point >> 6)
        texts[at + 1] = 0x80 | (point & 0x3F)
        return at + 2
    if point < 0x10000:
        texts[at] = 0xE0 | (point >> 12)
        texts[at + 1] = 0x80 | ((point >> 6) & 0x3F)
        texts[at + 2] = 0x80 | (point & 0x3F)
        return at + 3
    texts[at] = 0xF0 | (point >> 18)
    texts[at + 1] = 0x80 | ((point >> 12) & 0x3F)
    texts[at + 2] = 0x80 | ((point >> 6) & 0x3F)
    texts[at + 3] = 0x80 | (point & 0x3F)
    return at + 4


@inlined
def _short_escape(letter: int) -> int:
    """What `\\n` and the like stand for."""
    if letter == 0x6E:
        return 0x0A
    if letter == 0x74:
        return 0x09
    if letter == 0x72:
        return 0x0D
    if letter == 0x62:
        return 0x08
    if letter == 0x66:
        return 0x0C
    return letter


@inlined
def _read_text(body: Bytes, at: int, texts: Bytes, used: int, keep: bool) -> tuple[int, int, int]:
    """Read the string that begins at `at`, behind its quote: (its closing quote, the end of its text in `texts`, the
    place of a lone surrogate or -1). A text is never longer than its JSON. Without `keep` no text is written."""
    while True:
        end = _plain_end(body, at)
        if keep:
            copy_bytes(texts, used, body, at, end - at)
            used += end - at
        at = end
        if at + 1 >= body.size or body[at] == _QUOTE:
            return min(at, body.size), used, -1
        unit = _unit(body, at)
        if unit < 0:
            if keep:
                texts[used] = _short_escape(np.int64(body[at + 1]))
                used += 1
            at += 2
            continue
        point, size = unit, 6
        if 0xD800 <= unit < 0xE000:
            low = _unit(body, at + 6)
            if unit >= 0xDC00 or not 0xDC00 <= low < 0xE000:
                return at, used, at
            point, size = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 12
        if keep:
            used = _put_point(texts, used, point)
        at += size


@inlined
def _is_same(texts: Bytes, keys: Longs, one: int, other: int) -> bool:
    begin, size = keys[one, _TEXT_BEGIN], keys[one, _TEXT_END] - keys[one, _TEXT_BEGIN]
    other_begin = keys[other, _TEXT_BEGIN]
    if keys[other, _TEXT_END] - other_begin != size:
        return False
    same = True
    for place in range(size):
        same = same and texts[begin + place] == texts[other_begin + place]
    return same


@inlined
def _hash(texts: Bytes, begin: int, end: int, seed: np.uint64) -> np.uint64:
    value = seed
    for place in range(begin, end):
        value = (value ^ np.uint64(texts[place])) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
    return value


@kernel
def _duplicate_of_many(texts: Bytes, keys: Longs, first: int, stop: int, seed: np.uint64) -> int:
    """The later one of two keys that are the same among `first` … `stop` - 1; -1 when there are none."""
    hashes = np.empty(stop - first, np.uint64)
    for number in range(first, stop):
        hashes[number - first] = _hash(texts, keys[number, _TEXT_BEGIN], keys[number, _TEXT_END], seed)
    order = np.argsort(hashes)
    begin = 0
    for place in range(1, order.size + 1):
        if place < order.size and hashes[order[place]] == hashes[order[begin]]:
            continue
        for one in range(begin, place):
            for other in range(one + 1, place):
                if _is_same(texts, keys, first + order[one], first + order[other]):
                    return int(first + max(order[one], order[other]))
        begin = place
    return -1


@kernel
def find(body: Bytes, frames: Longs, seed: np.uint64) -> tuple[int, int, int]:
    """(what was found first, its position, the number of `frames` that lead to it).

    A body that is nested deeper than there are frames counts as one without faults: no request is.
    """
    texts = np.empty(body.size, np.uint8)
    keys = np.empty((4 * _FEW_KEYS, _KEY_COLUMNS), np.int64)
    depth, key_count, used, at = 0, 0, 0, 0
    while at < body.size:
        byte = body[at]
        at += 1
        if byte == _QUOTE:
            is_key = depth > 0 and frames[depth - 1, IS_LIST] == 0 and frames[depth - 1, EXPECTS_KEY] == 1
            end, text_end, lone = _read_text(body, at, texts, used, is_key)
            if lone >= 0:
                return LONE_SURROGATE, lone, depth
            if is_key:
                frame = frames[depth - 1]
                frame[KEY_BEGIN], frame[KEY_END], frame[EXPECTS_KEY] = at, end, 0
                if key_count == keys.shape[0]:
                    grown = np.empty((2 * key_count, _KEY_COLUMNS), np.int64)
                    grown[:key_count] = keys
                    keys = grown
                keys[key_count, _TEXT_BEGIN], keys[key_count, _TEXT_END] = used, text_end
                keys[key_count, _BODY_BEGIN], keys[key_count, _BODY_END] = at, end
                if key_count - frame[FIRST_KEY] < _FEW_KEYS:
                    for other in range(frame[FIRST_KEY], key_count):
                        if _is_same(texts, keys, other, key_count):
                            return DUPLICATE, at, depth
                key_count += 1
                used = text_end
            at = end + 1
        elif byte == 0x7B or byte == 0x5B:
            if depth == frames.shape[0]:
                return NOTHING, 0, 0
            frame = frames[depth]
            frame[IS_LIST], frame[INDEX], frame[KEY_BEGIN], frame[KEY_END] = byte == 0x5B, 0, at, at
            frame[EXPECTS_KEY], frame[FIRST_KEY] = 1, key_count
            depth += 1
        elif (byte == 0x7D or byte == 0x5D) and depth > 0:
            frame = frames[depth - 1]
            first = frame[FIRST_KEY]
            if key_count - first > _FEW_KEYS:
                later = _duplicate_of_many(texts, keys, first, key_count, seed)
                if later >= 0:
                    frame[KEY_BEGIN], frame[KEY_END] = keys[later, _BODY_BEGIN], keys[later, _BODY_END]
                    return DUPLICATE, keys[later, _BODY_BEGIN], depth
            if key_count > first:
                key_count, used = first, keys[first, _TEXT_BEGIN]
            depth -= 1
        elif byte == 0x2C and depth > 0:
            frames[depth - 1, INDEX] += 1
            frames[depth - 1, EXPECTS_KEY] = 1
    return NOTHING, 0, 0
