"""Everything at once on the simulator: writers, every job of the pipeline (two or three of some), operators that
delete, create and reconfigure topics, while stores lose answers, are away, answer from the past or write late, and
processes crash or sleep past the grace. A seed replays its run exactly.

    orders    plain; its retention changes; exported
    prices    compacted by key; its policy changes
    visits    deleted and created again, with a policy of its own each time
    sales     written by the sink, batch by batch; deleted now and then, too

A neighbour works in the same stores: another cluster with a root that begins like this one's. A job takes backups.

The answers of the writers are the model (`everything_model`). Ids that tasks draw come from the seed; nothing else of
production code is replaced.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from llog.compactor.plan import Rules
from llog.compactor.service import CompactorService
from llog.errors import (
    ExportError,
    LlogError,
    LogError,
    MetadataStoreError,
    ObjectStoreError,
    SinkError,
    UncertainOutcome,
)
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.cluster import join_cluster
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_places import BackupObjects
from llog.log.topics.admin import alter_topic, create_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import SegmentRules
from llog.pipeline.export.job import export
from llog.pipeline.export.parquet import ParquetTarget
from llog.pipeline.export.plan import Sizes
from llog.pipeline.key_compact import aggregate as key_scratch
from llog.pipeline.key_compact import tasks as key_rewrite_task
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import KeyCompactOptions, key_compact
from llog.pipeline.retain import retain_logs
from llog.pipeline.runtime.log_choice import chosen_logs
from llog.pipeline.runtime.tasks import LocalTasks, TaskTools, tools_of
from llog.pipeline.scan import splits
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.plan import UploadedSlice
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.rows import SinkGroup
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import put_blob
from llog.pipeline.vacuum.job import vacuum
from llog.settings import Settings
from llog.stores.objects.port import ObjectStore
from llog.testing.history.workload import TROUBLE, is_trouble
from llog.testing.log_scenarios import context_of
from llog.testing.sim import ActorContext
from tests.unit.compactor.stage import RememberingMetrics

ORDERS, PRICES, VISITS, SALES = "orders", "prices", "visits", "sales"
CONFIGS: Final = {
    ORDERS: {},
    PRICES: {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0.01"},
    VISITS: {},
    SALES: {},
}
NEIGHBOUR: Final = Keys(f"{Keys().root}-2")
LOGS: Final = (Log(ORDERS, 0), Log(ORDERS, 1), Log(PRICES, 0), Log(VISITS, 0))
KEYS: Final = (b"a", b"a", b"b", b"b", "ü".encode(), b"", None)
BATCHES, ROWS = 3, 5
EXPORTS: Final = "exports"

# Errors that a player may get while stores fail and others work; any other error is a bug.
MAY_HAPPEN: Final = (*TROUBLE, ExportError, SinkError)


class Row(NamedTuple):
    """A record as it was to be written; the token says which one it is."""

    token: str
    key: bytes | None
    value: bytes | None


class Asked(NamedTuple):
    op: int
    log: Log
    rows: tuple[Row, ...]


class Landed(NamedTuple):
    op: int
    start_offset: int


class Refused(NamedTuple):
    """For certain: nothing of it is in any log."""

    op: int


class DeleteAsked(NamedTuple):
    op: int
    topic: str


class Deleted(NamedTuple):
    op: int


class NeighbourLanded(NamedTuple):
    value: bytes
    offset: int


class Player:
    """One process at work."""

    def __init__(self, ctx: ActorContext) -> None:
        self.ctx, self.context = ctx, context_of(ctx)
        self.random = ctx.random
        self._ops = 0

    def op(self) -> int:
        self._ops += 1
        return self._ops

    @property
    def exports(self) -> ObjectStore:
        return self.ctx.object_store(EXPORTS)

    def tools(self) -> TaskTools:
        tools = tools_of(self.context)

        async def open_store(url: str) -> ObjectStore:
            return self.exports if url == self.exports.url else await tools.open_store(url)

        return tools._replace(open_store=open_store)

    def runner(self) -> LocalTasks:
        return LocalTasks(self.tools(), at_once=4)

    async def pause(self, ms: int) -> None:
        await self.ctx.sleep_ms(self.random.randrange(ms))


Play = Callable[[Player], Awaitable[None]]


class Unforeseen(logging.Handler):
    """The service goes on after any error and logs it: one that is not of ours is a bug."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, LlogError):
            self.errors.append(error)


@contextmanager
def nothing_unforeseen() -> Iterator[None]:
    told, logger = Unforeseen(), logging.getLogger("llog")
    logger.addHandler(told)
    try:
        yield
    finally:
        logger.removeHandler(told)
    assert told.errors == []


@contextmanager
def without_threads(seed: int) -> Iterator[None]:
    drawn = SimpleNamespace(randbits=random.Random(f"{seed}/tasks").getrandbits)
    with (
        patch.object(key_scratch, "secrets", drawn),
        patch.object(key_rewrite_task, "secrets", drawn),
        patch.object(splits, "SPLIT_BYTES_MIN", 1),  # several splits of a log of a few records
    ):
        yield


# -- writers -----------------------------------------------------------------------------------------------------------


async def write(player: Player, appends: int) -> None:
    appender = Appender(player.context)
    for _ in range(appends):
        some = player.random.sample(LOGS, player.random.randint(1, len(LOGS)))
        await _append(player, appender, some)
        await player.pause(120)
    try:
        await appender.close()
    except MAY_HAPPEN:
        pass  # the next append settles the pending one


async def _append(player: Player, appender: Appender, logs: Sequence[Log]) -> None:
    asked = []
    for log in logs:
        op = player.op()
        rows = tuple(_row(player, f"{player.ctx.name}/{op}/{i}") for i in range(player.random.randint(1, 4)))
        asked.append(Asked(op, log, rows))
    await append_asked(player, appender, asked)


async def append_asked(player: Player, appender: Appender, asked: Sequence[Asked]) -> None:
    """One flush, recorded with its answers."""
    for one in asked:
        player.ctx.record(one)
    groups = [EncodedGroup(one.log, len(one.rows), "kafka-v2", [_encoded(player, one.rows)]) for one in asked]
    try:
        outcomes: Sequence[object] = await appender.append(groups)
    except (MetadataStoreError, ObjectStoreError):
        return  # uncertain
    for one, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, Appended):
            player.ctx.record(Landed(one.op, outcome.start_offset))
        elif isinstance(outcome, LogError) and not isinstance(outcome, UncertainOutcome):
            player.ctx.record(Refused(one.op))


def _row(player: Player, token: str) -> Row:
    value = None if player.random.random() < 0.3 else token.encode() * player.random.randint(1, 3)
    return Row(token, player.random.choice(KEYS), value)


def _encoded(player: Player, rows: Sequence[Row]) -> Any:
    now_ms = player.context.now_ms()
    return encode_records(
        [row.value for row in rows],
        keys=[row.key for row in rows],
        headers=[[("token", row.token.encode())] for row in rows],
        timestamps_ms=[now_ms - player.random.choice([0, 0, 300]) for _ in rows],
        codec=player.random.choice([Codec.NONE, Codec.NONE, Codec.ZSTD]),
    )


async def sink(player: Player) -> None:
    """All batches in order, each until it is written, or another driver has gone on."""
    for batch in range(BATCHES):
        for _ in range(20):
            try:
                await commit_batch(player.context, SinkBatch("q", batch), await _uploaded(player, batch))
                break
            except SinkError as error:
                if type(error).__name__ == "SinkBatchOver":
                    break
                if type(error).__name__ == "SinkPlanLost":
                    raise
            except MAY_HAPPEN:
                pass
            await player.pause(200)


async def _uploaded(player: Player, batch: int) -> list[UploadedSlice]:
    order = await sink_order(player.context, topic=SALES)
    rows = [Row(f"{batch}-{number}", None, b"%d" % number) for number in range(ROWS)]
    slices: list[UploadedSlice] = []
    while rows:
        count = player.random.randint(1, 3)
        task, rows = rows[:count], rows[count:]
        groups = [SinkGroup(Log(SALES, 0), len(task), [_encoded(player, task)], -1)]
        assert player.context.wal is not None
        slices += await put_blob(
            player.tools(), order, player.context.wal, groups, player.context.random_bits, encoding="kafka-v2"
        )
    return slices


# -- jobs --------------------------------------------------------------------------------------------------------------


async def compact_job(player: Player) -> None:
    rules = SegmentRules(max_offsets=player.random.choice([2, 4, 2**62]))
    options = CompactOptions(rules=rules, once=player.random.random() < 0.2)
    logs = None if player.random.random() < 0.6 else player.random.sample(LOGS, 2)
    merge = player.random.random() < 0.5
    report = await compact(player.context, player.runner(), logs, options=options, merge=merge)
    for one in report.failed:
        assert is_trouble(one.error_type), one


async def key_job(player: Player) -> None:
    tools = player.tools()
    options = KeyCompactOptions(
        dry_run=player.random.random() < 0.1,
        force=player.random.random() < 0.5,
        bytes_per_second=None,
        target_bytes=player.random.choice([1, 400, 100_000]),
    )
    report = await key_compact(player.context, LocalTasks(tools), LocalKeyAggregate(tools), options=options)
    for one in report.logs:
        if one.state == "failed":
            assert not any(word in one.error for word in ("survive", "overlap", "index entry says")), one


async def retain_job(player: Player) -> None:
    await retain_logs(player.context, await chosen_logs(player.context))


async def vacuum_job(player: Player) -> None:
    await vacuum(player.context, player.runner())


async def audit_job(player: Player) -> None:
    report = await audit(player.context, player.runner(), fast=player.random.random() < 0.3)
    wrong = [finding for finding in report.findings if finding.severity == "damage"]
    assert not wrong, wrong


async def export_job(player: Player) -> None:
    target = ParquetTarget(player.exports, ORDERS)
    sizes = Sizes(split_bytes=player.random.choice([150, 2_000]), commit_bytes=player.random.choice([300, 10_000]))
    await export(player.context, player.runner(), ORDERS, target, sizes=sizes, allow_gaps=True)


async def configure_job(player: Player) -> None:
    topic = player.random.choice([ORDERS, PRICES, VISITS])
    put = {
        ORDERS: {"retention.bytes": str(player.random.choice([-1, 0, 400, 1_500]))},
        PRICES: {
            "cleanup.policy": player.random.choice(["compact", "compact", "delete", "compact,delete"]),
            "retention.bytes": str(player.random.choice([-1, -1, 3_000])),
            "delete.retention.ms": str(player.random.choice([0, 0, 400, 100_000])),
            "min.compaction.lag.ms": str(player.random.choice([0, 0, 200])),
        },
        VISITS: {"cleanup.policy": player.random.choice(["compact", "delete"]), "delete.retention.ms": "0"},
    }[topic]
    await alter_topic(player.context, topic, put=put)


async def delete_job(player: Player) -> None:
    op, topic = player.op(), player.random.choice([VISITS, VISITS, SALES])
    player.ctx.record(DeleteAsked(op, topic))
    for _ in range(3):
        try:
            await delete_topic(player.context, topic)
            player.ctx.record(Deleted(op))
            break
        except MAY_HAPPEN:
            await player.pause(50)
    if player.random.random() < 0.5:
        policy = player.random.choice(["compact", "delete"]) if topic == VISITS else "delete"
        await create_topic(player.context, topic, config={"cleanup.policy": policy, "delete.retention.ms": "0"})


async def backup_job(player: Player) -> None:
    backup_id = new_object_id(player.context.now_ms(), player.context.random_bits)
    await write_backup(player.context, BackupObjects(player.ctx.objects, player.context.keys, backup_id), backup_id)


async def neighbour_job(player: Player) -> None:
    """Another cluster in the same stores: it has a log of the same name, and vacuums its own objects."""
    context = replace(player.context, keys=NEIGHBOUR)
    await join_cluster(context)
    values = [f"{player.ctx.name}/{player.op()}".encode()]
    appender = Appender(context)
    group = EncodedGroup(Log(ORDERS, 0), 1, "kafka-v2", [encode_records(values, timestamps_ms=context.now_ms())])
    [outcome] = await appender.append([group])
    if isinstance(outcome, Appended):
        player.ctx.record(NeighbourLanded(values[0], outcome.start_offset))
    await appender.close()
    await compact(context, player.runner(), None, options=CompactOptions(rules=SegmentRules(max_offsets=2)))
    await vacuum(context, player.runner())


async def service_job(player: Player) -> None:
    """The compactor service, for a while: passes, retention, merges, key compaction, vacuum, deletions left behind."""
    url = player.ctx.objects.url
    settings = Settings.from_env(
        {},
        metadata_url="memory://",
        objects_url=url,
        wal_url=url,
        compactor_id="compactor",
        compactor_discovery_interval_ms=300,
        compactor_idle_sleep_ms=100,
        compactor_error_sleep_ms=100,
    )
    rules = Rules(
        trigger_bytes=200,
        trigger_age_ms=50,
        min_age_ms=20,
        max_offsets_per_run=player.random.choice([2, 6, 100]),
        merge_inputs_min=2,
        retention_interval_ms=200,
    )
    service = CompactorService(player.context, settings, RememberingMetrics(), rules=rules)
    await service.start()
    await player.ctx.sleep_ms(1_000)
    await service.stop(timeout_ms=player.random.choice([1, 60_000]))


JOBS: Final[dict[str, tuple[Play, int, int]]] = {
    "compact": (compact_job, 4, 150),
    "key": (key_job, 5, 120),
    "retain": (retain_job, 3, 250),
    "vacuum": (vacuum_job, 4, 500),
    "audit": (audit_job, 3, 250),
    "export": (export_job, 3, 250),
    "configure": (configure_job, 4, 150),
    "delete": (delete_job, 2, 300),
    "service": (service_job, 2, 200),
}
"""What it does, how often, and how long it rests about."""
BESIDE: Final[dict[str, tuple[Play, int, int]]] = {
    "backup": (backup_job, 3, 400),
    "neighbour": (neighbour_job, 3, 400),
}
"""In two runs of three."""


async def repeat(player: Player, job: Play, times: int, pause_ms: int) -> None:
    for _ in range(times):
        await player.pause(pause_ms)
        try:
            await job(player)
        except MAY_HAPPEN:
            pass  # the next round resumes what this one left


def drawn_roles(seed: int) -> dict[str, Play]:
    """Two writers and a compactor always, often a sink, and six jobs, some of them twice or three times."""
    draw = random.Random(f"{seed}/roles")
    roles: dict[str, Play] = {"writer-1": partial(write, appends=6), "writer-2": partial(write, appends=6)}
    if draw.random() < 0.7:
        roles |= {"sink-1": sink, "sink-2": sink}
    jobs, beside = JOBS | BESIDE, list(BESIDE) if seed % 3 < 2 else []
    for number, name in enumerate(["compact", *draw.choices([*JOBS, "key", "key"], k=6), *beside]):
        job, times, pause_ms = jobs[name]
        roles[f"{name}-{number}"] = partial(repeat, job=job, times=times, pause_ms=pause_ms)
    return roles


async def create_topics(player: Player) -> None:
    await join_cluster(player.context)
    for topic, config in CONFIGS.items():
        await create_topic(player.context, topic, partitions=2 if topic == ORDERS else 1, config=config)


async def begin(player: Player) -> None:
    """The topics, and in every other run something to clean."""
    await create_topics(player)
    appender = Appender(player.context)
    for _ in range(player.random.choice([0, 4])):
        await _append(player, appender, [Log(PRICES, 0)])
        await compact(player.context, player.runner(), [Log(PRICES, 0)])
    await appender.close()


def acting(play: Play) -> Callable[[ActorContext], Awaitable[Any]]:
    async def live(ctx: ActorContext) -> Any:
        return await play(Player(ctx))

    return live
