"""Fetch, key 1: record batches of many partitions, as stored.

Versions 4 to 18. 5 added log_start_offset, 7 fetch sessions, 9 current_leader_epoch, 11 rack_id and
preferred_read_replica, 12 last_fetched_epoch and diverging_epoch, 13 topic ids, 15 the replica's state, 16 the
endpoints of new leaders, 17 directory ids and 18 the high watermark of replicas.

Left out: fetch sessions, which answers decline with session id 0, so that every request names all its partitions; what
only replicas send (replica ids, last_fetched_epoch). There are no transactions yet: the last stable offset is the high
watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from llog.broker.consume.consume import ConsumeRequest, PartitionFetch, PartitionFetched
from llog.broker.consume.request import CONSUME_RAW_PARTITIONS_MAX
from llog.errors import LlogError, LogDeleted, OffsetOutOfRange, PartitionNotInitialized
from llog.formats.buffers import total_length
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec import Versions
from llog.kafka.codec.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.reading import (
    Found,
    find_topics,
    find_topics_by_id,
    in_turns,
    initialize_logs,
    partition_error,
)
from llog.log.keys import Log
from llog.log.read.slices import LEADER_EPOCH
from llog.log.topics.known_topics import KnownTopic

# How long an answer waits for memory that slow clients hold, before it is sent without records.
NO_ROOM_PAUSE_MS: Final = 100

READ_COMMITTED: Final = 1
NEW_SESSION_EPOCH: Final = 0
NO_SESSION_EPOCH: Final = -1
NO_OFFSET: Final = -1
NO_NODE: Final = -1

PREFERRED_REPLICA_VERSION: Final = 11
CURRENT_LEADER_VERSION: Final = 12
TOPIC_IDS_VERSION: Final = 13
ENDPOINTS_VERSION: Final = 16

# Codes that clients expect in answers to Fetch; Java's consumer fails on any other.
_EXPECTED: Final = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


def handle(call: Call) -> FetchResponse | Awaitable[FetchResponse]:
    request: FetchRequest = call.request
    if request.session_epoch not in (NEW_SESSION_EPOCH, NO_SESSION_EPOCH):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    return _fetch(call)


async def _fetch(call: Call) -> FetchResponse:
    request: FetchRequest = call.request
    topics = await _find_topics(call)
    plan = _Plan(call)
    for topic, found in zip(request.topics, topics, strict=True):
        async for some in in_turns(topic.partitions):
            plan.add(found, some)
    fetched = iter(await _consume(call, plan))
    answers = iter(plan.answers)
    responses: list[FetchableTopicResponse] = []
    for topic in request.topics:
        partitions: list[PartitionData] = []
        async for some in in_turns(topic.partitions):
            for wanted in some:
                refused = next(answers)
                partitions.append(refused or _partition_data(call, wanted.partition, next(fetched)))
        responses.append(FetchableTopicResponse(topic.topic, topic.topic_id, partitions))
    return FetchResponse(responses=responses, node_endpoints=plan.node_endpoints())


async def _find_topics(call: Call) -> list[Found]:
    topics = call.request.topics
    if call.version >= TOPIC_IDS_VERSION:
        by_id = await find_topics_by_id(call, [topic.topic_id for topic in topics])
        return [by_id[topic.topic_id] for topic in topics]
    by_name = await find_topics(call, [topic.topic for topic in topics])
    return [by_name[topic.topic] for topic in topics]


class _Plan:
    """What to read, and the answers of partitions that are not read, in the order of the request."""

    def __init__(self, call: Call) -> None:
        self._call, self._cluster = call, call.services.cluster
        self._draining = self._cluster.draining
        self._zone = call.request.rack_id or self._cluster.zone_of_client(call.client_id)
        self._leaders: set[int] = set()
        self.answers: list[PartitionData | None] = []
        """None: the partition is read."""
        self.fetches: list[PartitionFetch] = []
        self.topics: list[KnownTopic] = []
        """The topic of each fetch."""

    def add(self, topic: Found, partitions: Sequence[FetchPartition]) -> None:
        for wanted in partitions:
            answer = self._answer(topic, wanted)
            self.answers.append(answer)
            if answer is None:
                assert isinstance(topic, KnownTopic)
                log = Log(topic.name, wanted.partition)
                fetch = PartitionFetch(log, wanted.fetch_offset, wanted.partition_max_bytes, topic.incarnation)
                self.fetches.append(fetch)
                self.topics.append(topic)

    def _answer(self, topic: Found, wanted: FetchPartition) -> PartitionData | None:
        error = partition_error(topic, wanted.partition, wanted.current_leader_epoch)
        if error is ErrorCode.NONE and len(self.fetches) >= CONSUME_RAW_PARTITIONS_MAX:
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not ErrorCode.NONE:
            return _refused(wanted.partition, error)
        assert isinstance(topic, KnownTopic)
        if self._draining:
            return self._redirected(topic, wanted.partition)
        rack = self._call.request.rack_id
        if rack and self._call.version >= PREFERRED_REPLICA_VERSION:
            reader = self._cluster.preferred_reader(topic.record.topic_id, wanted.partition, rack)
            if reader not in (NO_NODE, self._cluster.node_id):
                return PartitionData(wanted.partition, 0, NO_OFFSET, preferred_read_replica=reader, records=b"")
        return None

    def _redirected(self, topic: KnownTopic, partition: int) -> PartitionData:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._call.version < CURRENT_LEADER_VERSION:
            return _refused(partition, code)
        leader = self._cluster.leader_of(topic.record.topic_id, partition, self._zone)
        self._leaders.add(leader)
        current = LeaderIdAndEpoch(leader, LEADER_EPOCH)
        return PartitionData(partition, code, NO_OFFSET, current_leader=current, records=b"")

    def node_endpoints(self) -> list[NodeEndpoint]:
        """Where the leaders are that the answer names."""
        if self._call.version < ENDPOINTS_VERSION or not self._leaders:
            return []
        nodes = [node for node in self._cluster.nodes() if node.node_id in self._leaders]
        return [NodeEndpoint(node.node_id, node.host, node.port, node.zone or None) for node in nodes]


async def _consume(call: Call, plan: _Plan) -> Sequence[PartitionFetched]:
    if not plan.fetches:
        return ()
    request: FetchRequest = call.request
    # What is answered without reading, an error or another node, is answered at once.
    at_once = len(plan.fetches) < len(plan.answers)
    wanted = ConsumeRequest(
        plan.fetches,
        0 if at_once else max(request.max_wait_ms, 0),
        max(request.min_bytes, 0),
        max(request.max_bytes, 0),
        raw=True,
    )
    call.wait_ms = wanted.max_wait_ms
    consume = call.services.broker.consume
    try:
        fetched = await consume(wanted)
    except LlogError as error:  # the broker is stopping
        return [PartitionFetched(fetch.log, fetch.fetch_offset, error=error) for fetch in plan.fetches]
    if new := [n async for some in in_turns(range(len(fetched))) for n in some if _is_new(fetched[n])]:
        await initialize_logs(call.services, [(plan.topics[n], plan.fetches[n].log) for n in new])
        fetched = await consume(wanted)
    byte_length = 0
    async for some in in_turns(fetched):
        byte_length += sum([total_length(answer.batches) for answer in some if answer.batches])
    if not await _has_room(call, byte_length):
        for answer in fetched:
            answer.batches = []
    return fetched


def _is_new(fetched: PartitionFetched) -> bool:
    return isinstance(fetched.error, PartitionNotInitialized)


async def _has_room(call: Call, byte_length: int) -> bool:
    """Whether the answer's records may be kept until the client has taken them. While there is no room, answers are
    empty, and late: clients ask again at once."""
    if call.hold(byte_length):
        return True
    await asyncio.sleep(NO_ROOM_PAUSE_MS / 1_000)
    return call.hold(byte_length)


def _partition_data(call: Call, partition: int, fetched: PartitionFetched) -> PartitionData:
    error = fetched.error
    if error is None:
        end = fetched.high_watermark + 1
        aborted: list[AbortedTransaction] | None = [] if call.request.isolation_level == READ_COMMITTED else None
        return PartitionData(
            partition, 0, end, end, fetched.log_start_offset, aborted_transactions=aborted, records=fetched.batches
        )
    if isinstance(error, OffsetOutOfRange):
        code, end = ErrorCode.OFFSET_OUT_OF_RANGE, error.next_offset
        return PartitionData(partition, code, end, end, error.log_start_offset, records=b"")
    if isinstance(error, LogDeleted):
        call.services.topics.forget(fetched.log.topic)  # what we know of it is out of date
        if call.version >= TOPIC_IDS_VERSION:
            return _refused(partition, ErrorCode.UNKNOWN_TOPIC_ID)
    return _refused(partition, code_of(error))


def _refused(partition: int, code: ErrorCode) -> PartitionData:
    expected = code if code in _EXPECTED else ErrorCode.KAFKA_STORAGE_ERROR
    return PartitionData(partition, expected, NO_OFFSET, records=b"")


HANDLER: Final = Handler(
    key=1,
    handle=handle,
    versions=Versions(4, 18),
    ends_with_client=True,
    added={
        5: "the log's start offset",
        7: "fetch sessions (declined)",
        9: "the leader epoch that the client knows",
        10: "batches compressed with zstd",
        11: "the client's rack, and the replica it should read from",
        12: "the epoch of the last record that a replica fetched (ignored)",
        13: "topic ids instead of names",
        15: "the state of a replica (ignored)",
        16: "where new leaders are",
        17: "directory ids of replicas (ignored)",
        18: "the high watermark of a replica (ignored)",
    },
    left_out=(
        "Fetch sessions are declined with session id 0, so every request names all its partitions. What only replicas "
        "send is ignored. Leaders have no epochs, so nothing diverges."
    ),
)
