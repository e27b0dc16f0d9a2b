"""DeleteTopics. API key 20, versions 1-6.

| version | added |
|---|---|
| 5 | error messages |
| 6 | topics by id |

The answer comes when the topic's records are deleted, so that the name is free at once. A deletion that takes longer
than the client waits goes on; if this broker ends, the compactor finishes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from llog.errors import InvalidArgument, LlogError, TopicNotFound
from llog.kafka.administration import audited
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import check_allowed, judged_by_id
from llog.kafka.codec import ZERO_UUID
from llog.kafka.codec.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.log.keys import Log, check_topic
from llog.log.topics.delete import delete_topic
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import Operation, ResourceType

TOPIC_IDS_SINCE: Final = 6
Found = Mapping[bytes, KnownTopic | LlogError]


async def handle(call: Call) -> DeleteTopicsResponse:
    request: DeleteTopicsRequest = call.request
    wanted = request.topics if call.version >= TOPIC_IDS_SINCE else [DeleteTopicState(n) for n in request.topic_names]
    found = await call.services.topics.find_by_id(one.topic_id for one in wanted if one.topic_id != ZERO_UUID)
    found = {topic_id: judged_by_id(call, topic, Operation.DELETE) for topic_id, topic in found.items()}
    plan = plan_deletions(wanted, found)
    outcomes = await call.services.changes.run(
        {name: partial(_delete, call, name, known) for name, known in plan.deletions.items()}, request.timeout_ms
    )
    done = [_result(name, plan.deletions[name], outcome) for name, outcome in outcomes.items()]
    return DeleteTopicsResponse(responses=done + list(plan.refused))


class Deletions(NamedTuple):
    deletions: dict[str, KnownTopic | None]
    """By name; with the topic where the request gave its id."""
    refused: Sequence[DeletableTopicResult]


def plan_deletions(wanted: Sequence[DeleteTopicState], found: Found) -> Deletions:
    """What to delete, given the topics of the request's ids. A topic that is named twice is not deleted."""
    names = Counter(one.name for one in wanted if one.name is not None)
    deletions: dict[str, KnownTopic | None] = dict.fromkeys(names)
    refused: dict[tuple[str | None, bytes], Refusal | LlogError] = {}
    ids = Counter(one.topic_id for one in wanted if one.topic_id != ZERO_UUID)
    for one in wanted:
        if one.name is not None and one.topic_id != ZERO_UUID:
            deletions.pop(one.name, None)
            refused[one.name, one.topic_id] = _invalid("a topic is given by its name or by its id, not by both")
        elif one.name is not None:
            if names[one.name] > 1:
                deletions.pop(one.name, None)
                refused[one.name, ZERO_UUID] = _invalid("the request names this topic more than once")
        elif one.topic_id == ZERO_UUID:
            refused[None, ZERO_UUID] = _invalid("neither a name nor an id is given")
        else:
            topic = found[one.topic_id]
            if isinstance(topic, LlogError):
                refused[None, one.topic_id] = _unknown_id(topic)
            elif ids[one.topic_id] > 1 or topic.name in names:
                deletions.pop(topic.name, None)
                refused[topic.name, one.topic_id] = _invalid("the request names this topic more than once")
            else:
                deletions[topic.name] = topic
    return Deletions(deletions, [_failed(name, topic_id, error) for (name, topic_id), error in refused.items()])


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


def _unknown_id(error: LlogError) -> LlogError:
    return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, str(error)) if isinstance(error, TopicNotFound) else error


async def _delete(call: Call, name: str, known: KnownTopic | None) -> bytes:
    """Delete the topic; its id, if it can be known."""
    broker = call.services.broker
    with audited(call, "topic.delete", name, name):
        if known is None:  # else its id was judged
            check_allowed(call, ResourceType.TOPIC, name, Operation.DELETE)
        try:
            check_topic(name)
        except InvalidArgument as error:
            raise TopicNotFound(name, "no such topic") from error
        by_id = known is not None
        if known is None:
            live = (await call.services.topics.find([name]))[name]
            known = live if isinstance(live, KnownTopic) else None
        # A deletion by id never takes a later topic of the same name; one by name also continues an unfinished one.
        done = await delete_topic(broker.context, name, known.incarnation if by_id and known is not None else None)
    for partition in range(done.partitions):
        broker.log_changed(Log(name, partition))
    return ZERO_UUID if known is None else known.id_bytes


def _result(name: str, known: KnownTopic | None, outcome: bytes | LlogError) -> DeletableTopicResult:
    if isinstance(outcome, LlogError):
        return _failed(name, ZERO_UUID if known is None else known.id_bytes, outcome)
    return DeletableTopicResult(name, outcome)


def _failed(name: str | None, topic_id: bytes, error: LlogError) -> DeletableTopicResult:
    return DeletableTopicResult(name, topic_id, code_of(error), str(error))


HANDLER = Handler(key=20, handle=handle, added={5: "error messages", 6: "topics by id"})
