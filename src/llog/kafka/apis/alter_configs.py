"""AlterConfigs: replace all configs of a topic. API key 33, versions 0-2 (no version adds a field).

Configs that the request does not name get their default; IncrementalAlterConfigs keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from llog.kafka.config_changes import Alteration, alter
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.kafka.topic_configs import checked


async def handle(call: Call) -> AlterConfigsResponse:
    request: AlterConfigsRequest = call.request
    wanted = [_alteration(resource) for resource in request.resources]
    outcomes = await alter(call, wanted, validate_only=request.validate_only)
    return AlterConfigsResponse(
        responses=[_result(resource, error) for resource, error in zip(request.resources, outcomes, strict=True)]
    )


def _alteration(resource: AlterConfigsResource) -> Alteration:
    def replace(_: Mapping[str, str]) -> dict[str, str]:
        for config in resource.configs:
            if config.value is None:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"config {config.name!r:.100}: null is no value")
        return checked({config.name: config.value for config in resource.configs})

    names = [config.name for config in resource.configs]
    return Alteration(resource.resource_type, resource.resource_name, names, replace)


def _result(resource: AlterConfigsResource, error: LlogError | None) -> AlterConfigsResourceResponse:
    code, message = (ErrorCode.NONE, None) if error is None else (code_of(error), str(error))
    return AlterConfigsResourceResponse(code, message, resource.resource_type, resource.resource_name)


HANDLER = Handler(
    key=33,
    handle=handle,
    left_out="Only configs of topics change: those of a broker are its settings, which a restart changes.",
)
