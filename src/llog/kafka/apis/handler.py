"""What an API's module declares, and what a handler is given.

    HANDLER = Handler(key=3, handle=handle, added={1: "…"}, left_out="…")

`handle(call)` runs in frame order, on the event loop. It returns the answer's message, or an awaitable of it; None
means that no answer is sent (Produce with acks=0). What must happen in the order of the connection's frames happens
before `handle` returns. An `LlogError` that it raises closes the connection, so handlers answer errors in the message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from llog.kafka.codec import Versions, apis
from llog.security.acl import ALL_BITS, ANONYMOUS, Operation, ResourceType
from llog.security.requirements import KAFKA, asks_for, operation_of
from llog.security.rules import Access

if TYPE_CHECKING:
    from llog.kafka.sasl import SaslSession
    from llog.kafka.services import KafkaServices
    from llog.security.authorizer import Authorizer

Answer = Struct | None
Handle = Callable[["Call"], Answer | Awaitable[Answer]]


@dataclass(eq=False, slots=True)
class Client:
    """What is known of one connection. Handlers may keep per-connection state in `state`, by API key."""

    host: str
    port: int
    listener: str
    """Scheme and address that the client reached, such as `127.0.0.1:9092`."""
    principal: str = ANONYMOUS
    sasl: SaslSession | None = None
    """Set where clients have to authenticate by SASL."""
    ends: bool = False
    """The connection closes behind the answer that is being made."""
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

    # Authorization. The operation is that of the API's row in `llog.security.requirements`; where a row has several for
    # a type, the others are named. Without authorization everything is allowed.
    @property
    def authorizer(self) -> Authorizer | None:
        return self.services.broker.security.authorizer

    def allows(self, kind: ResourceType, name: str, operation: Operation | None = None) -> bool:
        """Whether the client may do this; if not, the refusal leaves its trace."""
        return self.authorizer is None or not self.denied(kind, (name,), operation)

    def denied(self, kind: ResourceType, names: Iterable[str], operation: Operation | None = None) -> Collection[str]:
        """The names that the client may not do this to; the refusals leave their trace."""
        authorizer = self.authorizer
        if authorizer is None:
            return ()
        access, wanted = self._access(authorizer), self._operation(kind, operation)
        refused = {name for name in names if not access.allows(wanted, kind, name)}
        if refused:
            authorizer.refused(access, wanted, kind, refused, apis()[self.api_key].name)
        return refused

    def sees(self, kind: ResourceType, name: str, operation: Operation | None = None) -> bool:
        """`allows` without a trace: for what is left out of an answer, and for a right that another may replace."""
        authorizer = self.authorizer
        return authorizer is None or self._access(authorizer).allows(self._operation(kind, operation), kind, name)

    def sees_any(self, kind: ResourceType, operation: Operation) -> bool:
        """Whether the client may do this to some resource that may exist."""
        authorizer = self.authorizer
        if authorizer is None:
            return True
        return self._access(authorizer).allows_any(self._operation(kind, operation), kind)

    def operations(self, kind: ResourceType, name: str) -> int:
        """What the client may do, as the bits of Kafka's answers."""
        authorizer = self.authorizer
        return ALL_BITS if authorizer is None else self._access(authorizer).bits(kind, name)

    def _access(self, authorizer: Authorizer) -> Access:
        return authorizer.of(self.client.principal, self.client.host)

    def _operation(self, kind: ResourceType, operation: Operation | None) -> Operation:
        needs = KAFKA[self.api_key]
        if operation is None:
            return operation_of(needs, kind)
        if not asks_for(needs, operation, kind):
            raise LookupError(f"the row of API {self.api_key} has no {operation.name} on a {kind.name}")
        return operation


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
