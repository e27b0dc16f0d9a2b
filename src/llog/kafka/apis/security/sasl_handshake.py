"""SaslHandshake: the client names the mechanism by which it authenticates. API key 17, version 1.

Version 0, of clients before Kafka 1.0, is not served: behind it their messages come without the head of a request.
"""

from __future__ import annotations

from typing import Final

from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec import Versions
from llog.kafka.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from llog.kafka.error_codes import ErrorCode


def handle(call: Call) -> SaslHandshakeResponse:
    request: SaslHandshakeRequest = call.request
    sasl = call.client.sasl
    if sasl is None:  # this listener does not ask for it
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    mechanisms = list(call.services.broker.settings.kafka_sasl_mechanisms)
    return SaslHandshakeResponse(sasl.handshake(request.mechanism), mechanisms)


HANDLER: Final = Handler(
    key=17,
    handle=handle,
    versions=Versions(1, 1),
    left_out="Version 0: behind it messages come without the head of a request. GSSAPI and delegation tokens.",
)
