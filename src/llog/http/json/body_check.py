"""What is wrong with a body and its JSON decoder does not say: a key twice in one object, half of a surrogate pair.

msgspec takes the last of two equal keys, and calls some lone surrogates truncated input. A kernel looks for both,
without an object per value and without holding the interpreter.
"""

from __future__ import annotations

import json
import secrets
from typing import Final

import numpy as np

from llog.errors import InvalidArgument
from llog.formats.records.record_columns import Longs

# Requests have fewer levels; a deeper body is refused by its decoder.
_DEPTH_MAX: Final = 32
# Of a key that a client made up, in an error.
_KEY_CHARACTERS_MAX: Final = 100
_SEED: Final = np.uint64(secrets.randbits(64))


def duplicate_key(body: bytes) -> InvalidArgument | None:
    """The error for JSON with a key twice in one object."""
    from llog.http.json import body_check_kernel as kernel

    found, _, frames = _find(body)
    if found != kernel.DUPLICATE:
        return None
    return InvalidArgument(_path(body, frames), "the JSON object has this key twice: leave one out")


def lone_surrogate(body: bytes, whole: str) -> InvalidArgument | None:
    """The error for a body that is not JSON because a string of it holds half of a surrogate pair. `whole` names a body
    that is nothing but this string."""
    from llog.http.json import body_check_kernel as kernel

    found, position, frames = _find(body)
    if found != kernel.LONE_SURROGATE:
        return None
    escape = body[position : position + 6].decode("ascii", "replace")
    reason = f"holds {escape}, half of a surrogate pair, which is not a character; send bytes as base64"
    return InvalidArgument(_path(body, frames) or whole, reason)


def warm_up() -> None:
    """Compile or load the kernel before the first request needs it."""
    duplicate_key(b'{"warm":["up"]}')


def _find(body: bytes) -> tuple[int, int, Longs]:
    from llog.http.json import body_check_kernel as kernel

    frames = np.empty((_DEPTH_MAX, kernel.FRAME_COLUMNS), np.int64)
    found, position, depth = kernel.find(np.frombuffer(body, np.uint8), frames, _SEED)
    return found, position, frames[:depth]


def _path(body: bytes, frames: Longs) -> str:
    """As errors of other fields name it: `topic_partitions[0].records[2].key`."""
    from llog.http.json import body_check_kernel as kernel

    parts: list[str] = []
    for frame in frames.tolist():
        if frame[kernel.IS_LIST]:
            parts.append(f"[{frame[kernel.INDEX]}]")
        elif not frame[kernel.EXPECTS_KEY]:  # else the place is inside a key, and the object's path has to do
            parts.append("." + _text(body[frame[kernel.KEY_BEGIN] : frame[kernel.KEY_END]]))
    return "".join(parts).removeprefix(".")


def _text(key: bytes) -> str:
    text = key.decode("utf-8", "replace")
    try:
        text = str(json.loads(f'"{text}"'))
    except ValueError:  # the body is not JSON: the key as it came
        pass
    return text[:_KEY_CHARACTERS_MAX]
