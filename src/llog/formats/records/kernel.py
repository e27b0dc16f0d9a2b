"""How a kernel is made: compiled on first use, cached on disk, running without the interpreter lock.

Only kernel modules import this one, and callers import them inside functions: loading numba takes half a second, which
a command that only parses a header should not pay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import event
from numba.extending import intrinsic

_log = logging.getLogger("llog.kernels")
F = TypeVar("F", bound=Callable[..., object])


class _CompilationNotice(event.Listener):
    """Logs one line when this process compiles its first kernel, because no cache holds it."""

    logged = False

    def on_start(self, _event: Any) -> None:
        if not self.logged:
            self.logged = True
            _log.warning("compiling kernels for this machine, about 10 seconds; later processes load them from a cache")

    def on_end(self, _event: Any) -> None:
        pass


event.register("numba:compile", _CompilationNotice())  # type: ignore[no-untyped-call]


def kernel(function: F) -> F:
    """Compile `function` on its first call and cache the machine code next to the module (or where numba can write).

    The cache notices changes of the kernel's own file only. So everything a kernel depends on, except for this module,
    is in its file, and limits come in as arguments. A kernel must check every position before it reads, because nothing
    else does; run with NUMBA_BOUNDSCHECK=1 and an empty NUMBA_CACHE_DIR to find a missing check.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # A read-only installation without a home directory has no place for a cache: compile in every process.
        return cast(F, numba.njit(nogil=True)(function))


def inlined(function: F) -> F:
    """A helper of kernels in the same file, without a cache entry of its own."""
    return cast(F, numba.njit(nogil=True, forceinline=True)(function))


@intrinsic
def copy_bytes(_context: Any, target: Any, filled: Any, data: Any, at: Any, length: Any) -> Any:
    """Copy data[at : at + length] to target[filled : …], unchecked; they must not overlap.

    A memcpy is fast for a kilobyte and for a dozen bytes; a loop is fast for one of them at most.
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
    """The eight bytes from data[at] on as a little-endian number, unchecked."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, source_at = arguments
        begin = builder.gep(context.make_array(data)(context, builder, source).data, [source_at])
        return builder.load(builder.bitcast(begin, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.int64), emit


@intrinsic
def low_zeros(_context: Any, word: Any) -> Any:
    """Number of zero bits below the lowest set bit; `word` must not be 0."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), emit
