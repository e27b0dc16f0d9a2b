"""Small actors and scenarios to try the simulator on: counters that several actors increment."""

from __future__ import annotations

from typing import Final

from llog.errors import MetadataTimeout, MetadataUnavailable, UncertainOutcome, VersionConflict
from llog.stores.metadata.port import ABSENT, Key
from llog.testing.sim import (
    MANY,
    ONE_CRASH_OR_STALL,
    ActorContext,
    Script,
    SimFault,
    World,
    scenario,
    script,
)

COUNTER: Final = Key("toy/counter")
ROUNDS_MAX: Final = 50


async def increment_carelessly(ctx: ActorContext) -> None:
    """Reads, adds one, and writes over whatever is there by then: the lost update."""
    found = await ctx.metadata.get(COUNTER)
    value = 0 if found is None else int(found.value)
    await ctx.metadata.put(COUNTER, str(value + 1).encode())
    ctx.record("incremented")


async def increment_carefully(ctx: ActorContext) -> None:
    """Compare-and-set until it works. An increment without an answer is counted as "perhaps"."""
    for _ in range(ROUNDS_MAX):
        try:
            found = await ctx.metadata.get(COUNTER)
            value, version = (0, ABSENT) if found is None else (int(found.value), found.version)
            await ctx.metadata.put(COUNTER, str(value + 1).encode(), expected=version)
        except UncertainOutcome:
            ctx.record("perhaps")
            return
        except (VersionConflict, MetadataUnavailable, MetadataTimeout):
            await ctx.sleep_ms(1 + ctx.random_bits(4))
            continue
        ctx.record("incremented")
        return


def value_of(world: World) -> int:
    record = world.records().get(COUNTER.path)
    return 0 if record is None else int(record.value)


def check_counter(world: World) -> None:
    """Every acknowledged increment counts; what is more must be explained by crashes or missing answers."""
    told = [event.event for event in world.history]
    certain = told.count("incremented")
    unknown = told.count("perhaps") + sum(actor.crashed for actor in world.scheduler.actors)
    value = value_of(world)
    assert certain <= value <= certain + unknown, f"{certain} increments, perhaps {unknown} more; the counter: {value}"


@scenario("toy-counter", faults=MANY, search_faults=ONE_CRASH_OR_STALL)
def counter(world: World) -> None:
    for name in ("a", "b", "c"):
        world.actor(name, increment_carefully)
    world.run()
    world.calm()
    check_counter(world)


@scenario("toy-lost-update")
def lost_update(world: World) -> None:
    for name in ("a", "b"):
        world.actor(name, increment_carelessly)
    world.run()
    check_counter(world)


@scenario("toy-rare-lost-update")
def rare_lost_update(world: World) -> None:
    """First come, first served is fine here: the second actor begins long after the first."""

    async def later(ctx: ActorContext) -> None:
        for _ in range(4):
            await ctx.metadata.get(Key("toy/unrelated"))
        await increment_carelessly(ctx)

    world.actor("a", increment_carelessly)
    world.actor("b", later)
    world.run()
    check_counter(world)


@script("toy-script-lost-update")
def scripted_lost_update(script: Script) -> None:
    slow = script.actor("slow", increment_carelessly)
    quick = script.actor("quick", increment_carelessly)
    slow.run_until("put", "toy/*")
    quick.finish()
    slow.finish()
    assert value_of(script.world) == 1, "this is the bug that the script shows"


@script("toy-script-careful")
def scripted_careful(script: Script) -> None:
    """The same order of events does no harm to compare-and-set."""
    slow = script.actor("slow", increment_carefully)
    quick = script.actor("quick", increment_carefully)
    slow.run_until("put", "toy/*")
    quick.finish()
    slow.finish()
    assert value_of(script.world) == 2


@script("toy-script-late")
def scripted_late_write(script: Script) -> None:
    """A write without an answer lands after its writer has looked and not found it, but not over another's."""
    writer = script.actor("writer", increment_carefully)
    other = script.actor("other", increment_carefully)
    writer.run_until("put").perform(SimFault.LATE_WRITE)
    assert writer.actor.ended
    other.finish()
    script.land("put", "toy/counter")
    assert value_of(script.world) == 1, "its condition did not hold any more"
    check_counter(script.world)
