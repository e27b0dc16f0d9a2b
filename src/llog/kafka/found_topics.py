"""Topics that administration names: found, or refused with the code that Kafka answers."""

from __future__ import annotations

from llog.errors import InvalidArgument, LlogError, TopicNotFound
from llog.kafka.apis.handler import Call
from llog.kafka.error_codes import ErrorCode, Refusal
from llog.log.keys import check_topic
from llog.log.topics.known_topics import KnownTopic


async def found_topic(call: Call, name: str) -> KnownTopic:
    """A LIVE topic, as it is now. An invalid name is that of no topic."""
    try:
        check_topic(name)
    except InvalidArgument as error:
        raise TopicNotFound(name[:100], "no such topic") from error
    call.services.topics.forget(name)
    found = (await call.services.topics.find([name]))[name]
    if isinstance(found, LlogError):
        raise found
    return found


async def named_topic(call: Call, name: str) -> KnownTopic:
    """`found_topic`, but an invalid name is refused as such."""
    try:
        check_topic(name)
    except InvalidArgument as error:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
    return await found_topic(call, name)
