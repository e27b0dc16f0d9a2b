"""How a kernel is made: compiled on first use, kept on disk, free of the interpreter lock.

Only kernel modules import this one, and they are imported where a kernel is called: numba takes half a second to
load, which a command line that only parses a header should not pay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` on its first call and cache the machine code next to the module (or where numba may write).

    A cached kernel is renewed when its own file changes, not when another does: so what a kernel depends on stands
    in its file (all but this one), and limits come in as arguments. A kernel checks every position before it reads:
    nothing else does. NUMBA_BOUNDSCHECK=1 with an empty NUMBA_CACHE_DIR shows where one forgot.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No directory to cache in (a read-only installation without a home): compile in every process instead.
        return cast(F, numba.njit(nogil=True)(function))


def inlined(function: F) -> F:
    """A helper of kernels in the same file; it has no cache entry of its own."""
    return cast(F, numba.njit(nogil=True, forceinline=True)(function))


@intrinsic
def copy_bytes(_context: Any, target: Any, filled: Any, data: Any, at: Any, length: Any) -> Any:
    """Copy data[at : at + length] to target[filled : …], which must not overlap; nothing is checked.

    As fast as memory for a kilobyte and for a dozen bytes, where a loop is good at one of them at most.
    """

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, filled_at, source, source_at, count = arguments
        output = builder.gep(context.make_array(target)(context, builder, to).data, [filled_at])
        piece = builder.gep(context.make_array(data)(context, builder, source).data, [source_at])
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [output.type, piece.type, count.type])
        builder.call(memcpy, [output, piece, count, ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(target, types.int64, data, types.int64, types.int64), emit


@intrinsic
def load_word(_context: Any, data: Any, at: Any) -> Any:
    """The eight bytes from data[at] on as one number, the first of them its lowest; nothing is checked."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, source_at = arguments
        begin = builder.gep(context.make_array(data)(context, builder, source).data, [source_at])
        return builder.load(builder.bitcast(begin, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.int64), emit


@intrinsic
def low_zeros(_context: Any, word: Any) -> Any:
    """How many bits are 0 below the lowest that is set, of a number that is not 0."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), emit
