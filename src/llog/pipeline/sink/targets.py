"""What the driver does before the tasks of a batch begin: know the logs that rows may go to.

Why it exists: a blob whose id is drawn before its log is known must not be committed to that log (h04). So the driver
reads, or makes, the control records first, and tells the tasks which logs those are, of which life, how many partitions
each topic has, and how large its records may be. Logs of other topics can still be written to: the driver judges their
slices, and copies them, afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from llog.errors import FormatError, InvalidArgument, LlogError, TopicBusy
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import SINK_ROUNDS_MAX
from llog.log.context import LogContext, get_all
from llog.log.keys import Log, check_topic
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import for_each_partition, initialize, load_topic
from llog.pipeline.sink.plan import UNKNOWN_LIFE
from llog.pipeline.sink.task import SinkOrder, Target, codec_of
from llog.stores.metadata.port import Record

# Logs that a driver looks up for rows that name their topics themselves; slices of others are copied by the driver.
SINK_LOGS_LISTED_MAX: Final = 20_000


async def sink_order(
    context: LogContext, *, topic: str | None = None, compression: str = "none", blob_bytes: int | None = None
) -> SinkOrder:
    """For rows that all go to `topic`, or that each name theirs."""
    if context.wal is None:
        raise InvalidArgument("context", "has no store to put blobs into")
    codec_of(compression)
    targets = await _listed(context) if topic is None else {topic: await _made(context, check_topic(topic))}
    order = SinkOrder(
        store_url=context.wal.url,
        root_prefix=context.keys.root,
        writer_id=context.options.writer_id,
        topic=topic,
        targets=targets,
        compression=compression,
    )
    return order if blob_bytes is None else replace(order, blob_bytes=blob_bytes)


async def _made(context: LogContext, topic: str) -> Target:
    """The topic, with a control record for each of its partitions; created where topics create themselves."""
    for round_number in range(SINK_ROUNDS_MAX):
        found = await load_topic(context, topic, strict=round_number > 0)
        if found is None or found[0].state != "LIVE":
            await initialize(context, Log(topic, 0))
            continue
        target = await _target(context, topic, found[0])
        if not target.missing:
            return target
        missing = sorted(target.missing)

        async def make(number: int, missing: Sequence[int] = missing) -> None:
            await initialize(context, Log(topic, missing[number]))

        await for_each_partition(len(missing), make)
        await context.back_off(round_number)
    raise TopicBusy(topic, f"its records kept changing for {SINK_ROUNDS_MAX} rounds")


async def _listed(context: LogContext) -> dict[str, Target]:
    """Topics that are there; of as many as one driver looks up, their logs. Of the others at least how many partitions
    they have: a key goes to the same one whoever writes it."""
    targets: dict[str, Target] = {}
    logs = 0
    async for record in context.metadata.scan_all(context.keys.topics()):
        try:
            topic = decode_value(TopicRecord, record.value, record.key.path)
        except FormatError:
            continue  # whoever writes to it is told
        parsed = context.keys.parse(record.key.path)
        if parsed is None or topic.state != "LIVE":
            continue
        logs += topic.partition_count
        if logs > SINK_LOGS_LISTED_MAX:
            targets[parsed.topic] = Target(incarnation=UNKNOWN_LIFE, partition_count=topic.partition_count)
        else:
            targets[parsed.topic] = await _target(context, parsed.topic, topic)
    return targets


async def _target(context: LogContext, topic: str, record: TopicRecord) -> Target:
    keys = [context.keys.control(Log(topic, partition)) for partition in range(record.partition_count)]
    controls = await get_all(context.metadata, keys, strict=False)
    missing = frozenset(
        partition for partition, found in enumerate(controls) if not _is_of_life(found, record.incarnation)
    )
    return Target(
        incarnation=record.incarnation,
        partition_count=record.partition_count,
        missing=missing,
        message_bytes_max=_message_bytes_max(record),
    )


def _is_of_life(found: Record | None, incarnation: int) -> bool:
    try:
        control = None if found is None else decode_value(ControlRecord, found.value, found.key.path)
    except FormatError:
        return False
    return control is not None and control.incarnation == incarnation


def _message_bytes_max(record: TopicRecord) -> int | None:
    """None for a config that cannot be understood: it harms nobody but those who write to that topic."""
    try:
        return TopicConfig.of(record.config).max_message_bytes
    except LlogError:
        return None
