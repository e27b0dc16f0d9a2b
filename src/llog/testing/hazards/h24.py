"""h24: a Spark batch is replayed with rows split differently; every row is stored once (protocol section 11, I3).

Drivers are actors that run the real sink: they learn the logs, upload as tasks do, and commit. The first driver splits
a batch over two logs, into more slices than a log remembers. The replay splits the same rows into two slices of one
log, as rows without a key change partition when tasks are cut differently. In every run one of the two splits is stored
completely, and nothing of the other.

h24b: vacuum runs between the plan of a Spark batch and its end; the plan keeps its blobs (protocol section 11, I10).

The drivers of h24, and vacuum. A driver that slept past the grace before its plan was confirmed gets `SinkUploadLost`,
and nothing of its batch is stored. Once a plan is confirmed, vacuum deletes nothing that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llog.errors import LlogError, SinkBatchOver, SinkError, SinkUploadLost
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.create import initialize
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.sink.commit import SinkResult, commit_batch
from llog.pipeline.sink.plan import plan_key
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.rows import SinkGroup
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import put_blob
from llog.pipeline.vacuum.job import VacuumReport, vacuum
from llog.testing.hazards.toolkit import (
    KEYS,
    HazardViolated,
    alone,
    contents,
    doing,
    entries_of,
    expect,
    hours_pass,
    reaches,
)
from llog.testing.sim import Puppet, Script, SimFault, script
from llog.testing.sim.actor import ActorFunction

TOPIC: Final = "sales"
ROWS: Final = tuple(b"r%d" % number for number in range(9))

Split = Sequence[dict[int, Sequence[bytes]]]
"""The rows of each blob, by partition."""


def _wide(tag: bytes) -> Split:
    """Seven slices of partition 0, two of partition 1."""
    rows = [tag + row for row in ROWS]
    return [{0: rows[n : n + 1], 1: rows[n + 7 : n + 8]} if n < 2 else {0: rows[n : n + 1]} for n in range(7)]


def _narrow(tag: bytes) -> Split:
    rows = [tag + row for row in ROWS]
    return [{0: rows[:4]}, {0: rows[4:]}]


def _driver(query: str, batch: int, split: Split) -> ActorFunction:
    async def run(context: LogContext) -> SinkResult:
        return await commit_batch(context, SinkBatch(query, batch), await _uploads(context, _topic(query), split))

    return doing(run)


async def _uploads(context: LogContext, topic: str, split: Split) -> list[Any]:
    order = await sink_order(context, topic=topic)
    assert context.wal is not None
    uploads = []
    for blob in split:
        # The bare encoding: no kernel to compile, and the protocol does not care.
        groups = [SinkGroup(Log(topic, p), len(rows), encode_bytes_batch(list(rows)), -1) for p, rows in blob.items()]
        tools = tools_of(context)
        uploads += await put_blob(tools, order, context.wal, groups, context.random_bits, encoding="bytes-batch-v1")
    return uploads


def _topic(query: str) -> str:
    return f"{TOPIC}-{query}"


def _tag(batch: int) -> bytes:
    return b"%d:" % batch


def first_driver(script: Script, query: str, batch: int = 0, name: str = "first") -> Puppet:
    """The topic has both partitions, because a sink adds none; the driver finishes the log of the first."""
    second = Log(_topic(query), 1)
    if script.world.metadata.find(KEYS.control(second)) is None:
        alone(script, doing(lambda context: initialize(context, second)), f"operator-{query}")
    return script.actor(f"{name}-{query}", _driver(query, batch, _wide(_tag(batch))))


def replayed(script: Script, query: str, batch: int = 0) -> None:
    """Another driver, which must come to its end."""
    done = alone(script, _driver(query, batch, _narrow(_tag(batch))), f"replay-{query}")
    expect(isinstance(done, SinkResult), f"{query}: batch {batch} cannot be finished: {done!r}")


def expect_once(script: Script, query: str, *batches: int) -> None:
    """Each row of these batches once, and each batch as one of its drivers split it."""
    logs = [Log(_topic(query), partition) for partition in (0, 1)]
    stored = [payload for log in logs for _, payload in _contents(script, log)]
    wanted = [_tag(batch) + row for batch in batches for row in ROWS]
    expect(sorted(map(str, stored)) == sorted(map(str, wanted)), f"{query}: {stored}, expected {wanted}")
    first_log = [payload for _, payload in _contents(script, logs[0])]
    order = [int((payload or b"").partition(b":")[0]) for payload in first_log]
    expect(order == sorted(order), f"{query}: batches overtook each other: {first_log}")
    appends = sum(len(entries_of(script, log)) for log in logs)
    possible = {9 * wide + 2 * (len(batches) - wide) for wide in range(len(batches) + 1)}
    expect(appends in possible, f"{query}: {appends} appends for {len(batches)} batches: two splits were mixed")


def _contents(script: Script, log: Log) -> list[tuple[int, bytes | None]]:
    """The records of a log, none if it was never created: not every split uses both logs."""
    exists = script.world.metadata.find(KEYS.control(log)) is not None
    return contents(script, log) if exists else []


def _step(driver: Puppet, fault: SimFault | None = None) -> bool:
    """Its next call; False when it is at its end."""
    if driver.actor.ended or not reaches(driver, "*"):
        return False
    [call, *_] = driver.waiting()
    driver.perform(fault if fault in call.faults else None)
    return True


def steps(driver: Puppet, count: int) -> bool:
    return all(_step(driver) for _ in range(count))


@script("h24", atomic_groups=False)
def a_batch_is_replayed_with_rows_split_differently(script: Script) -> None:
    _crashes_at_every_call(script)
    _sleeps_at_every_call(script)
    _sleeps_before_it_plans(script)
    _two_drivers_in_turns(script)
    _two_drivers_about_to_plan(script)
    _replies_are_lost(script)
    _a_planned_batch_is_never_replayed(script)


def _crashes_at_every_call(script: Script) -> None:
    calls, going_on = 0, True
    while going_on:
        query = f"crash-{calls}"
        first = first_driver(script, query)
        going_on = steps(first, calls)
        if going_on:
            first.crash()
        replayed(script, query)
        replayed(script, query, 1)
        expect_once(script, query, 0, 1)
        calls += 1
    expect(calls > 30, f"a driver makes more than {calls} calls")


def _sleeps_at_every_call(script: Script) -> None:
    """It wakes when the query has gone on, and the plan it would have found is removed."""
    calls, going_on = 0, True
    while going_on:
        query = f"sleep-{calls}"
        zombie = first_driver(script, query)
        going_on = steps(zombie, calls)
        for batch in range(4):
            replayed(script, query, batch)
        outcome = zombie.finish()
        expect(isinstance(outcome, (SinkResult, SinkBatchOver)), f"{query}: the zombie got {outcome!r}")
        replayed(script, query, 4)
        expect_once(script, query, *range(5))
        calls += 3


def _sleeps_before_it_plans(script: Script) -> None:
    """Nothing is in the way of its plan any more, and later batches have left the second log alone."""
    query = "late-plan"
    zombie = first_driver(script, query).run_until("put", plan_key(KEYS, query, 0).path)
    for batch in range(4):
        replayed(script, query, batch)
    outcome = zombie.finish()
    expect_once(script, query, *range(4))
    expect(isinstance(outcome, SinkBatchOver), f"the zombie got {outcome!r}")
    replayed(script, query, 4)
    expect_once(script, query, *range(5))


def _two_drivers_in_turns(script: Script) -> None:
    for head_start in range(0, 40, 8):
        query = f"turns-{head_start}"
        one = first_driver(script, query)
        steps(one, head_start)
        other = script.actor(f"other-{query}", _driver(query, 0, _narrow(_tag(0))))
        while any([_step(one), _step(other)]):
            pass
        for driver in (one, other):
            expect(isinstance(driver.result, SinkResult), f"{query}: {driver.actor.name}: {driver.result!r}")
        replayed(script, query, 1)
        expect_once(script, query, 0, 1)


def _two_drivers_about_to_plan(script: Script) -> None:
    """Both were admitted; the one that came first plans and performs, then the other wakes."""
    query = "planning"
    plan = plan_key(KEYS, query, 0).path
    one = first_driver(script, query).run_until("put", plan)
    other = script.actor("other-planning", _driver(query, 0, _narrow(_tag(0)))).run_until("put", plan)
    one.finish()
    outcome = other.finish()
    expect(isinstance(outcome, SinkResult) and not outcome.ours, f"the second got {outcome!r}")
    expect_once(script, query, 0)


def _replies_are_lost(script: Script) -> None:
    """Each write of the driver takes effect, and the driver gets no answer."""
    for every in (1, 2, 3):
        query = f"lost-{every}"
        driver, calls = first_driver(script, query), 0
        while _step(driver, SimFault.LOST_REPLY if calls % every == 0 else None):
            calls += 1
        outcome = driver.result
        expect(isinstance(outcome, (SinkResult, LlogError)), f"{query}: {outcome!r}")
        replayed(script, query)
        expect_once(script, query, 0)


def _a_planned_batch_is_never_replayed(script: Script) -> None:
    """The next batch of the query finishes it first."""
    query = "left"
    driver = first_driver(script, query)
    driver.run_until("put", plan_key(KEYS, query, 0).path).perform()
    driver.crash()
    replayed(script, query, 1)
    expect_once(script, query, 0, 1)
    late = alone(script, _driver(query, 0, _narrow(_tag(0))), "late")
    if isinstance(late, LlogError) and not isinstance(late, SinkError):
        raise HazardViolated(f"a late driver got {late!r}")
    expect_once(script, query, 0, 1)


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
