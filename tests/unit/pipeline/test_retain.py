"""Retention as a job: every log's limits, each log in its turn, and a dry run that writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from llog.errors import InvalidArgument, MetadataUnavailable, PartitionOutOfRange, TopicNotFound
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appender, EncodedGroup
from llog.log.cleanup import retention
from llog.log.context import LogContext
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.view import view
from llog.log.rewrite import publish
from llog.log.topics.admin import alter_topic, create_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.retain import RetainedLog, retain_logs
from llog.pipeline.runtime.log_choice import chosen_logs, parse_choice
from llog.stores.metadata.port import GroupOutcome, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from tests.unit.pipeline.audit.auditing import Stage
from tests.unit.pipeline.key_compact.key_stage import FAST, HOUR, Row
from tests.unit.pipeline.key_compact.key_stage import Stage as KeyStage

SHORT, LONG, SMALL = Log("short", 0), Log("long", 0), Log("small", 1)
MINUTE_MS = 60_000


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
async def stage(request: pytest.FixtureRequest) -> Stage:
    """Three topics with four appends each, a minute apart; records tell an old timestamp, so all of them are old."""
    stage = Stage(atomic=request.param)
    await create_topic(stage.context, "short", config={"retention.ms": str(MINUTE_MS)})
    await create_topic(stage.context, "long", config={"retention.ms": "-1"})
    await create_topic(stage.context, "small", partitions=2, config={"retention.ms": "-1", "retention.bytes": "200"})
    for _ in range(4):
        await stage.append(SHORT, LONG, SMALL)
        stage.now_ms += MINUTE_MS
    return stage


async def starts(stage: Stage) -> list[int]:
    return [(await view(stage.context, log, strict=True)).log_start_offset for log in (SHORT, LONG, SMALL)]


async def test_each_topics_limits_are_applied_and_told(stage: Stage) -> None:
    first = await starts(stage)
    assert await compact_once(stage.context, SHORT, max_offsets=4) is not None
    told: list[RetainedLog] = []
    report = await retain_logs(stage.context, await chosen_logs(stage.context), on_done=told.append)
    end = (await view(stage.context, SHORT, strict=True)).next_offset
    assert await starts(stage) == [end, first[1], first[2] + 4]
    rows = {(log.topic, log.partition): log for log in report.logs}
    assert set(rows) == {SHORT, SMALL}
    assert (rows[SHORT].entries_removed, rows[SHORT].segments_removed) == (3, 1), "one segment and two blobs"
    assert (rows[SMALL].log_start_before, rows[SMALL].log_start_offset) == (first[2], first[2] + 4)
    assert rows[SMALL].entries_removed == 2
    assert (report.logs_looked_at, len(told), report.failed) == (4, 4, 0)
    assert report.bytes_released == sum(log.bytes_released for log in report.logs) > 0
    again = await retain_logs(stage.context, await chosen_logs(stage.context))
    assert (again.logs, again.entries_removed) == ((), 0)


async def test_a_dry_run_tells_the_same_and_writes_nothing(stage: Stage) -> None:
    logs = await chosen_logs(stage.context)
    before = {r.key.path: r.version async for r in stage.metadata.scan_tree("")}
    dry = await retain_logs(stage.context, logs, dry_run=True)
    assert {r.key.path: r.version async for r in stage.metadata.scan_tree("")} == before
    done = await retain_logs(stage.context, logs)
    assert dry.dry_run
    assert dry.logs == done.logs
    assert dry.bytes_released == done.bytes_released


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_clock_that_is_ahead_of_the_stores_makes_no_record_old(stage: Stage, dry_run: bool) -> None:
    await create_topic(stage.context, "weekly")
    weekly = Log("weekly", 0)
    group = EncodedGroup(weekly, 1, "kafka-v2", [encode_records([b"x"], timestamps_ms=stage.now_ms)], stage.now_ms)
    appender = Appender(stage.context)
    await appender.append([group])
    await appender.close()  # a dry run settles nothing
    year_ms = 365 * 24 * 60 * MINUTE_MS
    wrong = replace(stage.context, now_ms=lambda: stage.now_ms + year_ms)
    assert (await retain_logs(wrong, [weekly], dry_run=dry_run)).entries_removed == 0
    stage.now_ms += year_ms
    assert (await retain_logs(stage.context, [weekly], dry_run=dry_run)).entries_removed == 1


async def test_a_log_that_fails_does_not_keep_the_others(stage: Stage) -> None:
    class ShortIsAway(ForwardingMetadataStore):
        async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
            if any("/short/" in write.key.path for one in groups for write in one):
                raise MetadataUnavailable("write", "short", "away")
            return await super().write(groups)

    away = replace(stage.context, metadata=ShortIsAway(stage.metadata))
    report = await retain_logs(away, await chosen_logs(away))
    failed = [log for log in report.logs if log.error]
    assert [(log.topic, log.retriable) for log in failed] == [("short", True)]
    assert "away" in failed[0].error
    assert report.failed == 1
    assert (await starts(stage))[2] > 1


async def test_what_an_interrupted_run_left_is_told_by_a_dry_run_and_removed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(retention, "_remove_below_start", dies)
        with pytest.raises(KeyboardInterrupt):
            await retention.retain(stage.context, SHORT, await retention.configured_limits(stage.context, "short"))
    dry = await retain_logs(stage.context, [SHORT], dry_run=True)
    assert [(log.entries_removed, log.log_start_before, log.log_start_offset) for log in dry.logs] == [(4, 9, 9)]
    assert (await retain_logs(stage.context, [SHORT])).entries_removed == 4


async def test_a_topic_that_is_deleted_meanwhile_is_no_failure(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def overtaken(context: LogContext, topic: str) -> retention.Limits:
        limits = await retention.configured_limits(context, topic)
        await delete_topic(context, topic)
        return limits

    monkeypatch.setattr("llog.pipeline.retain.configured_limits", overtaken)
    report = await retain_logs(stage.context, [SHORT])
    assert (report.failed, report.logs, report.logs_looked_at) == (0, (), 1)


async def test_a_partition_that_nobody_wrote_to_is_no_failure(stage: Stage) -> None:
    await stage.append(Log("late", 2))
    report = await retain_logs(stage.context, await chosen_logs(stage.context, ["late"]))
    assert (report.logs_looked_at, report.failed, [log.partition for log in report.logs]) == (3, 0, [2])


async def test_logs_are_chosen_by_name(stage: Stage) -> None:
    assert await chosen_logs(stage.context) == [LONG, SHORT, Log("small", 0), SMALL]
    assert await chosen_logs(stage.context, ["small:1", "short", "short:0"]) == [SHORT, SMALL]
    with pytest.raises(TopicNotFound, match="nobody"):
        await chosen_logs(stage.context, ["nobody"])
    with pytest.raises(PartitionOutOfRange):
        await chosen_logs(stage.context, ["small:2"])
    for text in ("small:", "small:x", "sm all", ":1"):
        with pytest.raises(InvalidArgument):
            parse_choice(text)


class _Died(Exception):
    pass


async def test_a_segment_larger_than_the_log_may_be_does_not_go_while_nothing_else_is_left(stage: Stage) -> None:
    first = await starts(stage)
    assert await compact_once(stage.context, SMALL) is not None
    report = await retain_logs(stage.context, [SMALL])
    assert (report.logs, await starts(stage)) == ((), first)
    await stage.append(SMALL)
    await stage.append(SMALL)
    await retain_logs(stage.context, [SMALL])
    assert (await starts(stage))[2] == first[2] + 8, "without it, as much is left as is to be kept"


async def test_what_a_dead_compactor_left_is_not_counted_twice(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segment stands, and the entries it replaces are still there: together they are larger than the log."""

    async def die(*_: object) -> None:
        raise _Died

    with monkeypatch.context() as patched:
        patched.setattr(publish, "_delete_lower_keys", die)
        with pytest.raises(_Died):
            await compact_once(stage.context, LONG)
    segment, first = await stage.entry(LONG, 8), await starts(stage)
    assert segment.type == "COMPACTED"
    await alter_topic(stage.context, "long", put={"retention.bytes": str(segment.byte_length)})
    for dry_run in (True, False):
        report = await retain_logs(stage.context, [LONG], dry_run=dry_run)
        assert (report.failed, report.entries_removed) == (0, 0), dry_run
    assert await starts(stage) == first
    assert (await check_log(stage.context, LONG, deep=True)).faults == ()


async def test_a_segment_that_key_compaction_emptied_keeps_no_old_record_behind_it() -> None:
    stage = await KeyStage.open(
        {"cleanup.policy": "compact,delete", "retention.ms": str(24 * HOUR), "delete.retention.ms": "0"}
    )
    await stage.write(Row(b"a", b"1"))
    await stage.compact()
    await stage.write(Row(b"a", b"2"), Row(b"b", b"3"))
    await stage.compact()
    stage.now[0] += 30 * HOUR
    await stage.clean(FAST._replace(target_bytes=1))  # a segment each, and the first of them without a record
    await stage.write(Row(b"c", b"4"))
    assert [entry.value.record_count for entry in await stage.entries()][:2] == [0, 2]
    report = await retain_logs(stage.context, [stage.log])
    assert (report.entries_removed, [record.payload for record in await stage.read()]) == (2, [b"4"])
