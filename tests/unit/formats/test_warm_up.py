"""The first use of the kernels on a machine says what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = "from llog.formats.records.record_batch import walk; walk(b'', 'nothing')"


def test_a_process_that_compiles_kernels_says_so_in_one_line_and_the_next_one_loads_them(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    [line] = runs[0].stderr.splitlines()
    assert line.startswith("compiling kernels for this machine")
    assert runs[1].stderr == ""
