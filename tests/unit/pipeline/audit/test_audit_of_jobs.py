"""What the other jobs write is sound by the audit's rules, and what they leave behind is vacuum's."""

from __future__ import annotations

from llog.pipeline.audit.job import audit
from llog.pipeline.compact.job import compact
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.vacuum.job import vacuum
from tests.unit.pipeline.audit.auditing import CLICKS, ORDERS, Stage
from tests.unit.pipeline.key_compact import key_stage
from tests.unit.pipeline.key_compact.key_stage import HOUR, Row


async def test_the_compaction_job_leaves_a_log_that_is_clean_and_vacuum_makes_it_tidy() -> None:
    stage = Stage()
    await stage.fill()
    for merge in (False, True):
        await stage.append(ORDERS, CLICKS)
        report = await compact(stage.context, stage.runner, merge=merge)
        assert not report.failed
        assert (await audit(stage.context, stage.runner)).findings == []
    stage.later(1.5)
    assert (await audit(stage.context, stage.runner)).clean
    for _ in range(2):
        await vacuum(stage.context, stage.runner)
        stage.later(1.5)
    report_after = await audit(stage.context, stage.runner)
    assert report_after.findings == []
    assert report_after.entries == 2


async def test_segments_that_a_merge_has_just_retired_are_on_their_way_out_and_no_orphans_for_a_grace() -> None:
    stage = Stage()
    for _ in range(3):
        await stage.append(ORDERS)
        assert await compact_once(stage.context, ORDERS) is not None
    stage.later(1.5)
    assert await merge_once(stage.context, ORDERS) is not None

    async def left_over() -> list[str]:
        found = (await audit(stage.context, stage.runner)).findings
        return [finding.kind for finding in found if "/data/compacted/" in finding.object]

    assert await left_over() == []
    stage.later(1.5)
    assert await left_over() == ["orphan"] * 3


async def test_the_key_compaction_job_leaves_a_log_that_is_clean() -> None:
    """Its segments hold fewer records than offsets, down to none."""
    stage = await key_stage.Stage.open()
    for number in range(12):
        await stage.write(Row(b"a", b"%d" % number), Row(b"k%d" % (number % 3), b"x" * number))
    await stage.compact(max_offsets=4)
    done = await stage.clean()
    assert (done.state, done.superseded) == ("compacted", 20)
    runner = LocalTasks(tools_of(stage.context))
    assert (await audit(stage.context, runner)).findings == []
    stage.now[0] += 3 * HOUR
    report = await audit(stage.context, runner)
    assert report.clean
    assert {finding.kind for finding in report.findings} <= {"orphan", "unnamed segment"}
