"""The steps between the checker's phases: recovery after a crash, a lone compactor, retention and vacuum."""

from __future__ import annotations

from collections.abc import Sequence

from llog.errors import LogDeleted, PartitionNotInitialized, TopicNotFound
from llog.log.append.append import Appender
from llog.log.append.known import Growth
from llog.log.append.settle import settle_and_clear
from llog.log.cleanup.retention import retain
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.log.topics.create import initialize, load_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.vacuum.job import vacuum_here
from llog.testing.history.verdict import Broken, Phase, Violation
from llog.testing.history.workload import Client, append

LONE_RUNS_MAX = 1_000
"""Of a lone compactor on one log: more means that it makes no progress."""
PROBE_PRODUCER_ID = 1 << 40
"""Higher than any that a client of the workload has."""


async def resume(context: LogContext, log: Log) -> None:
    """I9: finish a deletion or an initialization in progress; then one settle and one run."""
    found = await load_topic(context, log.topic, strict=True)
    if found is None:
        return
    if found[0].state == "DELETING":
        try:
            await delete_topic(context, log.topic, expected_incarnation=found[0].incarnation)
        except TopicNotFound:
            return
    elif found[0].state == "LIVE" and log.partition < found[0].partition_count:
        await initialize(context, log)
    try:
        await settle_and_clear(context, log)
        await compact_once(context, log)
    except (PartitionNotInitialized, LogDeleted):
        return


async def probe(client: Client, logs: Sequence[Log]) -> None:
    """I13: after any run, a lone idempotent producer can append to every log that is not fenced (h01e, h22)."""
    appender = Appender(client.context, growth=Growth.HTTP)
    for number, log in enumerate(logs):
        claim = ProducerClaim(PROBE_PRODUCER_ID + number, 0, 0, 0)
        [answer] = await append(client, appender, [client.append_asked(log, (f"{client.name}/{log}",), claim)])
        if answer.outcome != "landed" and answer.reason != "LogFenced":
            raise Broken(Phase.RECOVERED, [Violation("I13", log, -1, "", f"a lone producer got {answer.reason}")])
    await appender.close()


async def compact_all(context: LogContext, log: Log) -> None:
    """I13: a lone compactor, until it finds nothing to do."""
    try:
        for _ in range(LONE_RUNS_MAX):
            if await compact_once(context, log) is None:
                return
    except PartitionNotInitialized:
        return
    raise AssertionError(f"{log}: a lone compactor is not done after {LONE_RUNS_MAX} runs")


async def clean(context: LogContext, logs: Sequence[Log]) -> None:
    """I13: retention without limits resumes interrupted calls, and vacuum deletes unnamed objects. Vacuum marks a
    segment in one pass and deletes it a grace later, so two passes are needed."""
    grace_s = context.options.vacuum_grace_ms / 1_000
    await context.sleep(1.1 * grace_s)
    for log in logs:
        try:
            await retain(context, log)
        except PartitionNotInitialized:
            continue
    await vacuum_here(context)
    await context.sleep(1.1 * grace_s)
    await vacuum_here(context)
