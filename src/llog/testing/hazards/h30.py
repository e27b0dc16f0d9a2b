"""h30: a repeat is answered from what a process remembers of a log that was deleted since (I1)."""

from __future__ import annotations

from typing import Any

from llog.log.append.append import Appended, Appender
from llog.testing.hazards.toolkit import ORDERS, claim, contents, context_of, entry_key, expect, reborn, record_group
from llog.testing.sim import ActorContext, Script, script


@script("h30", atomic_groups=False)
def a_producer_repeats_a_batch_after_its_topic_is_created_again(script: Script) -> None:
    async def twice(ctx: ActorContext) -> Any:
        appender = Appender(context_of(ctx))
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
