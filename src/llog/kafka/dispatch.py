"""From a frame to the call of its handler, and from the handler's message to the frame of the answer.

A version that is not served, of an API that is, gets an answer with UNSUPPORTED_VERSION where the answer's schema has a
place for it. ApiVersions is answered in version 0 then, with the versions that are served: a client that knows no
version of this broker begins with it. Everything else that cannot be understood raises `FormatError`, and the
connection ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec import Struct

from llog.errors import UnsupportedFormat
from llog.kafka.apis.handler import Answer, Call, Client, Handle, Handler
from llog.kafka.codec import Api, Buffer, answer_frame, apis, decode_prefix, read_request_head
from llog.kafka.error_codes import ErrorCode
from llog.kafka.net.frames import Frame
from llog.kafka.services import KafkaServices

API_VERSIONS_KEY: Final = 18


@dataclass(eq=False, slots=True)
class Request:
    """One request, ready to be handled: `handle(call)`."""

    api: Api
    handler: Handler
    handle: Handle
    version: int
    """Of the answer."""
    correlation_id: int
    call: Call

    def answer(self, message: Struct) -> list[Buffer]:
        """The buffers of the answer's frame. `NotEncodable` for a message that the version cannot carry."""
        return answer_frame(self.api, self.version, self.correlation_id, message)


class Dispatcher:
    def __init__(self, services: KafkaServices, handlers: Mapping[int, Handler]) -> None:
        self._services = services
        self._served = {
            key: (handler, handler.served, apis()[key], apis()[key].request) for key, handler in handlers.items()
        }

    def read(
        self, frame: Frame, client: Client, release_frame: Callable[[], None], hold: Callable[[int], bool]
    ) -> Request:
        """`UnsupportedFormat` for an API or version that cannot be answered, `Malformed` for bytes that are no
        request."""
        head = read_request_head(frame)
        key, version = head.api_key, head.api_version
        served = self._served.get(key)
        if served is None:
            raise UnsupportedFormat(f"API {key} v{version}", "the API is not served")
        handler, versions, api, message = served
        if version not in versions:
            return self._unsupported(handler, api, version, head.correlation_id, client)
        # As in Kafka, bytes behind the message are ignored: librdkafka asks for the metadata of all topics with three.
        decoded, _ = decode_prefix(message, version, frame, head.body)
        call = Call(self._services, client, key, version, head.client_id, decoded, len(frame), release_frame, hold)
        return Request(api, handler, handler.handle, version, head.correlation_id, call)

    def _unsupported(self, handler: Handler, api: Api, version: int, correlation_id: int, client: Client) -> Request:
        answer_version = 0 if api.key == API_VERSIONS_KEY else version
        has_code = "error_code" in api.response.__struct_fields__
        if answer_version not in api.versions or not has_code:
            raise UnsupportedFormat(f"{api.name} v{version}", "the version is not served")
        call = Call(self._services, client, api.key, version, None, None)
        handle = handler.handle if api.key == API_VERSIONS_KEY else partial(_refuse_version, api)
        return Request(api, handler, handle, answer_version, correlation_id, call)


def _refuse_version(api: Api, _: Call) -> Answer:
    return api.response(error_code=ErrorCode.UNSUPPORTED_VERSION)
