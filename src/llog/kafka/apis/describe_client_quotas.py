"""DescribeClientQuotas. API key 48, versions 0-1 (no version adds a field). There are no quotas, so none match."""

from __future__ import annotations

from typing import Final

from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from llog.kafka.error_codes import ErrorCode

_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_MATCH_TYPES: Final = (0, 1, 2)
"""This name, the default, any name."""


def handle(call: Call) -> DescribeClientQuotasResponse:
    request: DescribeClientQuotasRequest = call.request
    if refusal := cluster_refusal(call):
        return _refused(refusal, "cluster authorization failed")
    seen: set[str] = set()
    for component in request.components:
        if component.entity_type not in _ENTITY_TYPES:
            return _refused(ErrorCode.UNSUPPORTED_VERSION, f"unsupported entity type {component.entity_type!r:.100}")
        if component.match_type not in _MATCH_TYPES:
            return _refused(ErrorCode.INVALID_REQUEST, f"unknown match type {component.match_type}")
        if component.entity_type in seen:
            return _refused(ErrorCode.INVALID_REQUEST, f"entity type {component.entity_type} is given more than once")
        seen.add(component.entity_type)
    return DescribeClientQuotasResponse()


def _refused(code: ErrorCode, reason: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=reason, entries=None)


HANDLER = Handler(key=48, handle=handle, left_out="Quotas: there are none. The answer is empty.")
