"""Topics that administration names: found, or refused with the code that Kafka answers.

Administration reads a topic now, whatever this broker remembers: a client may have changed it through another broker.
"""

from __future__ import annotations

from collections.abc import Iterable

from llog.errors import InvalidArgument, LlogError
from llog.kafka.apis.handler import Call
from llog.kafka.error_codes import ErrorCode, Refusal
from llog.log.keys import check_topic
from llog.log.topics.known_topics import KnownTopic


async def found_topics(
    call: Call, names: Iterable[str], invalid: ErrorCode = ErrorCode.INVALID_TOPIC_EXCEPTION
) -> dict[str, KnownTopic | LlogError]:
    """The LIVE topics of these names; `invalid` is the code of a name that no topic can have."""
    valid: list[str] = []
    found: dict[str, KnownTopic | LlogError] = {}
    for name in dict.fromkeys(names):
        try:
            valid.append(check_topic(name))
        except InvalidArgument as error:
            found[name] = Refusal(invalid, str(error))
    for name in valid:
        call.services.topics.forget(name)
    return found | await call.services.topics.find(valid)


async def found_topic(call: Call, name: str, invalid: ErrorCode = ErrorCode.INVALID_TOPIC_EXCEPTION) -> KnownTopic:
    """`found_topics` of one; raises its error."""
    found = (await found_topics(call, [name], invalid))[name]
    if isinstance(found, LlogError):
        raise found
    return found
