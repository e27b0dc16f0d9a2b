"""How a Python worker of Spark treats memory that it is done with: it keeps some, for the next bytes.

Why it exists: a worker reads objects of some MiB, one after the other, and lets go of them. Left alone, glibc gives
their pages back to the system and gets empty ones for the next, which have to be cleared (and, in a virtual machine,
fetched from its host): that is a third of the time a worker spends on a split. A worker is a process of its own that
does nothing else, so it may be told.

What must stay true: nothing is done before the fork, so the parent stays as it is; SPARK_SOURCE_KEPT_BYTES_MAX bounds
what is kept; with another libc nothing happens.
"""

from __future__ import annotations

import ctypes
from typing import Final

from llog.limits import MIB

# Freed memory that a Spark worker which reads splits keeps, to use it again for the next bytes.
SPARK_SOURCE_KEPT_BYTES_MAX: Final = 256 * MIB


# M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX of glibc's malloc.h.
_PARAMETERS: Final = {-1: SPARK_SOURCE_KEPT_BYTES_MAX, -3: SPARK_SOURCE_KEPT_BYTES_MAX, -8: 1}


def keep_freed_memory() -> None:
    """Freed memory is used again, whichever thread freed it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _PARAMETERS.items():
            mallopt(parameter, value)
