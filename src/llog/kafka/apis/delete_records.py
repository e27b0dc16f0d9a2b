"""DeleteRecords: make an offset the first of a partition. API key 21, versions 0-2 (no version adds a field).

-1 stands for the high watermark. An offset below the first one changes nothing. A topic that is only compacted is
refused with POLICY_VIOLATION, as by Kafka.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from llog.errors import LlogError
from llog.kafka.administration import audited
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import check_allowed
from llog.kafka.codec.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.kafka.found_topics import found_topic
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.security.acl import ResourceType

NO_LOW_WATERMARK: Final = -1


async def handle(call: Call) -> DeleteRecordsResponse:
    request: DeleteRecordsRequest = call.request
    offsets = {Log(topic.name, one.partition_index): one.offset for topic in request.topics for one in topic.partitions}
    outcomes = await call.services.changes.run(
        {log: partial(_delete, call, log, offset) for log, offset in offsets.items()}, request.timeout_ms
    )
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for log, outcome in outcomes.items():
        topics.setdefault(log.topic, []).append(_result(log.partition, outcome))
    return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(*topic) for topic in topics.items()])


async def _delete(call: Call, log: Log, before_offset: int) -> int:
    """The first offset afterwards."""
    broker = call.services.broker
    with audited(call, "records.delete", str(log), log.topic):
        check_allowed(call, ResourceType.TOPIC, log.topic)
        topic = await found_topic(call, log.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not 0 <= log.partition < topic.partition_count:
            reason = f"{log.topic} has {topic.partition_count} partitions, numbered from 0"
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
        if topic.config.compact and not topic.config.delete:
            raise Refusal(ErrorCode.POLICY_VIOLATION, f"{log.topic} is compacted: cleanup.policy does not hold delete")
        done = await delete_records(broker.context, log, before_offset)
    broker.log_changed(log)
    return done.log_start_offset


def _result(partition: int, outcome: int | LlogError) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, LlogError):
        return DeleteRecordsPartitionResult(partition, NO_LOW_WATERMARK, code_of(outcome))
    return DeleteRecordsPartitionResult(partition, outcome)


HANDLER = Handler(key=21, handle=handle)
