"""IncrementalAlterConfigs: set some configs of a topic, reset or extend others. API key 44, versions 0-1 (no version
adds a field).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from llog.kafka.config_changes import Alteration, alter
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.kafka.topic_configs import checked
from llog.log.topics.config_table import CONFIGS


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(call: Call) -> IncrementalAlterConfigsResponse:
    request: IncrementalAlterConfigsRequest = call.request
    wanted = [_alteration(resource) for resource in request.resources]
    outcomes = await alter(call, wanted, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[_result(resource, error) for resource, error in zip(request.resources, outcomes, strict=True)]
    )


def _alteration(resource: AlterConfigsResource) -> Alteration:
    names = [config.name for config in resource.configs]
    return Alteration(
        resource.resource_type, resource.resource_name, names, lambda stored: plan_configs(stored, resource.configs)
    )


def plan_configs(stored: Mapping[str, str], operations: Sequence[AlterableConfig]) -> dict[str, str]:
    """The stored configs after the operations. `Refusal` with Kafka's codes."""
    planned = dict(stored)
    for config in operations:
        operation = _operation(config)
        if operation is Operation.DELETE:
            planned.pop(config.name, None)
            continue
        if config.value is None:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"config {config.name!r:.100}: null is no value")
        value = config.value
        if operation is not Operation.SET:
            value = _extended(stored, config.name, value, operation)
        planned |= checked({config.name: value})
    return planned


def _operation(config: AlterableConfig) -> Operation:
    try:
        return Operation(config.config_operation)
    except ValueError:
        reason = f"config {config.name!r:.100}: unknown operation {config.config_operation}"
        raise Refusal(ErrorCode.INVALID_REQUEST, reason) from None


def _extended(stored: Mapping[str, str], name: str, value: str, operation: Operation) -> str:
    """The list with items added or removed; a config that is not set begins as its default."""
    spec = CONFIGS.get(name)
    if spec is None or spec.kind != "list":
        raise Refusal(ErrorCode.INVALID_CONFIG, f"config {name!r:.100}: {operation.name} is for lists only")
    items = _items(stored.get(name, spec.default))
    given = _items(value)
    if operation is Operation.APPEND:
        return ",".join(dict.fromkeys(items + given))
    return ",".join(item for item in items if item not in given)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _result(resource: AlterConfigsResource, error: LlogError | None) -> AlterConfigsResourceResponse:
    code, message = (ErrorCode.NONE, None) if error is None else (code_of(error), str(error))
    return AlterConfigsResourceResponse(code, message, resource.resource_type, resource.resource_name)


HANDLER = Handler(
    key=44,
    handle=handle,
    left_out="Only configs of topics change: those of a broker are its settings, which a restart changes.",
)
