"""The kernel that writes plain records as the JSON of an answer: {"offset":7,"payload":"…"}, with commas between.

Whoever calls it has seen that no payload holds anything that JSON escapes. `plain_show` is the way in.
"""

# Inside a kernel an int is whatever numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.kernel import copy_bytes, inlined, kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

_ZERO = 0x30
_COMMA = 0x2C


@inlined
def _put_digits(output: Bytes, at: int, value: int) -> int:
    """A number from 0 on."""
    digits = 1
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    for place in range(digits):
        output[at + digits - 1 - place] = np.uint8(_ZERO + value % 10)
        value //= 10
    return at + digits


@kernel
def show_plain(
    output: Bytes, offsets: Longs, bounds: Ints, data: Bytes, before: Bytes, between: Bytes, behind: Bytes
) -> int:
    """Fill `output`, which has room; how much of it was filled. Row i's payload is data[bounds[i] : bounds[i + 1]];
    `before` its offset, `between` that and the payload, and `behind` the payload stand these bytes."""
    at = 0
    for row in range(offsets.size):
        if row:
            output[at] = _COMMA
            at += 1
        copy_bytes(output, at, before, 0, before.size)
        at = _put_digits(output, at + before.size, offsets[row])
        copy_bytes(output, at, between, 0, between.size)
        at += between.size
        size = bounds[row + 1] - bounds[row]
        copy_bytes(output, at, data, np.int64(bounds[row]), np.int64(size))
        at += size
        copy_bytes(output, at, behind, 0, behind.size)
        at += behind.size
    return at
