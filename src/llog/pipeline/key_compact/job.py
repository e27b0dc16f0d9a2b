"""Key compaction: a log keeps the last record of every key, like `cleanup.policy=compact` of Kafka.

    choose logs, and of each the range that is worth a pass             (`plan`)
    tasks scan keys: the last offset of each key, segment by segment    (`tasks`)
    the last offset of each key over the whole range                    (`aggregate`; on Spark a DataFrame)
    tasks rewrite the segments that lose records                        (`tasks`)
    publish them, log by log in offset order                            (`key_pass`)

Differences from Kafka: records without a key are kept (Kafka refuses them at produce, and drops those it finds);
batches that lost all their records are not kept as empty ones, because the producer snapshot remembers producers.

Only whole compacted entries are read and rewritten, and offsets never change. A log that fails fails alone; a log that
changes during the pass is planned again, a few times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from llog.concurrency import batched
from llog.errors import InvalidArgument
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.pipeline.key_compact.aggregate import KeyAggregate, remove_old
from llog.pipeline.key_compact.key_pass import KeyPass, OnError, Progress
from llog.pipeline.key_compact.report import KeyCompacted, KeyCompactOptions, KeyCompactReport, added
from llog.pipeline.runtime.log_choice import chosen_logs
from llog.pipeline.runtime.tasks import TaskRunner

# Logs in one pass.
KEY_COMPACT_LOGS_AT_ONCE: Final = 64
# Passes over a log that changes during each of them.
KEY_COMPACT_ROUNDS_MAX: Final = 3

__all__ = ["KeyCompactOptions", "KeyCompactReport", "KeyCompacted", "key_compact"]


async def key_compact(
    context: LogContext,
    runner: TaskRunner,
    aggregate: KeyAggregate,
    logs: Iterable[Log] | None = None,
    *,
    options: KeyCompactOptions = KeyCompactOptions(),  # noqa: B008 (immutable)
    on_progress: Progress = lambda _name, _bytes: None,
    on_error: OnError = lambda _: None,
) -> KeyCompactReport:
    """Clean the logs that are worth it; without `logs` those of every live topic that is compacted by key.

    `on_error` receives every error of the runner, the aggregation or a store that a log's report absorbs."""
    if context.segments is None:
        raise InvalidArgument("context", "it has no store for segments")
    one_pass = KeyPass(context, runner, aggregate, options.checked(), on_progress, on_error)
    if not options.dry_run:
        await remove_old(context.segments, context.keys.root, context.now_ms())
    named = None if logs is None else sorted(set(logs))
    left = await chosen_logs(context) if named is None else named
    done: dict[Log, KeyCompacted] = {}
    for round_number in range(KEY_COMPACT_ROUNDS_MAX):
        for batch in batched(left, KEY_COMPACT_LOGS_AT_ONCE):
            for report in await one_pass.run(batch):
                done[report.log] = added(done.get(report.log), report)
        left = [log for log in left if done[log].state == "changed meanwhile"]
        if not left:
            break
        await context.back_off(round_number)
    reports = [done[log] for log in sorted(done)]
    reported = reports if named is not None else [one for one in reports if one.state != "not by key"]
    return KeyCompactReport(dry_run=options.dry_run, logs=reported)
