"""SaslAuthenticate: one message of the client's authentication. API key 36, versions 0-2.

| version | added |
|---|---|
| 1 | how long the session lasts, after which the client authenticates again |

A failure is answered with SASL_AUTHENTICATION_FAILED and ends the connection.
"""

from __future__ import annotations

from typing import Final

from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from llog.kafka.error_codes import ErrorCode


async def handle(call: Call) -> SaslAuthenticateResponse:
    request: SaslAuthenticateRequest = call.request
    sasl = call.client.sasl
    if sasl is None:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, "this listener asks for no authentication")
    answer = await sasl.authenticate(bytes(request.auth_bytes))
    return SaslAuthenticateResponse(answer.code, answer.message, answer.auth_bytes, answer.session_lifetime_ms)


HANDLER: Final = Handler(key=36, handle=handle, added={1: "how long the session lasts"})
