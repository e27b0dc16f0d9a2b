"""What the HTTP front end asks of the broker behind it.

Why it exists: routes are written and tested against this, and not against the class that opens stores and starts tasks.
What must stay true: nothing here knows HTTP; every call may be made from the one event loop only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from llog.broker.consume.consume import ConsumeRequest, PartitionFetched
from llog.broker.groups.positions import GroupPositions
from llog.broker.produce.producer import TimedOutcomes
from llog.broker.topic_configs import TopicConfigs
from llog.log.append.append import EncodedGroup
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.settings import Settings


class HttpMetrics(Protocol):
    def observe_http(
        self, route: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """One answered request. `route` is the template of the path, not the path."""

    def http_validation_failure(self, route: str, field: str) -> None:
        """A request was refused because of `field`, named without its position (`topic_partitions[].partition`)."""

    def count(self, name: str, value: int = 1) -> None:
        """By name, as the producer counts: a body that found no room is a call that it never saw."""

    # The pages; they may be made in another thread.
    def snapshot(self) -> Mapping[str, object]: ...

    def prometheus(self) -> bytes: ...


class Pool(Protocol):
    """Bytes between socket and commit (`llog.broker.produce.pool.MemoryPool`)."""

    def try_take(self, size: int, /) -> bool: ...

    def give(self, size: int, /) -> None: ...


class StatusServices(Protocol):
    """What every process can tell of itself."""

    @property
    def settings(self) -> Settings: ...

    @property
    def metrics(self) -> HttpMetrics: ...

    def health(self) -> Mapping[str, object]:
        """The answer of `/health`, with `status` and, where it is not ok, `reasons`. Holds no secret."""

    def ready(self) -> bool: ...


class BrokerServices(StatusServices, Protocol):
    @property
    def writes(self) -> bool:
        """The role includes producing."""

    @property
    def reads(self) -> bool:
        """The role includes consuming."""

    @property
    def context(self) -> LogContext: ...

    @property
    def positions(self) -> GroupPositions: ...

    @property
    def topic_configs(self) -> TopicConfigs: ...

    @property
    def pool(self) -> Pool: ...

    def refusal(self) -> str:
        """Why no record can be accepted now, whatever it is; empty: they can."""

    async def produce(self, groups: Sequence[EncodedGroup]) -> TimedOutcomes:
        """One outcome per group, in order; at most one group per log. The groups' bytes are taken from the pool before
        the first await."""

    async def consume(self, request: ConsumeRequest) -> Sequence[PartitionFetched]:
        """One answer per partition, in order."""

    def log_changed(self, log: Log) -> None:
        """An operator changed the log (deleted, emptied, fenced): what is remembered of it may no longer hold."""
