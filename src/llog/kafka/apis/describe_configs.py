"""DescribeConfigs: configs of topics and of this broker. API key 32, versions 1-4.

| version | added |
|---|---|
| 1 | synonyms, sources |
| 3 | types and documentation |

Null or an empty list of names asks for all configs; unknown names are left out of the answer. A topic's configs can be
changed; a broker's are read-only and follow from its settings. The documentation of a config says what llog does with
it. A broker has no logger but `root`; client metrics and groups have no configs.
"""

from __future__ import annotations

from typing import Final

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import check_allowed, unauthorized
from llog.kafka.broker_configs import broker_configs
from llog.kafka.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from llog.kafka.config_changes import authorized_as, check_own
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.kafka.found_topics import found_topics
from llog.kafka.topic_configs import (
    TYPE_CODES,
    ConfigSource,
    ResourceType,
    ShownConfig,
    resource_type_of,
    shown_configs,
)
from llog.log.topics.known_topics import KnownTopic
from llog.security import acl

LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
"""Kafka's names of LLOG_LOG_LEVEL."""

Topics = dict[str, KnownTopic | LlogError]


async def handle(call: Call) -> DescribeConfigsResponse:
    request: DescribeConfigsRequest = call.request
    names = [one.resource_name for one in request.resources if one.resource_type == ResourceType.TOPIC]
    denied = call.denied(acl.ResourceType.TOPIC, names)
    refused: Topics = dict.fromkeys(denied, unauthorized(acl.ResourceType.TOPIC))
    topics = refused | await found_topics(call, [name for name in names if name not in denied])
    return DescribeConfigsResponse(results=[_described(call, resource, topics) for resource in request.resources])


def _described(call: Call, resource: DescribeConfigsResource, topics: Topics) -> DescribeConfigsResult:
    try:
        configs = _configs(call, resource, topics)
    except LlogError as error:
        return DescribeConfigsResult(code_of(error), str(error), resource.resource_type, resource.resource_name)
    changeable = resource.resource_type == ResourceType.TOPIC
    wanted = set(resource.configuration_keys or ())
    shown = [_result(call, one, changeable) for one in configs if not wanted or one.name in wanted]
    return DescribeConfigsResult(ErrorCode.NONE, None, resource.resource_type, resource.resource_name, shown)


def _configs(call: Call, resource: DescribeConfigsResource, topics: Topics) -> list[ShownConfig]:
    services, name = call.services, resource.resource_name
    kind = resource_type_of(resource.resource_type)
    if kind is ResourceType.TOPIC:
        topic = topics[name]
        if isinstance(topic, LlogError):
            raise topic
        return shown_configs(topic.record.config)
    check_allowed(call, *authorized_as(kind, name))
    if kind is ResourceType.BROKER and not name:
        return []  # configs that all brokers were given while they ran: there are none
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "the name of a broker, subscription or group must not be empty")
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        check_own(call, name)
    if kind is ResourceType.BROKER:
        return broker_configs(services.broker.settings, services.cluster)
    if kind is ResourceType.BROKER_LOGGER:
        return [ShownConfig("root", LEVELS[services.broker.settings.log_level], ConfigSource.BROKER_LOGGER)]
    return []


def _result(call: Call, config: ShownConfig, changeable: bool) -> DescribeConfigsResourceResult:
    request: DescribeConfigsRequest = call.request
    return DescribeConfigsResourceResult(
        config.name,
        config.value,
        read_only=not changeable,
        config_source=config.source,
        is_sensitive=False,
        synonyms=[DescribeConfigsSynonym(*one) for one in config.synonyms] if request.include_synonyms else [],
        config_type=TYPE_CODES[config.kind],
        documentation=config.meaning if request.include_documentation else None,
    )


HANDLER = Handler(
    key=32,
    handle=handle,
    added={1: "synonyms and sources", 3: "types and documentation"},
    left_out="Client metrics and groups have no configs; a broker shows those of Kafka's that mean something here.",
)
