"""ListConfigResources: what DescribeConfigs can be asked about. API key 74, versions 0-1.

| version | added |
|---|---|
| 1 | all types of resources; version 0 lists client metrics, of which there are none |
"""

from __future__ import annotations

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.topic_configs import ResourceType


async def handle(call: Call) -> ListConfigResourcesResponse:
    request: ListConfigResourcesRequest = call.request
    if refusal := cluster_refusal(call):
        return ListConfigResourcesResponse(error_code=refusal)
    if call.version == 0:
        return ListConfigResourcesResponse()
    known = {int(kind) for kind in ResourceType}
    wanted = set(request.resource_types) or known
    if wanted - known:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources = [
        ConfigResource(str(node.node_id), kind)
        for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        if kind in wanted
        for node in call.services.cluster.nodes()
    ]
    if ResourceType.TOPIC in wanted:
        try:
            resources += [ConfigResource(one.name, ResourceType.TOPIC) for one in await call.services.topics.all()]
        except LlogError as error:
            return ListConfigResourcesResponse(error_code=code_of(error))
    return ListConfigResourcesResponse(config_resources=resources)


HANDLER = Handler(
    key=74,
    handle=handle,
    added={1: "all types of resources"},
    left_out="Client metrics and groups have no configs, so none are listed.",
)
