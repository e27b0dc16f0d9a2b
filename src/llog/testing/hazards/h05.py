"""h05: a writer without an answer finds out whether its append happened, and never assumes it (R4)."""

from __future__ import annotations

from llog.errors import AppendUncertain
from llog.log.append.append import Appended
from llog.testing.hazards.toolkit import (
    COMPACTION,
    CONTROL,
    INDEX,
    append,
    compact,
    entry_key,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_landed,
    written,
)
from llog.testing.sim import Puppet, Script, SimFault, script


def _without_an_answer(script: Script) -> Puppet:
    """A writer that got no answer to its commit; the write is still on its way."""
    written(script, b"first")
    writer = script.actor("writer", append(b"once"))
    writer.run_until("put_object").run_until("put", CONTROL)
    return writer.perform(SimFault.LATE_WRITE)


@script("h05a", atomic_groups=False)
def the_write_lands_between_the_read_and_the_retry(script: Script) -> None:
    writer = _without_an_answer(script)
    writer.run_until("put", CONTROL)  # it saw that nothing had happened, and is about to try again
    script.land("put", CONTROL)
    expect_landed(writer.finish(), 2)
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h05b", atomic_groups=False)
def the_entry_is_compacted_before_the_writer_looks(script: Script) -> None:
    writer = _without_an_answer(script)
    script.land("put", CONTROL)
    compactor = script.actor("compactor", compact())
    # Settled and cleared, published, swapped: and held before the cursor moves.
    compactor.run_until("put", entry_key(2)).perform()
    compactor.run_until("put", COMPACTION).perform()
    compactor.run_until("put", entry_key(2)).perform()
    compactor.run_until("put", COMPACTION)
    outcome = writer.finish()
    expect(isinstance(outcome, (AppendUncertain, Appended)), f"expected an uncertain answer, got: {outcome}")
    compactor.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h05c", atomic_groups=False)
def the_index_answers_from_the_past(script: Script) -> None:
    writer = _without_an_answer(script)
    past = script.moment()
    script.land("put", CONTROL)
    written(script, b"other")  # settles the append, and stands where it was pending
    writer.run_until("scan", INDEX)  # control was read as it is now
    writer.reads_as_of(past)
    writer.perform(operation="scan", path=INDEX)
    writer.reads_as_of(None)
    expect_landed(writer.finish(), 2)
    expect_answers_hold(script)
