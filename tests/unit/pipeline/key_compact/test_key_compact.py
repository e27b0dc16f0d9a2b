"""Key compaction keeps of every key the last record, at its offset, and nothing a reader could miss."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path
from typing import Any, Final

import pytest

from llog.errors import InvalidArgument, LogBusy, TopicNotFound
from llog.formats.records.record_batch import BatchRule, Codec, walk
from llog.limits import KEY_COMPACT_LEVEL
from llog.log.append.append import Appender, EncodedGroup
from llog.log.cleanup.retention import delete_records
from llog.log.ids import new_object_id
from llog.log.inspect.check_objects import read_footer
from llog.log.keys import Log
from llog.log.read.read import read_offset
from llog.log.rewrite import publish
from llog.log.topics.admin import create_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.key_compact import key_pass
from llog.pipeline.key_compact.aggregate import KEY_COMPACT_SCRATCH_AGE_MS_MAX, LocalKeyAggregate, scratch_root
from llog.pipeline.key_compact.job import KeyCompactOptions, key_compact
from llog.pipeline.key_compact.key_pass import publish_group
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.stores.objects import file
from llog.stores.objects.port import checked
from tests.unit.pipeline.compact.compact_stage import CountingObjects
from tests.unit.pipeline.key_compact.key_stage import FAST, HOUR, LOG, START_MS, Row, Stage, random_rows

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
KEYS: Final = [b"a", b"b", b"c", b"d", b"", None]


# -- against the reference ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1_000 if SOAK else 30))
async def test_any_history_reads_as_the_reference_says(seed: int) -> None:
    rng = random.Random(seed)
    config = {
        "delete.retention.ms": str(rng.choice([0, HOUR, 24 * HOUR])),
        "min.compaction.lag.ms": str(rng.choice([0, 0, HOUR])),
    }
    stage = await Stage.open(config, atomic=seed % 2 == 0)
    options = FAST._replace(target_bytes=rng.choice([1, 400, 2**28]), scan_task_bytes=rng.choice([1, 500, 2**26]))
    for _ in range(rng.randint(10, 40)):
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                await stage.write(*random_rows(rng, KEYS, stage.now[0]), codec=rng.choice(list(Codec)))
            case 4 | 5:
                await stage.compact(max_offsets=rng.randint(1, 12))
            case 6:
                await stage.merge()
            case 7:
                stage.now[0] += rng.choice([1, HOUR // 2, HOUR, 25 * HOUR])
            case 8 if rng.random() < 0.3 and stage.model:
                await delete_records(stage.context, stage.log, rng.choice(stage.model).record.offset)
            case _:
                done = await stage.clean(options)
                gone = await stage.clean_model()
                assert done.superseded + done.tombstones >= gone
                await stage.check()
    await stage.compact()
    await stage.clean(options)
    await stage.clean_model()
    await stage.check()
    before = await stage.names()
    again = await stage.clean(options)
    assert (again.superseded, again.tombstones, again.segments_written) == (0, 0, 0)
    assert await stage.names() == before


async def test_appends_compactions_and_merges_may_go_on_while_a_pass_runs() -> None:
    stage, rng = await Stage.open({"delete.retention.ms": "0"}), random.Random(9)
    working = True

    async def write() -> None:
        while working:
            await stage.write(*random_rows(rng, KEYS, stage.now[0]))
            await asyncio.sleep(0.001)

    async def rewrite() -> None:
        while working:
            with contextlib.suppress(LogBusy):  # the pass was faster each time
                await compact_once(stage.context, LOG, max_offsets=20)
                await stage.merge()
            await asyncio.sleep(0.002)

    others = [asyncio.create_task(write()), asyncio.create_task(rewrite())]
    superseded = 0
    for _ in range(15):
        superseded += (await stage.clean()).superseded
        await asyncio.sleep(0.005)
    working = False
    await asyncio.gather(*others)
    await stage.compact()
    await stage.clean()
    await stage.clean_model()
    await stage.check()
    assert superseded > 50, "nothing was removed on the way: the test proved less than it says"


# -- tombstones --------------------------------------------------------------------------------------------------------


async def test_a_tombstone_has_its_time_from_the_pass_that_removed_what_it_deletes() -> None:
    stage = await Stage.open({"delete.retention.ms": str(HOUR)})
    # Its own timestamp is a month old: who began to read a minute ago must still meet it.
    await stage.write(Row(b"a", b"1", START_MS - 720 * HOUR), Row(b"a", None, START_MS - 720 * HOUR), Row(b"b", b"2"))
    await stage.compact()
    done = await stage.clean()
    assert (done.superseded, done.tombstones) == (1, 0)
    assert [(r.key, r.payload, r.timestamp_ms) for r in await stage.read()] == [
        (b"a", None, START_MS - 720 * HOUR),
        (b"b", b"2", START_MS),
    ]
    stage.now[0] += HOUR - 1
    assert (await stage.clean()).segments_written == 0
    stage.now[0] += 1
    assert (await stage.clean()).tombstones == 1
    assert [r.key for r in await stage.read()] == [b"b"]


async def test_a_tombstone_outlives_a_group_below_it_that_could_not_be_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await Stage.open({"delete.retention.ms": "0"})
    await stage.write(Row(b"a", b"old"), Row(b"x", b"1"))
    await stage.compact()
    await stage.write(Row(b"a", None))
    await stage.compact()
    published: list[int] = []

    async def refuse_the_first(*args: object) -> str:
        published.append(len(published))
        return "changed" if published == [0] else await publish_group(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(key_pass, "publish_group", refuse_the_first)
    monkeypatch.setattr("llog.pipeline.key_compact.job.KEY_COMPACT_ROUNDS_MAX", 1)
    done = await stage.clean(FAST._replace(target_bytes=1))
    assert done.state == "changed meanwhile"
    assert published == [0], "a group above one that failed was published"
    assert [(r.key, r.payload) for r in await stage.read()] == [(b"a", b"old"), (b"x", b"1"), (b"a", None)]


async def test_no_deleted_value_comes_back_while_groups_are_being_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the swap of a group's end key and the removal of its lower keys, old entries still answer reads."""
    stage = await Stage.open({"delete.retention.ms": "0"})
    for rows in ([Row(b"a", b"1"), Row(b"x", b"1")], [Row(b"a", None), Row(b"x", b"2")], [Row(b"x", b"3")]):
        await stage.write(*rows)
        await stage.compact()
    seen: list[list[bytes | None]] = []
    remove = publish._delete_lower_keys

    async def look_first(*args: Any) -> None:
        last = {record.key: record.payload for record in await stage.read()}
        seen.append([last.get(b"a"), last.get(b"x")])
        await remove(*args)

    monkeypatch.setattr(publish, "_delete_lower_keys", look_first)
    assert (await stage.clean()).segments_replaced == 3
    assert seen == [[None, b"3"]] * len(seen)
    assert len(seen) > 1


async def test_records_without_a_key_stay() -> None:
    stage = await Stage.open({"delete.retention.ms": "0"})
    await stage.write(Row(None, b"1"), Row(b"a", b"2"), Row(None, None), Row(b"a", b"3"))
    await stage.compact()
    await stage.clean()
    assert [(r.offset, r.payload) for r in await stage.read()] == [(1, b"1"), (3, None), (4, b"3")]


async def test_an_empty_key_is_a_key_and_keys_are_compared_whole() -> None:
    stage = await Stage.open()
    await stage.write(
        Row(b"", b"1"), Row(b"\x00", b"2"), Row(b"k" * 5_000 + b"1", b"3"), Row(b"k" * 5_000 + b"2", b"4")
    )
    await stage.write(Row(b"", b"5"))
    await stage.compact()
    await stage.clean()
    assert [r.payload for r in await stage.read()] == [b"2", b"3", b"4", b"5"]


# -- what is left of a log ---------------------------------------------------------------------------------------------


async def test_a_log_of_which_nothing_is_left_stays_readable_and_covered() -> None:
    stage = await Stage.open({"delete.retention.ms": "0"})
    await stage.write(Row(b"a", b"1"), Row(b"b", b"2"))
    await stage.write(Row(b"a", None), Row(b"b", None))
    await stage.compact()
    assert (await stage.clean()).tombstones == 2
    await stage.clean_model()
    await stage.check()
    [entry] = await stage.entries()
    assert (entry.value.msg_count, entry.value.record_count) == (4, 0)
    await stage.write(Row(b"c", b"3"))
    assert (await read_offset(stage.context, LOG, 1)).payload == b"3"
    await stage.compact()
    assert (await stage.clean()).state == "compacted"
    assert await stage.merge()
    await stage.check()


async def test_a_batch_that_lost_records_keeps_its_range_its_producer_and_its_codec() -> None:
    stage = await Stage.open()
    written = {"producer_id": 77, "producer_epoch": 3, "base_sequence": 40}
    await stage.write(Row(b"a", b"1"), Row(b"b", b"2"), Row(b"a", b"3"), Row(b"b", b"4"), codec=Codec.ZSTD, **written)
    await stage.write(Row(b"b", b"5"))
    await stage.compact()
    await stage.clean()
    [entry] = await stage.entries()
    assert (entry.value.level, entry.value.record_count, entry.value.msg_count) == (KEY_COMPACT_LEVEL, 2, 5)
    store, name = await stage.context.find_object(entry.value.data_key)
    data = await store.get(name)
    footer, _ = await read_footer(store, name, None, name)
    batches = walk(memoryview(data)[: footer.data_length], name, rule=BatchRule.COMPACTED)
    first = batches.header(0)
    assert (first.base_offset, first.last_offset_delta, first.record_count, first.codec) == (1, 3, 1, Codec.ZSTD)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (77, 3, 40)
    assert footer.extension is not None
    assert (footer.extension.start_offset, footer.extension.end_offset) == (1, 5)
    await stage.clean_model()
    await stage.check()


async def test_timestamps_at_the_edge_of_64_bits_survive() -> None:
    stage = await Stage.open()
    await stage.write(Row(b"a", b"1", 2**62), Row(b"b", b"2", 0), Row(b"b", b"3", 1), Row(b"c", None, 2**61))
    await stage.compact()
    await stage.clean()
    await stage.clean_model()
    await stage.check()


async def test_bare_payloads_have_no_keys_and_are_left_alone() -> None:
    stage = await Stage.open()
    from llog.formats.records.bytes_batch import encode_bytes_batch

    body = encode_bytes_batch([b"x", b"y"])
    await Appender(stage.context).append([EncodedGroup(LOG, 2, "bytes-batch-v1", body, -1)])
    await stage.compact()
    await stage.clean()
    assert [(r.offset, r.payload) for r in await stage.read()] == [(1, b"x"), (2, b"y")]


# -- when it runs ------------------------------------------------------------------------------------------------------


async def test_a_log_that_is_not_dirty_enough_waits_until_it_is_or_was_for_too_long() -> None:
    stage = await Stage.open({"min.cleanable.dirty.ratio": "0.6", "max.compaction.lag.ms": str(10 * HOUR)})
    options = FAST._replace(force=False)
    for _ in range(3):
        await stage.write(Row(b"a", b"1" * 100), Row(b"b", b"2" * 100))
    await stage.compact()
    assert (await stage.clean(options)).state == "compacted"
    assert (await stage.clean(options)).state == "clean"
    await stage.write(Row(b"a", b"3"))
    await stage.compact()
    waiting = await stage.clean(options)
    assert waiting.state == "not dirty enough"
    assert 0 < waiting.dirty_ratio < 0.6
    stage.now[0] += 10 * HOUR
    assert (await stage.clean(options)).superseded == 1


async def test_records_younger_than_the_lag_are_left_alone_and_supersede_nothing() -> None:
    stage = await Stage.open({"min.compaction.lag.ms": str(HOUR)})
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
    await stage.compact()
    stage.now[0] += HOUR
    await stage.write(Row(b"a", b"3"))
    await stage.compact()
    assert (await stage.clean()).superseded == 1
    assert [r.payload for r in await stage.read()] == [b"2", b"3"]


async def test_merging_clean_segments_leaves_them_clean() -> None:
    stage = await Stage.open()
    for number in range(3):
        await stage.write(Row(b"%d" % number, b"1"), Row(b"%d" % number, b"2"))
        await stage.compact()
    assert (await stage.clean(FAST._replace(target_bytes=1))).segments_written == 3
    assert await stage.merge()
    done = await stage.clean(FAST._replace(force=False))
    assert (done.state, done.clean_until, done.dirty_ratio) == ("clean", 7, 0.0)


async def test_topics_of_another_policy_are_left_out_unless_they_are_asked_for() -> None:
    stage = await Stage.open()
    await create_topic(stage.context, "events", config={"cleanup.policy": "delete"})
    tools = tools_of(stage.context)
    both = (stage.context, LocalTasks(tools), LocalKeyAggregate(tools))
    assert [one.log for one in (await key_compact(*both)).logs] == [LOG]
    asked = await key_compact(*both, [Log("events", 0), Log("nowhere", 0)])
    assert [(one.topic, one.state) for one in asked.logs] == [("events", "not by key"), ("nowhere", "failed")]
    assert not asked.ok
    assert str(TopicNotFound("nowhere", "no such topic")) in asked.logs[1].error


async def test_a_dry_run_says_what_would_go_and_changes_nothing() -> None:
    stage = await Stage.open({"delete.retention.ms": "0"})
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"), Row(b"b", None))
    await stage.compact()
    before = await stage.entries(), await stage.names(), await stage.read()
    done = await stage.clean(FAST._replace(dry_run=True))
    assert (done.superseded, done.tombstones, done.segments_replaced) == (1, 1, 1)
    assert (await stage.entries(), await stage.names(), await stage.read()) == before
    real = await stage.clean()
    assert (real.superseded, real.tombstones, real.bytes_after) == (1, 1, done.bytes_after)


# -- how much it reads, and what others left ---------------------------------------------------------------------------


async def test_each_pass_reads_a_segment_once() -> None:
    objects = CountingObjects()
    stage = await Stage.open(objects=objects)
    for _ in range(3):
        await stage.write(Row(b"a", b"1"), Row(b"b", b"2"))
        await stage.compact()
    objects.gets.clear()
    await stage.clean()
    of_segments = [count for name, count in objects.gets.items() if "compacted" in name]
    assert of_segments == [2, 2, 2], "one request for its keys, one for its survivors"


class _WatchedRunner(LocalTasks):
    def __init__(self, stage: Stage) -> None:
        super().__init__(tools_of(stage.context))
        self.running = self.most = 0
        self.rates: dict[str, set[float | None]] = {}

    async def run(self, task: Any, items: Any, on_done: Any = None, **parts: Any) -> Any:
        self.running += len(items)
        self.most = max(self.most, self.running)
        self.rates.setdefault(task.place.partition(":")[2], set()).update(item.bytes_per_second for item in items)
        try:
            return await super().run(task, items, on_done, **parts)
        finally:
            self.running -= len(items)


async def test_tasks_that_run_at_a_time_share_the_reading_speed() -> None:
    stage = await Stage.open()
    for _ in range(5):
        await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
        await stage.compact()
    runner = _WatchedRunner(stage)
    speed = FAST._replace(bytes_per_second=9e6, tasks_at_once=3, scan_task_bytes=1)
    await stage.clean(speed, runner=runner)
    assert runner.most == 3
    assert runner.rates == {"scan_keys": {3e6}, "rewrite_keys": {9e6}}, "five tasks, three at a time; one task alone"


async def test_a_run_that_another_left_in_flight_is_finished_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = await Stage.open()
    await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))

    async def die(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(publish, "_delete_lower_keys", die)
        with pytest.raises(asyncio.CancelledError):
            await compact_once(stage.context, LOG)
    assert (await stage.clean()).superseded == 1
    await stage.clean_model()
    await stage.check()


async def test_what_a_crash_left_between_the_passes_goes_when_it_is_old() -> None:
    stage = await Stage.open()
    root = scratch_root(stage.context.keys.root)
    old_ms = stage.now[0] - KEY_COMPACT_SCRATCH_AGE_MS_MAX - 1
    old, young = (new_object_id(at, random.Random(1).getrandbits) for at in (old_ms, stage.now[0]))
    for pass_id in (old, young):
        await stage.objects.put(f"{root}{pass_id}/part", [b"x"])
    await stage.clean()
    assert [name for name in await stage.names() if "@scratch" in name] == [f"{root}{young}/part"]


async def test_nothing_is_left_of_the_passes_in_a_directory(tmp_path: Path) -> None:
    async with await checked(await file.open_from_url(f"file://{tmp_path}")) as store:
        stage = await Stage.open(objects=store)
        await stage.write(Row(b"a", b"1"), Row(b"a", b"2"))
        await stage.compact()
        (tmp_path / scratch_root(stage.context.keys.root) / "of-a-job-that-died").mkdir(parents=True)
        assert (await stage.clean()).superseded == 1
        assert not _scratch_below(tmp_path)


def _scratch_below(directory: Path) -> list[Path]:
    return list(directory.rglob("@scratch*"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tasks_at_once", 0),
        ("bytes_per_second", 0.0),
        ("bytes_per_second", float("nan")),
        ("target_bytes", 0),
        ("scan_task_bytes", -1),
    ],
)
async def test_an_option_that_makes_no_sense_is_named(option: str, value: float) -> None:
    stage = await Stage.open()
    with pytest.raises(InvalidArgument, match=option):
        await stage.clean(KeyCompactOptions(**{option: value}))  # type: ignore[arg-type]
