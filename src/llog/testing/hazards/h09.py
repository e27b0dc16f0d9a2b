"""h09: retention and compaction do not stand in each other's way."""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    alone,
    append,
    apply_retention,
    control_of,
    delete_below,
    entries_of,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_contents,
    unsettled,
    written,
)
from llog.testing.sim import Script, script


@script("h09a", atomic_groups=False)
def the_log_starts_inside_an_entry_above_the_cursor(script: Script) -> None:
    alone(script, append(b"one", b"two"), "writer")
    alone(script, append(b"three", b"four"), "writer")
    alone(script, delete_below(4), "retention")
    expect_contents(script, (4, b"four"))
    expect_compacts_to_the_end(script)
    expect_contents(script, (4, b"four"))


@script("h09b", atomic_groups=False)
def a_late_settle_below_the_start(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))
    writer.sleep()
    alone(script, delete_below(2), "retention")  # settles it, then removes it
    writer.wake()
    writer.finish()
    written(script, b"two")
    expect_answers_hold(script)
    alone(script, apply_retention(retention_ms=10**12), "retention")
    start = control_of(script).log_start_offset
    left = [entry.end_offset for entry in entries_of(script) if entry.end_offset < start]
    expect(not left, f"entries that end at {left} stay for ever; the log starts at {start}")
    expect_compacts_to_the_end(script)
