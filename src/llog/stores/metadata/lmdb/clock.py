"""The clock that all processes of a machine share: milliseconds since boot, and which boot.

Why it exists: leases must run out by a clock that nobody can set, that goes on while the machine sleeps, and that two
processes read alike. A lease of an earlier boot is dead whatever it says.

Processes that share a store must share the kernel's boot clock: no time namespaces between them.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final

from llog.errors import MetadataMisconfigured

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


class BootClock:
    """Tests may subclass it."""

    def __init__(self) -> None:
        try:
            self.boot_id = uuid.UUID(BOOT_ID_FILE.read_text().strip()).bytes
        except (OSError, ValueError) as error:
            raise MetadataMisconfigured("open", "lmdb", f"needs Linux: {BOOT_ID_FILE}: {error}") from error

    def now_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
