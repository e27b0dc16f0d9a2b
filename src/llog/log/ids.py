"""Object ids: UUIDv7 in hex, so that the creation time is in the name.

Vacuum and `reserve` compare that time with horizons (R8). So ids are drawn from a clock and a random source that come
in as arguments, which a simulation replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llog.errors import InvalidArgument

_TIME_BITS: Final = 48
_RANDOM_BITS: Final = 74
_TIME_MAX: Final = (1 << _TIME_BITS) - 1
_VERSION: Final = 0x7
_VARIANT: Final = 0b10


def new_object_id(now_ms: int, random_bits: Callable[[int], int]) -> str:
    """A UUIDv7 as 32 hex digits; `random_bits(n)` gives n random bits (such as `random.getrandbits`)."""
    if not 0 <= now_ms <= _TIME_MAX:
        raise InvalidArgument("now_ms", f"{now_ms} does not fit 48 bits")
    bits = random_bits(_RANDOM_BITS)
    high, low = bits >> 62, bits & ((1 << 62) - 1)
    value = (now_ms << 80) | (_VERSION << 76) | (high << 64) | (_VARIANT << 62) | low
    return f"{value:032x}"


def is_object_id(text: str) -> bool:
    if len(text) != 32 or not text.isascii() or text != text.lower():
        return False
    try:
        value = int(text, 16)
    except ValueError:
        return False
    return f"{value:032x}" == text and (value >> 76) & 0xF == _VERSION and (value >> 62) & 0b11 == _VARIANT


def created_at_ms_of(object_id: str) -> int:
    """The time in the id; `InvalidArgument` if it is not an object id."""
    if not is_object_id(object_id):
        raise InvalidArgument("object id", f"{object_id!r} is not a UUIDv7 in hex")
    return int(object_id[:12], 16)
