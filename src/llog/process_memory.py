"""Memory settings of a process: keep freed memory, and exempt start-up objects from garbage collection.

A broker allocates and frees some hundred kilobytes per request, a Spark worker megabytes per split. By default the C
library returns them to the kernel and gets them back page by page, which costs more than parsing a request; and
Python's collector walks all modules, routes and kernels again and again; with its default it does so hundreds of times
while they are imported. Only for our own processes, never for a program that embeds a broker. Without glibc's
`mallopt`, the first setting does nothing.
"""

from __future__ import annotations

import gc
from typing import Final

from llog.limits import MIB

# Allocations up to this size come from memory that the process keeps; larger ones are mapped one by one.
PROCESS_POOLED_BYTES_MAX: Final = 4 * MIB
# Free memory that is kept.
PROCESS_FREE_BYTES_KEPT: Final = 64 * MIB
# New objects between two searches for garbage cycles; a flush alone creates thousands.
GC_YOUNG_OBJECTS: Final = 20_000

# The names of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_freed_memory(
    *,
    pooled_bytes_max: int = PROCESS_POOLED_BYTES_MAX,
    free_bytes_kept: int = PROCESS_FREE_BYTES_KEPT,
    arenas_max: int | None = None,
) -> None:
    """Call before the first large allocation. With one arena, a thread reuses memory that another thread freed."""
    import ctypes

    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    set_option(_M_MMAP_THRESHOLD, pooled_bytes_max)
    set_option(_M_TRIM_THRESHOLD, free_bytes_kept)
    if arenas_max is not None:
        set_option(_M_ARENA_MAX, arenas_max)


def collect_less_often() -> None:
    """Call before the first large import."""
    gc.set_threshold(GC_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def freeze_start_up_objects() -> None:
    """Call when everything is started: objects that exist now live as long as the process."""
    gc.collect()
    gc.freeze()
    collect_less_often()
