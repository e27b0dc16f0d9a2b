"""DescribeLogDirs: sizes of partitions. API key 35, versions 1-5.

| version | added |
|---|---|
| 3 | an error code for the whole answer |
| 4 | total and usable bytes of the directory |
| 5 | whether the directory is cordoned |

There is one directory, the object store (LLOG_OBJECTS_URL), which has no size. Every node lists the partitions that it
leads for clients without a zone, so that the sum over all nodes counts each partition once. A size is the bytes of the
records as stored, up to a minute old.
"""

from __future__ import annotations

import time

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from llog.kafka.error_codes import code_of
from llog.log.keys import Log
from llog.log.topics.known_topics import KnownTopic
from llog.settings.urls import mask_url


async def handle(call: Call) -> DescribeLogDirsResponse:
    services = call.services
    if refusal := cluster_refusal(call):
        return DescribeLogDirsResponse(error_code=refusal)
    log_dir = mask_url(services.broker.settings.objects_url)
    try:
        logs = await _led_here(call)
    except LlogError as error:
        return DescribeLogDirsResponse(results=[DescribeLogDirsResult(code_of(error), log_dir)])
    sizes = await services.log_sizes.of(services.broker.context, logs, lambda: time.monotonic() * 1_000)
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for (_, log), size in zip(logs, sizes, strict=True):
        topics.setdefault(log.topic, []).append(DescribeLogDirsPartition(log.partition, size))
    result = DescribeLogDirsResult(log_dir=log_dir, topics=[DescribeLogDirsTopic(*topic) for topic in topics.items()])
    return DescribeLogDirsResponse(results=[result])


async def _led_here(call: Call) -> list[tuple[str, Log]]:
    """The logs of the request that this node leads, with their topic's id."""
    request: DescribeLogDirsRequest = call.request
    services = call.services
    wanted = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    known: list[KnownTopic]
    if wanted is None:
        known = await services.topics.all()
    else:
        found = await services.topics.find(wanted)
        known = [topic for topic in found.values() if isinstance(topic, KnownTopic)]
    logs: list[tuple[str, Log]] = []
    for topic, partitions in zip(known, await services.leaders.of(services.cluster, known, ""), strict=True):
        logs += (
            (topic.record.topic_id, Log(topic.name, one.partition_index))
            for one in partitions
            if one.leader_id == services.cluster.node_id
            and (wanted is None or one.partition_index in wanted[topic.name])
        )
    return logs


HANDLER = Handler(
    key=35,
    handle=handle,
    added={3: "an error code", 4: "total and usable bytes", 5: "cordoned directories"},
    left_out="Total and usable bytes are -1: an object store has no size.",
)
