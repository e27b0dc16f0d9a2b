"""Clients that change logs: fencing, retention, topic deletion; and the maintenance jobs that production runs."""

from __future__ import annotations

from collections.abc import Sequence

from llog.log.cleanup.retention import Limits, delete_records, retain
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
        await act(client, log, "unfence", lambda log=log: unfence(context, log))  # type: ignore[misc]
    for _ in range(rounds):
        log = client.one_of(logs)
        await client.pause(5)
        reason = f"{ASKED_BY}{client.name}"
        await act(client, log, "fence", lambda log=log, reason=reason: fence(context, log, reason=reason))  # type: ignore[misc]
        await client.pause(2)
        for _ in range(3):
            if await act(client, log, "unfence", lambda log=log: unfence(context, log)) is not None:  # type: ignore[misc]
                break


async def retain_now_and_then(client: Client, logs: Sequence[Log], rounds: int) -> None:
    """Deletes records up to some offset, or applies limits of size and time."""
    context = client.context
    for _ in range(rounds):
        await client.pause(4)
        log = client.one_of(logs)
        if client.draw(3) == 0:
            limit_bytes = 100 + client.draw(400)

            async def limit(log: Log = log, limit_bytes: int = limit_bytes) -> int:
                return (await retain(context, log, Limits(retention_bytes=limit_bytes))).log_start_offset

            await act(client, log, "retain", limit)
            continue
        try:
            seen = await view(context, log)
        except TROUBLE:
            continue
        start = seen.control.log_start_offset
        before = start + client.draw(seen.control.sequence_counter - start + 1)

        async def cut(log: Log = log, before: int = before) -> int:
            return (await delete_records(context, log, before)).log_start_offset

        await act(client, log, "delete_records", cut, before)


async def delete_now_and_then(client: Client, topics: Sequence[str], rounds: int) -> None:
    """Deletes a topic, and sometimes creates it again; otherwise the next writer does."""
    context = client.context
    for _ in range(rounds):
        await client.pause(8)
        topic = client.one_of(topics)

        async def delete(topic: str = topic) -> int:
            return (await delete_topic(context, topic)).incarnation

        async def create(topic: str = topic) -> int:
            return (await create_topic(context, topic)).record.incarnation

        for _ in range(3):
            if await act(client, Log(topic, 0), "delete_topic", delete) is not None:
                break
        if client.draw(2):
            await client.pause(2)
            await act(client, Log(topic, 0), "create_topic", create)
