"""h15: compaction takes whole entries (R11)."""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    alone,
    append,
    compact,
    compaction_of,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_tiled,
    written,
)
from llog.testing.sim import Script, script


@script("h15", atomic_groups=False)
def a_run_would_end_inside_an_entry(script: Script) -> None:
    written(script, b"one")
    alone(script, append(b"two", b"three", b"four"), "writer")
    alone(script, compact(max_offsets=2), "compactor")
    cursor = compaction_of(script).offset
    expect(cursor == 2, f"the cursor is at {cursor}, and entries begin at 1 and 2")
    expect_answers_hold(script)
    expect_tiled(script)
    expect_compacts_to_the_end(script)
