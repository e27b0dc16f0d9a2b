"""ApiVersions, API key 18, versions 0 to 4: the APIs of this broker and their versions.

- v1 adds the throttle time, v2 changes nothing.
- v3 is flexible; the client gives its software's name and version, the broker its features.
- v4 allows features whose lowest version is 0.

A client that asks in a later version is answered in version 0 with UNSUPPORTED_VERSION and the same list, and asks
again.

`group.version` 1 says that the consumer protocol (KIP-848) is served.

Left out: `transaction.version`, until transactions exist; there is no quota, so no throttle time.
"""

from __future__ import annotations

import re
from typing import Final

from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from llog.kafka.error_codes import ErrorCode

SOFTWARE_CHARS_MAX: Final = 64
GROUP_VERSION: Final = "group.version"
ZERO_FEATURES_SINCE: Final = 4
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(call: Call) -> ApiVersionsResponse:
    request = call.request
    if not isinstance(request, ApiVersionsRequest):
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_advertised())
    if call.version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        call.client.software = " ".join(name[:SOFTWARE_CHARS_MAX] for name in names)
    return ApiVersionsResponse(
        api_keys=_advertised(),
        supported_features=[SupportedFeatureKey(GROUP_VERSION, 0, 1)] if call.version >= ZERO_FEATURES_SINCE else [],
        finalized_features_epoch=0,
        finalized_features=[FinalizedFeatureKey(GROUP_VERSION, 1, 1)],
    )


def _advertised() -> list[ApiVersion]:
    from llog.kafka.apis.handlers import handlers  # it imports this module

    ranges = {handler.key: handler.advertised or handler.served for handler in handlers().values()}
    return [ApiVersion(key, versions.first, versions.last) for key, versions in ranges.items()]


HANDLER: Final = Handler(
    key=18,
    handle=handle,
    added={
        1: "throttle time",
        3: "flexible; name and version of the client's software, features of the broker",
        4: "features whose lowest version is 0",
    },
    left_out="`transaction.version`, until transactions exist. Quotas: the throttle time is 0.",
)
