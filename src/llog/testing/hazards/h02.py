"""h02, h03, h04, h17, h22, h25: what vacuum deletes can never be named again, and nothing else suffers."""

from __future__ import annotations

from llog.errors import ClusterMismatch, LlogError
from llog.log.append.append import Appended
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.testing.hazards.toolkit import (
    COMPACTION,
    CONTROL,
    alone,
    append,
    claim,
    clean,
    compact,
    delete_below,
    doing,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_landed,
    hours_pass,
    orphaned,
    written,
)
from llog.testing.sim import HOUR_MS, Script, script

YEAR_MS = 365 * 24 * HOUR_MS
NEW = Log("brand-new", 0)


@script("h02", atomic_groups=False)
def a_compactor_publishes_a_segment_that_vacuum_took(script: Script) -> None:
    written(script, b"one", b"two")
    compactor = script.actor("compactor", compact())
    compactor.run_until("put", COMPACTION)  # its segment is written, not published
    for _ in range(2):  # marked, and a grace later gone
        hours_pass(script)
        alone(script, clean(), "vacuum")
    compactor.finish()
    expect_answers_hold(script)
    expect_compacts_to_the_end(script)


@script("h03", atomic_groups=False)
def vacuum_scans_at_a_deposed_leader(script: Script) -> None:
    written(script, b"one")
    past = script.moment()
    written(script, b"two")
    hours_pass(script)
    cleaner = script.actor("vacuum", clean())
    cleaner.reads_as_of(past)
    cleaner.finish()
    expect_answers_hold(script)


@script("h04", atomic_groups=False)
def a_log_is_created_after_its_blob_was_vacuumed(script: Script) -> None:
    written(script, b"one")
    alone(script, clean(), "vacuum")  # the bucket carries the cluster's marker
    writer = script.actor("writer", append(b"first", log=NEW))
    writer.run_until("put", CONTROL)  # about to create the log, with a horizon of just now
    hours_pass(script)
    alone(script, clean(), "vacuum")
    writer.finish()
    expect_answers_hold(script, NEW)


@script("h17", atomic_groups=False)
def vacuum_on_a_machine_whose_clock_is_a_year_ahead(script: Script) -> None:
    written(script, b"one")
    orphaned(script)
    hours_pass(script)
    cleaner = script.actor("vacuum", clean())
    cleaner.set_clock(YEAR_MS)
    cleaner.finish()
    outcome = alone(script, append(b"two"), "writer")
    expect(isinstance(outcome, Appended), f"appends are refused after a vacuum: {outcome}")
    expect_answers_hold(script)


@script("h22", atomic_groups=False)
def vacuum_comes_between_the_raised_start_and_the_snapshot(script: Script) -> None:
    expect_landed(alone(script, append(b"sale", by=claim(0)), "producer"), 1)
    written(script, b"other")
    orphaned(script)  # so that vacuum looks at this log
    retention = script.actor("retention", delete_below(2))
    retention.run_until("put", CONTROL).perform()
    retention.crash()
    hours_pass(script)
    done = alone(script, clean(), "vacuum")
    expect(not isinstance(done, LlogError), f"vacuum fails: {done}")
    expect_landed(alone(script, append(b"next sale", by=claim(1)), "producer"), 3)
    expect_landed(alone(script, append(b"sale", by=claim(0)), "retry"), 1)
    expect_answers_hold(script)


@script("h25", atomic_groups=False)
def the_metadata_store_is_empty(script: Script) -> None:
    written(script, b"one", b"two")
    alone(script, clean(), "vacuum")  # the bucket carries the cluster's marker
    alone(script, compact(), "compactor")
    written(script, b"three")

    async def forget_everything(context: LogContext) -> None:
        for record in [record async for record in context.metadata.scan_tree("")]:
            await context.metadata.delete(record.key)

    before = set(script.world.objects())
    alone(script, doing(forget_everything), "disaster")
    hours_pass(script)
    done = alone(script, clean(), "vacuum")
    lost = before - set(script.world.objects())
    expect(not lost, f"vacuum against an empty metadata store deleted {len(lost)} objects")
    expect(isinstance(done, ClusterMismatch), f"vacuum against an empty metadata store ends with {done}")
