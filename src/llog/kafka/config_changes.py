"""Changes of configs, for AlterConfigs and IncrementalAlterConfigs: only topics have configs that clients can change.

A broker's configs follow from its settings, which a restart changes. Client metrics and groups have no configs here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from llog.errors import LlogError
from llog.kafka.administration import audited
from llog.kafka.apis.handler import Call
from llog.kafka.authorization import check_allowed
from llog.kafka.error_codes import ErrorCode, Refusal
from llog.kafka.found_topics import found_topic
from llog.kafka.topic_configs import ResourceType, resource_type_of
from llog.log.topics.admin import change_config
from llog.security import acl

CONFIG_CHANGE_TIMEOUT_MS: Final = 30_000
"""How long a client waits for changes of configs: these requests do not say."""

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""From the stored configs of a topic to the new ones. Raises `Refusal`."""


class Alteration(NamedTuple):
    resource_type: int
    resource_name: str
    config_names: Sequence[str]
    change: Change


async def alter(call: Call, wanted: Sequence[Alteration], *, validate_only: bool) -> list[LlogError | None]:
    """Why each alteration was refused, in order; None: it was done."""
    times = Counter((one.resource_type, one.resource_name) for one in wanted)
    outcomes = await call.services.changes.run(
        {number: partial(_alter, call, one, times, validate_only) for number, one in enumerate(wanted)},
        CONFIG_CHANGE_TIMEOUT_MS,
    )
    return list(outcomes.values())


async def _alter(call: Call, wanted: Alteration, times: Counter[tuple[int, str]], validate_only: bool) -> None:
    name = wanted.resource_name
    if wanted.resource_type != ResourceType.TOPIC:
        check_allowed(call, *authorized_as(wanted.resource_type, name))
        return _refuse_other(call, wanted)
    with audited(call, "topic.alter", name, name, dry_run=validate_only):
        check_allowed(call, *authorized_as(wanted.resource_type, name))
        if times[wanted.resource_type, name] > 1:
            raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this resource more than once")
        if not name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "topics have no configs in common: name a topic")
        if len(set(wanted.config_names)) < len(wanted.config_names):
            raise Refusal(ErrorCode.INVALID_REQUEST, "the request names a config more than once")
        topic = await found_topic(call, name)
        wanted.change(topic.record.config)
        if not validate_only:
            await change_config(call.services.broker.context, name, wanted.change)


def authorized_as(resource_type: int, name: str) -> tuple[acl.ResourceType, str]:
    """The resource whose configs these are, for authorization. `Refusal` with INVALID_REQUEST for an unknown code."""
    kind = resource_type_of(resource_type)
    if kind is ResourceType.TOPIC:
        return acl.ResourceType.TOPIC, name
    return (
        (acl.ResourceType.GROUP, name) if kind is ResourceType.GROUP else (acl.ResourceType.CLUSTER, acl.CLUSTER_NAME)
    )


def check_own(call: Call, node_id: str) -> None:
    """Only a broker itself knows its configs."""
    own = call.services.cluster.node_id
    if node_id != str(own):
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"this is broker {own}, which does not know configs of {node_id!r:.100}"
        )


def _refuse_other(call: Call, wanted: Alteration) -> None:
    if resource_type_of(wanted.resource_type) is ResourceType.BROKER and wanted.resource_name:
        check_own(call, wanted.resource_name)
    if wanted.config_names:
        reason = "cannot be changed while the broker runs: its settings are LLOG_… variables"
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{', '.join(wanted.config_names)[:200]}: {reason}")
