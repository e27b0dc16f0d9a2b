"""The boot clock of the machine: milliseconds since boot, and the id of the boot.

Leases use it because it cannot be set, continues during suspend, and is the same for all processes, provided they are
in one time namespace. A lease of an earlier boot has ended.
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
