"""Buffers as a kernel or a client library wants them: flat, of bytes, none empty, nothing copied.

Why it exists: a put takes whatever views the formats made, also of other item types and with empty ones among them,
but `writev` and obstore take only one-dimensional views of unsigned bytes. A view that cannot be reinterpreted (not
contiguous, or of a foreign byte order) is the only one that is copied.
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
