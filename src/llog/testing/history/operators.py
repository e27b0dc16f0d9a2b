"""Clients that change logs: fencing, retention, topic deletion; and the maintenance jobs that production runs."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from llog.log.cleanup.retention import Limits, Retained, delete_records, retain
from llog.log.context import LogContext
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.read.read import view
from llog.log.topics.admin import create_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.compact.plan import SegmentRules
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.vacuum.job import vacuum_here
from llog.testing.history.judge_store import ASKED_BY
from llog.testing.history.workload import TROUBLE, Client, act, is_trouble

RUN_OFFSETS_MAX = 2
"""Small runs, so that a log has several segments and merge has something to do."""


async def compact_chore(context: LogContext, log: Log) -> None:
    await compact_once(context, log, max_offsets=RUN_OFFSETS_MAX)


async def merge_chore(context: LogContext, log: Log) -> None:
    await merge_once(context, log)


async def job_chore(context: LogContext, log: Log) -> None:
    """The whole job: it claims every log, compacts all of them in common windows, and merges."""
    options = CompactOptions(rules=SegmentRules(max_offsets=RUN_OFFSETS_MAX))
    report = await compact(context, LocalTasks(tools_of(context)), options=options, merge=True)
    bugs = [one for one in report.failed if not is_trouble(one.error_type)]
    assert not bugs, bugs


async def vacuum_chore(context: LogContext, log: Log) -> None:
    await vacuum_here(context)


async def fence_now_and_then(client: Client, logs: Sequence[Log], rounds: int) -> None:
    """Closes a log and opens it again; first it opens what an earlier one may have left closed."""
    context = client.context
    for log in logs:
        await act(client, log, "unfence", unfence(context, log))
    for _ in range(rounds):
        log = client.one_of(logs)
        await client.pause(5)
        await act(client, log, "fence", fence(context, log, reason=f"{ASKED_BY}{client.name}"))
        await client.pause(2)
        for _ in range(3):
            if await act(client, log, "unfence", unfence(context, log)) is not None:
                break


async def retain_now_and_then(client: Client, logs: Sequence[Log], rounds: int) -> None:
    """Deletes records up to some offset, or applies a limit of size."""
    context = client.context
    for _ in range(rounds):
        await client.pause(4)
        log = client.one_of(logs)
        if client.draw(3) == 0:
            limits = Limits(retention_bytes=100 + client.draw(400))
            await act(client, log, "retain", _start_after(retain(context, log, limits)))
            continue
        try:
            seen = await view(context, log)
        except TROUBLE:
            continue
        start = seen.control.log_start_offset
        before = start + client.draw(seen.control.sequence_counter - start + 1)
        await act(client, log, "delete_records", _start_after(delete_records(context, log, before)), before)


async def _start_after(change: Awaitable[Retained]) -> int:
    return (await change).log_start_offset


async def delete_now_and_then(client: Client, topics: Sequence[str], rounds: int) -> None:
    """Deletes a topic, and sometimes creates it again; otherwise the next writer does."""
    for _ in range(rounds):
        await client.pause(8)
        topic = client.one_of(topics)
        for _ in range(3):
            if await act(client, Log(topic, 0), "delete_topic", _delete(client.context, topic)) is not None:
                break
        if client.draw(2):
            await client.pause(2)
            await act(client, Log(topic, 0), "create_topic", _create(client.context, topic))


async def _delete(context: LogContext, topic: str) -> int:
    return (await delete_topic(context, topic)).incarnation


async def _create(context: LogContext, topic: str) -> int:
    return (await create_topic(context, topic)).record.incarnation
