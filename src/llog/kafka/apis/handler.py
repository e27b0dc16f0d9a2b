"""What an API's module declares, and what a handler is given.

    HANDLER = Handler(key=3, handle=handle, added={1: "…"}, left_out="…")

`handle(call)` runs in frame order, on the event loop. It returns the answer's message, or an awaitable of it; None
means that no answer is sent (Produce with acks=0). What must happen in the order of the connection's frames happens
before `handle` returns. An `LlogError` that it raises closes the connection, so handlers answer errors in the message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from llog.kafka.codec import Versions, apis

if TYPE_CHECKING:
    from llog.kafka.services import KafkaServices

Answer = Struct | None
Handle = Callable[["Call"], Answer | Awaitable[Answer]]


@dataclass(eq=False, slots=True)
class Client:
    """What is known of one connection. Handlers may keep per-connection state in `state`, by API key."""

    host: str
    port: int
    listener: str
    """Scheme and address that the client reached, such as `127.0.0.1:9092`."""
    principal: str = "User:ANONYMOUS"
    software: str = ""
    """Name and version that the client gave in ApiVersions."""
    state: dict[int, Any] = field(default_factory=dict)


def _nothing() -> None:
    """For calls that do not come from a connection: their memory is not counted."""


def _enough(_: int) -> bool:
    return True


@dataclass(eq=False, slots=True)
class Call:
    """One request: decoded, not yet answered."""

    services: KafkaServices
    client: Client
    api_key: int
    version: int
    client_id: str | None
    request: Any
    """The message's class in `llog.kafka.codec.messages`. Its `records` are views of the frame, which stays valid as
    long as a view exists."""
    frame_bytes: int = 0
    """Size of the frame; its memory is counted in the broker's pool until the answer is ready."""
    release_frame: Callable[[], None] = _nothing
    """Stop counting the frame now. Produce calls it right before `BatchingProducer.submit`, which counts the same bytes
    itself: no other request is granted them in between, as long as nothing is awaited. Further calls do nothing."""
    hold: Callable[[int], bool] = _enough
    """Count bytes that are about to be read for the answer, in addition to earlier ones, until the client has taken the
    answer. False: clients that take their answers slowly hold all memory for answers, so answer without these."""
    wait_ms: float = 0
    """How long the client asked to wait for records, set by the handler; that does not make a request slow."""
    timings: tuple[float, float, float] | None = None
    """Milliseconds that a Produce queued, uploaded and committed, set by the handler for the request's line."""


@dataclass(frozen=True, slots=True)
class Handler:
    key: int
    handle: Handle
    versions: Versions | None = None
    """Versions served and advertised; None: all of the definition except an unstable latest one."""
    added: Mapping[int, str] = field(default_factory=dict)
    """What each version added, for docs/reference/kafka.md."""
    left_out: str = ""
    """What a client may ask for that we do not do, and why."""
    advertised: Versions | None = None
    """Where clients need to see another range than is served."""
    ends_with_client: bool = False
    """The awaitable is cancelled when the client is gone, as a long poll should be and an append must not."""

    @property
    def served(self) -> Versions:
        if self.versions is not None:
            return self.versions
        api = apis()[self.key]
        return Versions(api.versions.first, api.versions.last - api.latest_unstable)
