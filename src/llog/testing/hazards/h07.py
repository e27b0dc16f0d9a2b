"""h07: the cursor moves before lower keys are deleted, so an entry that comes back late is a phantom."""

from __future__ import annotations

from llog.testing.hazards.toolkit import (
    append,
    compact,
    entries_of,
    entry_key,
    expect_answers_hold,
    expect_compacts_to_the_end,
    object_name,
    reaches,
    unsettled,
    written,
)
from llog.testing.sim import Script, script


@script("h07", atomic_groups=False)
def a_late_settle_brings_a_lower_key_back(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))
    writer.sleep()
    written(script, b"two")  # settles the first append
    blob = next(entry.value.data_key for entry in entries_of(script) if entry.end_offset == 1)
    compactor = script.actor("compactor", compact())
    if reaches(compactor, "delete", entry_key(1)):
        compactor.perform()
    compactor.crash()
    script.world.bucket().delete(object_name(script, blob))  # nothing names it: vacuum takes it
    writer.wake()
    writer.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)
