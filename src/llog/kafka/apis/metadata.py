"""Metadata: the nodes, and topics with the node to use for each partition. API key 3, versions 0-13.

| version | added |
|---|---|
| 1 | null asks for all topics and an empty list for none (in version 0 an empty list asks for all); controller, racks |
| 2 | cluster id |
| 4 | whether missing topics may be created |
| 5 | offline replicas |
| 7 | leader epochs |
| 8 | authorized operations |
| 10 | topic ids in answers; 12: in requests |
| 13 | an error code for the whole answer |

A missing topic is created if the request and LLOG_AUTO_CREATE_TOPICS allow it, with LLOG_DEFAULT_PARTITIONS partitions
that begin at offset 0. It is answered with its partitions at once, where Kafka first answers that it is unknown.

The leader of a partition is advice (`ClusterView`), its only replica, and has epoch 0 for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from llog.audit_log import Principal, act_as
from llog.broker.cluster import zone_of_client
from llog.errors import InvalidArgument, LlogError, TopicAlreadyExists, TopicNotFound
from llog.kafka.administration import KAFKA_FIRST_OFFSET
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import judged_by_id, may_create, unauthorized, visible
from llog.kafka.codec import ZERO_UUID
from llog.kafka.codec.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.operations import NO_OPERATIONS, TOPIC_OPERATIONS, cluster_operations, topic_operations
from llog.log.keys import check_topic
from llog.log.topics.admin import create_topic
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import Operation, ResourceType

METADATA_TOPIC_IDS_SINCE: Final = 12
METADATA_CREATES_MAX: Final = 1_000
"""Topics that one request creates; clients ask for the others again."""
METADATA_STEP_TOPICS: Final = 1_000
METADATA_CREATE_TIMEOUT_MS: Final = 30_000
"""How long a request waits for the topics that it creates; clients give up after 30 to 60 seconds."""


async def handle(call: Call) -> MetadataResponse:
    request: MetadataRequest = call.request
    cluster = call.services.cluster
    if request.topics and call.version < METADATA_TOPIC_IDS_SINCE and _asks_by_id(request):
        return MetadataResponse(topics=[_failed(call, t.name or "", ErrorCode.INVALID_REQUEST) for t in request.topics])
    topics = await _topics(call)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(n.node_id, n.host, n.port, n.zone or None) for n in cluster.nodes()],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller(),
        topics=topics,
        cluster_authorized_operations=cluster_operations(call, asked=request.include_cluster_authorized_operations),
    )


def _asks_by_id(request: MetadataRequest) -> bool:
    return any(topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics or ())


async def _topics(call: Call) -> list[MetadataResponseTopic]:
    wanted = call.request.topics
    if wanted is None or (not wanted and call.version == 0):
        return await _known(call, visible(call, await call.services.topics.all()))
    if ids := list(dict.fromkeys(topic.topic_id for topic in wanted if topic.topic_id != ZERO_UUID)):
        found = await call.services.topics.find_by_id(ids)
        found = {topic_id: judged_by_id(call, topic, Operation.DESCRIBE) for topic_id, topic in found.items()}
        known = await _known(call, [topic for topic in found.values() if isinstance(topic, KnownTopic)])
        return known + [
            _failed(call, None, _code(error, ErrorCode.UNKNOWN_TOPIC_ID), topic_id)
            for topic_id, error in found.items()
            if isinstance(error, LlogError)
        ]
    return await _by_name(call, dict.fromkeys(topic.name for topic in wanted))


async def _by_name(call: Call, names: Iterable[str]) -> list[MetadataResponseTopic]:
    valid, invalid = [], []
    wanted = list(names)
    denied = call.denied(ResourceType.TOPIC, wanted, Operation.DESCRIBE)
    for name in wanted:
        if name in denied:
            invalid.append(_failed(call, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        try:
            valid.append(check_topic(name))
        except InvalidArgument:
            invalid.append(_failed(call, name, ErrorCode.INVALID_TOPIC_EXCEPTION))
    found = await call.services.topics.find(valid)
    missing = [name for name, topic in found.items() if isinstance(topic, TopicNotFound)]
    if missing and call.request.allow_auto_topic_creation and call.services.broker.settings.auto_create_topics:
        found |= await _created(call, missing[:METADATA_CREATES_MAX])
    known = await _known(call, [topic for topic in found.values() if isinstance(topic, KnownTopic)])
    failed = [(name, error) for name, error in found.items() if isinstance(error, LlogError)]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return known + [_failed(call, name, _code(error, unknown)) for name, error in failed] + invalid


async def _created(call: Call, names: list[str]) -> dict[str, KnownTopic | LlogError]:
    outcomes = await call.services.changes.run(
        {name: partial(_create, call, name) for name in names}, METADATA_CREATE_TIMEOUT_MS
    )
    failed = {name: error for name, error in outcomes.items() if error is not None}
    return failed | await call.services.topics.find(name for name in names if name not in failed)


async def _create(call: Call, name: str) -> None:
    """Create the topic; one that another client has just created is as good."""
    act_as(Principal(call.client.principal, call.client.host))
    if not may_create(call, name):
        raise unauthorized(ResourceType.TOPIC)
    broker = call.services.broker
    count = min(broker.settings.default_partitions, broker.settings.topic_partitions_max)
    try:
        await create_topic(broker.context, name, partitions=count, first_offset=KAFKA_FIRST_OFFSET, auto_created=True)
    except TopicAlreadyExists:
        pass
    finally:
        call.services.topics.forget(name)


async def _known(call: Call, topics: Sequence[KnownTopic]) -> list[MetadataResponseTopic]:
    services = call.services
    if len(topics) > METADATA_STEP_TOPICS:  # finding them has taken a turn, and encoding the answer takes another
        await asyncio.sleep(0)
    partitions = await services.leaders.of(services.cluster, topics, zone_of_client(call.client_id))
    return [
        MetadataResponseTopic(0, topic.name, topic.id_bytes, False, rows, _operations(call, topic.name))
        for topic, rows in zip(topics, partitions, strict=True)
    ]


def _failed(call: Call, name: str | None, code: ErrorCode, topic_id: bytes = ZERO_UUID) -> MetadataResponseTopic:
    # With operations if they were asked for: kafka-python's admin client fails on an answer without them.
    return MetadataResponseTopic(code, name, topic_id, topic_authorized_operations=_operations(call, name))


def _operations(call: Call, name: str | None) -> int:
    if not call.request.include_topic_authorized_operations:
        return NO_OPERATIONS
    return TOPIC_OPERATIONS if name is None else topic_operations(call, name)


def _code(error: LlogError, missing: ErrorCode) -> ErrorCode:
    """Clients ask again after LEADER_NOT_AVAILABLE, whatever made reading the topic fail."""
    code = code_of(error)
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return code
    return missing if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else ErrorCode.LEADER_NOT_AVAILABLE


HANDLER = Handler(
    key=3,
    handle=handle,
    added={
        1: "null asks for all topics, an empty list for none; controller; racks",
        2: "cluster id",
        4: "whether missing topics may be created",
        5: "offline replicas",
        7: "leader epochs",
        8: "authorized operations",
        10: "topic ids in answers",
        12: "topic ids in requests",
        13: "an error code for the whole answer",
    },
    left_out="Replicas: a partition has its leader and a reader per other zone, which is advice; any node serves all.",
)
