"""Key compaction with its tasks and its aggregation in Spark, against the plain reference."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from llog.formats.records.record_batch import Codec
from llog.log.keys import Log
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.key_compact.job import key_compact
from llog.pipeline.runtime.tasks import tools_of
from llog.settings import Settings
from llog.wiring import OpenedLog
from tests.unit.pipeline.key_compact.key_stage import FAST, Row, Stage, at_a_time, random_rows

if TYPE_CHECKING:
    from llog.spark.runner.tasks import SparkTasks

LOGS: Final = [Log("prices", 0), Log("stock", 0)]
KEYS: Final = [*(b"k%d" % number for number in range(40)), b"", None]
RETENTION_MS: Final = 1_000
"""Of tombstones: they go with the second pass."""


async def clean_by_key(
    opened: OpenedLog, runner: SparkTasks, settings: Settings, compaction: CompactOptions, *, seed: int = 4
) -> None:
    from llog.spark.runner.key_aggregate import SparkKeyAggregate

    rng, codecs = random.Random(seed), list(Codec)
    context = at_a_time(opened.context, time.time_ns() // 1_000_000)
    kept = {"delete.retention.ms": str(RETENTION_MS)}
    stages = [await Stage.open(kept, log=log, context=context) for log in LOGS]
    aggregate = SparkKeyAggregate(runner.spark, settings, tools_of(context))
    tombstones = 0
    for _ in range(2):
        for stage in stages:
            for number in range(12):
                rows = random_rows(rng, KEYS, stage.now[0])
                await stage.write(*rows, codec=codecs[number % len(codecs)])
            # The same bytes are a key of each log, and nothing of theirs is shared.
            await stage.write(Row(b"only once", b"in " + stage.log.topic.encode()))
        compacted = await compact(context, runner, LOGS, options=compaction)
        assert not compacted.failed, compacted.failed
        report = await key_compact(context, runner, aggregate, options=FAST)
        assert [(one.log, one.state, one.error) for one in report.logs] == [(log, "compacted", "") for log in LOGS]
        tombstones += sum(one.tombstones for one in report.logs)
        for stage in stages:
            assert await stage.clean_model() > 0, "superseded records went"
            await stage.check()
        stages[0].now[0] += 2 * RETENTION_MS
    assert tombstones > 0, "none had its time: this proved less than it says"
    assert not [name for name in await stages[0].names() if "@scratch" in name]
