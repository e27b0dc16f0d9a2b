"""What compiled encoders and decoders call: varints, tagged fields, arrays of numbers, buffers that are not copied.

Compiled code inlines the common case, a varint of one byte, and calls these functions for the rest. A function that
finds a fault raises `Fault`; `codec` adds message, version, field and position.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn

from llog.limits import MIB

Buffer = bytes | bytearray | memoryview
Records = Buffer | Sequence[Buffer]
"""Records to send: whole batches, in one buffer or several."""

# Memory that the values of a message may take besides its frame. Requests that name thousands of topics and partitions
# took 5 to 16 times their frame; a frame full of the smallest elements would take 75 times its size.
DECODED_FACTOR: Final = 24
DECODED_BYTES_FREE: Final = 4 * MIB
DECODED_BYTES_MAX: Final = 128 * MIB
# What an unknown tagged field counts; it takes time, not memory.
TAG_BYTES: Final = 64
# A smaller buffer is copied next to its neighbours, so that a vectored write has few entries.
JOIN_BYTES_MAX: Final = 1_024
VARINT_BYTES_MAX: Final = 5

_PREPARED: Final = 32


class Fault(Exception):
    """The reason why a message cannot be decoded or encoded."""


# -- decoding ----------------------------------------------------------------------------------------------------------


def room_for(frame_bytes: int) -> int:
    return min(DECODED_BYTES_FREE + DECODED_FACTOR * frame_bytes, DECODED_BYTES_MAX)


def read_varint(data: Buffer, position: int, value: int) -> tuple[int, int]:
    """An unsigned varint whose first byte was `value`, with its high bit set, and the position behind it."""
    value &= 0x7F
    for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise Fault(f"a varint is longer than {VARINT_BYTES_MAX} bytes")


def skip_tags(data: Buffer, position: int, count: int, end: int, room: int) -> tuple[int, int]:
    """The position behind tagged fields none of which is known, and the memory that is left for values."""
    if count > 0x7F:
        count, position = read_varint(data, position, count)
    room -= TAG_BYTES * count
    if count > (end - position) // 2 or room < 0:
        refuse_count(count, end - position, 2)
    for _ in range(count):
        if data[position] > 0x7F:
            _, position = read_varint(data, position + 1, data[position])
        else:
            position += 1
        size = data[position]
        position += 1
        if size > 0x7F:
            size, position = read_varint(data, position, size)
        position += size
        if position > end:
            refuse_length(size, end - position + size)
    return position, room


def refuse_length(length: int, left: int) -> NoReturn:
    if length < 0:
        raise Fault("null is not allowed" if length == -1 else f"length {length} is negative")
    raise Fault(f"length {length}, but {left} bytes are left")


def refuse_count(count: int, left: int, element_bytes: int) -> NoReturn:
    if count < 0:
        raise Fault("null is not allowed" if count == -1 else f"count {count} is negative")
    if count <= left // element_bytes:
        raise Fault(f"{count} elements of at least {element_bytes} bytes, which take more memory than a frame may")
    raise Fault(f"{count} elements of at least {element_bytes} bytes, but {left} bytes are left")


def refuse_marker(marker: int) -> NoReturn:
    raise Fault(f"a struct that may be null begins with 1 or -1, not {marker}")


def refuse_tag(tag: int, size: int, used: int) -> NoReturn:
    raise Fault(f"tag {tag} has {size} bytes, but its value takes {used}")


def number_reader(code: str) -> Callable[[Buffer, int, int], list[int]]:
    """A function that reads `count` numbers of a `struct` code; the caller has checked that they are there."""
    prepared = [struct.Struct(f">{count}{code}").unpack_from for count in range(_PREPARED)]

    def read(data: Buffer, position: int, count: int) -> list[int]:
        if count < _PREPARED:
            return list(prepared[count](data, position))
        return list(struct.unpack_from(f">{count}{code}", data, position))

    return read


# -- encoding ----------------------------------------------------------------------------------------------------------

VARINTS: Final = [bytes([value]) for value in range(0x80)]
"""The varints of one byte."""


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_writer(code: str) -> Callable[[Sequence[int]], bytes]:
    prepared = [struct.Struct(f">{count}{code}").pack for count in range(_PREPARED)]

    def write(values: Sequence[int]) -> bytes:
        count = len(values)
        return prepared[count](*values) if count < _PREPARED else struct.pack(f">{count}{code}", *values)

    return write


def refuse_absent() -> NoReturn:
    raise Fault("this version has no such field, and its value is not the default")


def refuse_uuid() -> NoReturn:
    raise Fault("a uuid has 16 bytes")


def byte_length(value: Records) -> int:
    if isinstance(value, memoryview):
        return value.nbytes
    if isinstance(value, bytes | bytearray):
        return len(value)
    return sum([memoryview(one).nbytes for one in value])


def put(parts: list[Buffer], uncopied: list[int], value: Records) -> None:
    """Append a buffer, or several; `uncopied` gets the places in `parts` of those that `gather` must not copy."""
    for one in [value] if isinstance(value, bytes | bytearray | memoryview) else value:
        if byte_length(one) >= JOIN_BYTES_MAX:
            uncopied.append(len(parts))
        parts.append(one)


def gather(parts: list[Buffer], uncopied: Iterable[int]) -> list[Buffer]:
    """The buffers of a message, small neighbours joined."""
    gathered: list[Buffer] = []
    begin = 0
    for at in uncopied:
        if at > begin:
            gathered.append(b"".join(parts[begin:at]))
        gathered.append(parts[at])
        begin = at + 1
    if begin < len(parts):
        gathered.append(b"".join(parts[begin:]))
    return gathered
