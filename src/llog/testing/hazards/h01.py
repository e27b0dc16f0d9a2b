"""h01, h12, h23: a process that slept through a topic's re-creation does not touch the new incarnation (R13)."""

from __future__ import annotations

from llog.errors import LlogError
from llog.formats.values import ControlRecord
from llog.log.append.append import Appended
from llog.log.keys import Log
from llog.testing.hazards.toolkit import (
    COMPACTION,
    CONTROL,
    INDEX,
    KEYS,
    ORDERS,
    alone,
    append,
    clean,
    compact,
    delete,
    delete_below,
    entry_key,
    expect,
    expect_compacts_to_the_end,
    expect_contents,
    hours_pass,
    orphaned,
    reborn,
    unsettled,
    value_at,
    written,
)
from llog.testing.sim import Script, script

CLICKS = Log("clicks", 0)
VISITS = Log("visits", 0)


@script("h01a", atomic_groups=False)
def a_writer_settles_an_append_of_a_dead_incarnation(script: Script) -> None:
    # The new incarnation's entry is at the key already.
    writer = unsettled(script, "writer", append(b"old"))
    reborn(script, b"new")
    writer.finish()
    expect_contents(script, (1, b"new"))
    # The dead incarnation's entry comes first; the new one is acknowledged and replaces it.
    writer = unsettled(script, "other writer", append(b"old", log=CLICKS), log=CLICKS)
    alone(script, delete(CLICKS.topic), "deleter")
    newer = unsettled(script, "newer writer", append(b"new", log=CLICKS), log=CLICKS)
    writer.finish()
    newer.finish()
    expect_contents(script, (1, b"new"), log=CLICKS)


@script("h01b", atomic_groups=False)
def vacuum_sleeps_between_control_and_index(script: Script) -> None:
    written(script, b"old")
    orphaned(script)  # so that the log is asked about something
    hours_pass(script)
    cleaner = script.actor("vacuum", clean())
    cleaner.run_until("put", CONTROL).perform()  # the horizon of the old incarnation
    cleaner.run_until("scan", INDEX)
    reborn(script, b"new")
    cleaner.finish()
    expect_contents(script, (1, b"new"))


@script("h01c", atomic_groups=False)
def a_compactor_sleeps_after_writing_or_after_swapping(script: Script) -> None:
    for log in (ORDERS, CLICKS):
        written(script, b"old one", b"old two", log=log)
    early = script.actor("early", compact(ORDERS))
    early.run_until("put", COMPACTION)  # step 5 is done
    late = script.actor("late", compact(CLICKS))
    late.run_until("put", entry_key(2, CLICKS)).perform()
    late.run_until("put", COMPACTION)  # step 7 is done
    for log, sleeper in ((ORDERS, early), (CLICKS, late)):
        reborn(script, b"one", b"two", b"three", log=log)
        sleeper.finish()
        expect_contents(script, (1, b"one"), (2, b"two"), (3, b"three"), log=log)
        expect_compacts_to_the_end(script, log)


@script("h01d", atomic_groups=False)
def a_delete_comes_late(script: Script) -> None:
    for log in (ORDERS, CLICKS, VISITS):
        written(script, b"old one", b"old two", log=log)
    retention = script.actor("retention", delete_below(2, ORDERS))
    retention.run_until("delete", entry_key(1, ORDERS))
    deleter = script.actor("second deleter", delete(CLICKS.topic))
    deleter.run_until("delete", f"*/{CLICKS.topic}/{INDEX}/*")
    compactor = script.actor("compactor", compact(VISITS))
    compactor.run_until("delete", entry_key(1, VISITS))
    for log, sleeper in ((ORDERS, retention), (CLICKS, deleter), (VISITS, compactor)):
        reborn(script, b"one", b"two", log=log)
        sleeper.finish()
        expect_contents(script, (1, b"one"), (2, b"two"), log=log)


@script("h01e", atomic_groups=False)
def an_initialization_ends_after_the_topic_is_gone(script: Script) -> None:
    writer = script.actor("writer", append(b"one"))
    writer.run_until("put", CONTROL)  # the topic is LIVE, its control record does not exist yet
    alone(script, delete(), "deleter")
    outcome = writer.finish()
    landed = [] if not isinstance(outcome, Appended) else [(outcome.start_offset, b"one")]
    later = alone(script, append(b"two"), "later")
    expect(isinstance(later, Appended), f"an append after the topic was deleted is refused: {later}")
    expect_contents(script, *landed, (later.start_offset, b"two"))


@script("h12", atomic_groups=False)
def a_late_delete_expects_a_version_that_is_given_again(script: Script) -> None:
    written(script, b"old one", b"old two")
    compactor = script.actor("compactor", compact())
    compactor.run_until("delete", entry_key(1))
    reborn(script, b"one", b"two")
    compactor.finish()
    expect_contents(script, (1, b"one"), (2, b"two"))


@script("h23", atomic_groups=False)
def a_log_begins_while_its_topic_is_deleted(script: Script) -> None:
    written(script, b"one")
    second = Log(ORDERS.topic, 1)
    deleter = script.actor("deleter", delete())
    deleter.run_until("put", CONTROL)  # DELETING; about to bury the first log
    writer = script.actor("writer", append(b"two", log=second))
    outcome = writer.finish()
    done = deleter.finish()
    expect(not isinstance(done, LlogError), f"the topic cannot be deleted: {done}")
    for log in (ORDERS, second):
        control = value_at(script, KEYS.control(log), ControlRecord)
        state = "absent" if control is None else control.log_state
        expect(state != "OPEN", f"{log} is open, and its topic is deleted; the writer got: {outcome}")
    expect(not isinstance(outcome, Appended), f"an append to a topic that is being deleted got: {outcome}")
