"""h24b: vacuum runs between the plan of a Spark batch and its end; the plan keeps its blobs (protocol section 11, I10).

The drivers of h24, and vacuum. A driver that slept past the grace before its plan was confirmed gets `SinkUploadLost`,
and nothing of its batch is stored. Once a plan is confirmed, vacuum deletes nothing that it names.
"""

from __future__ import annotations

from llog.errors import SinkUploadLost
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.sink.commit import SinkResult
from llog.pipeline.sink.plan import plan_key
from llog.pipeline.vacuum.job import VacuumReport, vacuum
from llog.testing.hazards.h24 import expect_once, first_driver, replayed, steps
from llog.testing.hazards.toolkit import KEYS, doing, expect, hours_pass, reaches
from llog.testing.sim import Puppet, Script, script


@script("h24b", atomic_groups=False)
def vacuum_comes_between_a_plan_and_its_end(script: Script) -> None:
    _left_for_longer_than_the_grace(script)
    _sleeps_past_the_grace_at_every_call(script)
    _wakes_while_vacuum_is_under_way(script)


def _vacuum(script: Script, name: str) -> Puppet:
    return script.actor(name, doing(lambda context: vacuum(context, LocalTasks(tools_of(context)))))


def _vacuumed(script: Script) -> None:
    hours_pass(script)
    done = _vacuum(script, f"vacuum-{len(script.world.scheduler.actors)}").finish()
    expect(isinstance(done, VacuumReport), f"vacuum fails: {done!r}")


def _write_to_plan(driver: Puppet, query: str, writes: int) -> None:
    """Up to so many: it is created, confirmed, and marked as done."""
    plan = plan_key(KEYS, query, 0).path
    for _ in range(writes):
        if not driver.actor.ended and reaches(driver, "put", plan):
            driver.perform(None, "put", plan)


def _left_for_longer_than_the_grace(script: Script) -> None:
    """A driver crashes at its writes to the plan, before and after; vacuum comes before the replay does."""
    for writes in range(4):
        query = f"graceful-{writes}"
        driver = first_driver(script, query)
        _write_to_plan(driver, query, writes)
        if not driver.actor.ended:
            driver.crash()
        _vacuumed(script)
        _vacuumed(script)
        replayed(script, query)
        replayed(script, query, 1)
        expect_once(script, query, 0, 1)


def _sleeps_past_the_grace_at_every_call(script: Script) -> None:
    """Its blobs may be gone when it wakes: then it gets `SinkUploadLost`, and nothing of its batch is stored."""
    calls, going_on, lost = 0, True, 0
    while going_on:
        query = f"graceless-{calls}"
        sleeper = first_driver(script, query)
        going_on = steps(sleeper, calls)
        _vacuumed(script)
        outcome = sleeper.finish()
        expect(isinstance(outcome, (SinkResult, SinkUploadLost)), f"{query}: the driver got {outcome!r}")
        if isinstance(outcome, SinkUploadLost):
            lost += 1
            expect_once(script, query)
        replayed(script, query)
        expect_once(script, query, 0)
        calls += 2
    expect(lost > 0, "vacuum was never faster")


def _wakes_while_vacuum_is_under_way(script: Script) -> None:
    """The driver has looked at the horizons. Vacuum is held before it raises one, asks for plans, or deletes; then the
    driver records its plan, and in half the cases confirms it; vacuum ends; the driver goes on."""
    for held_at, place in (("put", "*/meta/control"), ("scan", "*/@cluster/sinks"), ("delete_object", "*")):
        for writes in (0, 1, 2):
            query = f"woken-{held_at}-{writes}"
            driver = first_driver(script, query).run_until("put", plan_key(KEYS, query, 0).path)
            hours_pass(script)
            cleaner = _vacuum(script, f"vacuum-{query}").run_until("put_object").run_until(held_at, place)
            _write_to_plan(driver, query, writes)
            done = cleaner.finish()
            expect(isinstance(done, VacuumReport), f"{query}: vacuum fails: {done!r}")
            outcome = driver.finish()
            expect(isinstance(outcome, (SinkResult, SinkUploadLost)), f"{query}: the driver got {outcome!r}")
            expect_once(script, query, *([0] if isinstance(outcome, SinkResult) else []))
            replayed(script, query)
            expect_once(script, query, 0)
