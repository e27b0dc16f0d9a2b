"""How a broker's process treats memory: what it frees it keeps for a while, and what it started with is not searched.

Why it exists: a broker takes and frees some hundred kilobytes per request. By default the C library gives each such
piece back to the kernel at once and gets it again page by page, which costs more than parsing the request; and Python's
collector walks all modules, routes and kernels again and again, none of which ever becomes garbage.

What must stay true: this is for processes of our own, never for a program that embeds a broker; what is kept is bounded
(`PROCESS_FREE_BYTES_KEPT`); where the C library is another one, nothing happens.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

from llog.limits import MIB

# Pieces up to this size come from memory that the process keeps; larger ones are the kernel's before and after.
PROCESS_POOLED_BYTES_MAX: Final = 4 * MIB
# So much free memory is kept, beyond what is in use.
PROCESS_FREE_BYTES_KEPT: Final = 64 * MIB
# Python looks for garbage in cycles after so many new objects; a flush alone makes thousands.
GC_YOUNG_OBJECTS: Final = 20_000


# The names of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Call early."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    set_option(_M_MMAP_THRESHOLD, PROCESS_POOLED_BYTES_MAX)
    set_option(_M_TRIM_THRESHOLD, PROCESS_FREE_BYTES_KEPT)


def spare_what_is_there() -> None:
    """Call when all is started: whatever lives now will live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, *gc.get_threshold()[1:])
