"""h26, h27: what vacuum must still find when a topic shrank, or when only a phantom names an object (I13).
h28, h29: a clock that is far ahead in one process does not harm the others.
h30: a repeat is answered from what a process remembers of a log that was deleted since (I1).
"""

from __future__ import annotations

from typing import Any

from llog.log.append.append import Appended, Appender
from llog.log.append.known import Growth
from llog.log.keys import Log
from llog.testing.hazards.toolkit import (
    ORDERS,
    alone,
    append,
    claim,
    compact,
    contents,
    context_of,
    entry_key,
    expect,
    expect_answers_hold,
    expect_landed,
    expect_no_orphans,
    reborn,
    record_group,
    unsettled,
    written,
)
from llog.testing.sim import HOUR_MS, ActorContext, Script, script

CLICKS = Log("clicks", 0)


@script("h26", atomic_groups=False)
def a_topic_is_created_again_with_fewer_partitions(script: Script) -> None:
    written(script, b"one", log=Log(ORDERS.topic, 1))
    reborn(script, b"new")  # one partition; the tombstone of the other stays
    expect_no_orphans(script)


@script("h27", atomic_groups=False)
def a_phantom_is_all_that_names_a_blob(script: Script) -> None:
    writer = unsettled(script, "writer", append(b"one"))

    async def write_both(ctx: ActorContext) -> Any:
        """A blob that another log keeps alive, so that vacuum has no other reason to ask about ours."""
        appender = Appender(context_of(ctx), growth=Growth.HTTP)
        await appender.append([record_group(ORDERS, (b"two",)), record_group(CLICKS, (b"click",))])
        await appender.close()

    alone(script, write_both, "writer")
    alone(script, compact(), "compactor")
    writer.finish()  # its entry comes back, below the cursor
    expect_answers_hold(script)
    expect_no_orphans(script, also=(CLICKS,))


YEAR_MS = 365 * 24 * HOUR_MS


@script("h28", atomic_groups=False)
def a_log_is_created_by_a_clock_that_is_a_year_ahead(script: Script) -> None:
    creator = script.actor("creator", append(b"one"))
    creator.set_clock(YEAR_MS)
    expect_landed(creator.finish(), 1)
    outcome = alone(script, append(b"two"), "writer")
    expect(isinstance(outcome, Appended), f"a writer with the right clock is refused: {outcome}")
    expect_answers_hold(script)


@script("h29", atomic_groups=False)
def a_producer_is_forgotten_because_of_the_clock_of_another(script: Script) -> None:
    expect_landed(alone(script, append(b"sale", by=claim(0)), "producer"), 1)
    other = script.actor("other", append(b"other", by=claim(0, producer_id=8)))
    other.set_clock(YEAR_MS)
    expect_landed(other.finish(), 2)
    alone(script, compact(), "compactor")  # the snapshot moves
    expect_landed(alone(script, append(b"sale", by=claim(0)), "retry"), 1)
    expect_answers_hold(script)


@script("h30", atomic_groups=False)
def a_producer_repeats_a_batch_after_its_topic_is_created_again(script: Script) -> None:
    async def twice(ctx: ActorContext) -> Any:
        appender = Appender(context_of(ctx), growth=Growth.HTTP)
        batch = record_group(ORDERS, (b"sale",), claim(0))
        [first] = await appender.append([batch])
        [repeat] = await appender.append([batch])
        await appender.close()
        return first, repeat

    producer = script.actor("producer", twice)
    producer.run_until("put_object").perform().run_until("put", entry_key(1)).perform(None, "put", entry_key(1))
    producer.run_until("put_object")
    reborn(script, b"new")
    first, repeat = producer.finish()
    expect(isinstance(first, Appended), f"the first got: {first}")
    if isinstance(repeat, Appended):
        there = dict(contents(script))
        found = there.get(repeat.start_offset)
        expect(found == b"sale", f"the repeat got offset {repeat.start_offset}, where {found!r} is")
