"""Buffers as a kernel or a client library wants them: flat, of bytes, none empty, nothing copied.

Why it exists: a put takes whatever views the formats made, also of other item types and with empty ones among them,
but `writev` and obstore take only one-dimensional views of unsigned bytes. A view that cannot be reinterpreted (not
contiguous, or of a foreign byte order) is the only one that is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from llog.stores.objects.port import Buffer

__all__ = ["equals_buffers", "flat_views"]


def flat_views(buffers: Sequence[Buffer]) -> list[memoryview]:
    """The same bytes in the same order, as non-empty views of format `B`."""
    views = []
    for buffer in buffers:
        view = memoryview(buffer)
        if view.nbytes:
            views.append(view if view.format == "B" and view.ndim == 1 and view.contiguous else _reinterpreted(view))
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
        end = position + view.nbytes
        if whole[position:end] != view:
            return False
        position = end
    return position == whole.nbytes
