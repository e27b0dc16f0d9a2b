"""Time that a generator has used a core, and time that it could have used one and had to wait for it.

On a machine that generator and servers share, a generator is at its limit when both together leave it no idle time: its
CPU time alone would not show that.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

_PROCESS: Final = Path("/proc/self/schedstat")
_THREAD: Final = Path("/proc/thread-self/schedstat")


class Usage(NamedTuple):
    """Seconds since the process or thread began."""

    cpu_s: float
    waited_s: float
    """0 where the kernel does not count it."""

    def since(self, earlier: Usage) -> Usage:
        return Usage(self.cpu_s - earlier.cpu_s, self.waited_s - earlier.waited_s)


def process_usage() -> Usage:
    """CPU of all threads; waiting of the first, which runs the event loop."""
    return Usage(time.process_time(), _waited_s(_PROCESS))


def thread_usage() -> Usage:
    """Of the calling thread."""
    return Usage(time.thread_time(), _waited_s(_THREAD))


def _waited_s(path: Path) -> float:
    try:
        return int(path.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
