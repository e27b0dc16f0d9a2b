"""How a kernel is made: compiled on first use, kept on disk, free of the interpreter lock.

Only kernel modules import this one, and they are imported where a kernel is called: numba takes half a second to
load, which a command line that only parses a header should not pay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` on its first call and cache the machine code next to the module (or where numba may write).

    A cached kernel is renewed when its own file changes, not when another does: so what a kernel depends on stands
    in its file, and limits come in as arguments. A kernel checks every position before it reads: nothing else does.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No directory to cache in (a read-only installation without a home): compile in every process instead.
        return cast(F, numba.njit(nogil=True)(function))


def inlined(function: F) -> F:
    """A helper of kernels in the same file; it has no cache entry of its own."""
    return cast(F, numba.njit(nogil=True)(function))
