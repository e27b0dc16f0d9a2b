"""Memory for the room of a window: one mapping of hundreds of megabytes, used again by the next window.

Why it exists: the system clears every page it gives to a process, and a virtual machine fetches it from its host before
that. For a window this takes longer than copying all slices into pages that are there already. An allocator gives
blocks of this size back at once; so the last one used is kept here, for a while.

What must stay true
- Memory is handed out again only when nobody holds a view of it: an upload that goes on although its caller gave up
  still finds the bytes it was given.
- One mapping is kept, of COMPACT_ROOM_KEPT_BYTES_MAX at most, and where an event loop goes on running, no longer than
  COMPACT_ROOM_KEPT_MS.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import numpy as np

from llog.formats.records.record_columns import Bytes
from llog.limits import COMPACT_WINDOW_BYTES_MAX, MIB

# Memory that a process keeps for its next window, and for how long after the last one. A window is
# COMPACT_WINDOW_BYTES_MAX and half an object.
COMPACT_ROOM_KEPT_BYTES_MAX: Final = COMPACT_WINDOW_BYTES_MAX + 64 * MIB
COMPACT_ROOM_KEPT_MS: Final = 5_000


_kept: Final[list[tuple[mmap.mmap, object]]] = []
"""One at most, with a mark of when it was put there. Taking it out and putting it in are single steps: the loops of
several threads may do so."""


@contextmanager
def borrowed(byte_length: int) -> Iterator[Bytes]:
    """So many bytes, of any content, for as long as the caller (or a view of them) needs them."""
    if byte_length == 0:
        yield np.empty(0, np.uint8)
        return
    mapping = _taken(byte_length)
    try:
        yield np.frombuffer(mapping, np.uint8, byte_length)
    finally:
        # Not here: until the caller's frame lets go of the array, somebody holds a view.
        asyncio.get_running_loop().call_soon(_give_back, mapping)


def _taken(byte_length: int) -> mmap.mmap:
    with suppress(IndexError):
        kept, _ = _kept.pop()
        if len(kept) >= byte_length:
            return kept
    mapping = mmap.mmap(-1, byte_length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _give_back(mapping: mmap.mmap) -> None:
    if len(mapping) > COMPACT_ROOM_KEPT_BYTES_MAX or not _is_free(mapping):
        return  # it goes with the last view
    mark = object()
    _kept[:] = [(mapping, mark)]
    asyncio.get_running_loop().call_later(COMPACT_ROOM_KEPT_MS / 1_000, _drop, mark)


def _is_free(mapping: mmap.mmap) -> bool:
    """Does nobody hold a view? A mapping tells only by refusing to change its size."""
    try:
        mapping.resize(len(mapping))
    except (BufferError, OSError, SystemError):
        return False
    return True


def _drop(mark: object) -> None:
    """Unless it was taken, and put back, since then."""
    if _kept and _kept[0][1] is mark:
        _kept.clear()
