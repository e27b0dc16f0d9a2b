"""What the driver does before the tasks of a batch start: look up the logs that rows may go to.

If a blob's id is drawn before a log is known, the blob must not be committed to that log (h04). So the driver reads or
creates the control records first, and passes the tasks what they need of each topic: incarnation, partition count,
record limit, timestamp type. Rows may still go to other topics: the driver checks and copies their slices afterwards
(`uploads`).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from llog.concurrency import gather_bounded
from llog.errors import FormatError, InvalidArgument, LlogError, TopicBusy
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import SINK_LOGS_IN_FLIGHT_MAX, SINK_ROUNDS_MAX
from llog.log.context import LogContext, get_all
from llog.log.keys import Log, check_topic
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import FirstWrite, initialize, load_topic
from llog.pipeline.sink.plan import UNKNOWN_INCARNATION
from llog.pipeline.sink.task import SinkOrder, SinkTarget, codec_of
from llog.stores.metadata.port import Record

# Logs that a driver looks up for rows that name their topics themselves; it copies slices of further logs.
SINK_LOGS_LISTED_MAX: Final = 20_000


async def sink_order(
    context: LogContext, *, topic: str | None = None, compression: str = "none", blob_bytes: int | None = None
) -> SinkOrder:
    """The order for tasks. All rows go to `topic`; None: each row names its topic."""
    if context.wal is None:
        raise InvalidArgument("context", "has no object store to put blobs into")
    codec_of(compression)
    targets = (
        await _list_targets(context) if topic is None else {topic: await _create_target(context, check_topic(topic))}
    )
    order = SinkOrder(
        store_url=context.wal.url,
        root_prefix=context.keys.root,
        writer_id=context.options.writer_id,
        topic=topic,
        targets=targets,
        compression=compression,
    )
    return order if blob_bytes is None else replace(order, blob_bytes=blob_bytes)


async def _create_target(context: LogContext, topic: str) -> SinkTarget:
    """The topic, with a control record for each partition. Creates the topic if topics are created on first use."""
    async for round_number in context.rounds(SINK_ROUNDS_MAX):
        loaded = await load_topic(context, topic, strict=round_number > 0)
        if loaded is None or loaded[0].state != "LIVE":
            await initialize(context, Log(topic, 0), write=FirstWrite())
            continue
        target = await _target(context, topic, loaded[0])
        if not target.missing:
            return target
        missing = [Log(topic, partition) for partition in sorted(target.missing)]
        await gather_bounded(
            missing, lambda log: initialize(context, log, write=FirstWrite()), limit=SINK_LOGS_IN_FLIGHT_MAX
        )
    raise TopicBusy(topic, f"its records kept changing for {SINK_ROUNDS_MAX} rounds")


async def _list_targets(context: LogContext) -> dict[str, SinkTarget]:
    """All live topics: with their logs for the first `SINK_LOGS_LISTED_MAX`, with the partition count only for the
    others, so that a key goes to the same partition from every task."""
    targets: dict[str, SinkTarget] = {}
    logs = 0
    async for record in context.metadata.scan_all(context.keys.topics()):
        try:
            topic = decode_value(TopicRecord, record.value, record.key.path)
        except FormatError:
            continue  # a write to this topic reports the error
        parsed = context.keys.parse(record.key.path)
        if parsed is None or topic.state != "LIVE":
            continue
        logs += topic.partition_count
        if logs > SINK_LOGS_LISTED_MAX:
            targets[parsed.topic] = SinkTarget(
                incarnation=UNKNOWN_INCARNATION, partition_count=topic.partition_count, append_time=_append_time(topic)
            )
        else:
            targets[parsed.topic] = await _target(context, parsed.topic, topic)
    return targets


async def _target(context: LogContext, topic: str, record: TopicRecord) -> SinkTarget:
    keys = [context.keys.control(Log(topic, partition)) for partition in range(record.partition_count)]
    controls = await get_all(context.metadata, keys, strict=False)
    missing = frozenset(
        partition for partition, control in enumerate(controls) if not _is_of_incarnation(control, record.incarnation)
    )
    config = _config(record)
    return SinkTarget(
        incarnation=record.incarnation,
        partition_count=record.partition_count,
        missing=missing,
        message_bytes_max=None if config is None else config.max_message_bytes,
        append_time=_append_time(record),
    )


def _is_of_incarnation(record: Record | None, incarnation: int) -> bool:
    try:
        control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
    except FormatError:
        return False
    return control is not None and control.incarnation == incarnation


def _append_time(record: TopicRecord) -> bool:
    config = _config(record)
    return config is not None and config.log_append_time


def _config(record: TopicRecord) -> TopicConfig | None:
    """None if the config is invalid: only a write to that topic reports it."""
    try:
        return TopicConfig.of(record.config)
    except LlogError:
        return None
