"""Buffers for system calls and client libraries: flat, unsigned bytes, not empty, not copied.

A put accepts views of any item type, also empty ones, but `writev` and obstore accept only one-dimensional views of
unsigned bytes. Only a view that cannot be reinterpreted (not contiguous, or of a foreign byte order) is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from llog.stores.objects.port import Buffer

__all__ = ["equals_buffers", "flat_views"]


def flat_views(buffers: Sequence[Buffer]) -> list[memoryview | bytes]:
    """The same bytes in the same order: non-empty, each `bytes` or a contiguous view of format `B`."""
    views: list[memoryview | bytes] = []
    for buffer in buffers:
        if type(buffer) is bytes:
            if buffer:
                views.append(buffer)
            continue
        view = memoryview(buffer)
        # Strides of one byte: one dimension, contiguous, items of one byte.
        if view.strides == (1,) and view.format == "B":
            if view.nbytes:
                views.append(view)
        elif view.nbytes:
            views.append(_reinterpreted(view))
    return views


def _reinterpreted(view: memoryview) -> memoryview:
    try:
        return view.cast("B")
    except (TypeError, ValueError):
        return memoryview(view.tobytes())


def equals_buffers(stored: Buffer, buffers: Sequence[Buffer]) -> bool:
    """Whether `stored` is the concatenation of `buffers`, without building it."""
    whole = memoryview(stored)
    position = 0
    for view in flat_views(buffers):
        end = position + len(view)
        if whole[position:end] != view:
            return False
        position = end
    return position == whole.nbytes
