"""What a Kafka client can do, in the words of the claims: one implementation per client library.

The claims (`client_suite`) are the same for all; what differs between libraries stays in their drivers. A driver is
synchronous, whatever its library is.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.clients.kafka.brokers import KafkaBroker

EARLIEST: Final = -2
LATEST: Final = -1
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = tuple[tuple[str, bytes | None], ...]

# Large enough that the broker's limits decide, not the client's.
CLIENT_BYTES_MAX: Final = 32 << 20
# Clients look for changed metadata this often.
METADATA_AGE_MS: Final = 300


class Code:
    """Kafka's numbers of the errors that claims are about."""

    OFFSET_OUT_OF_RANGE: Final = 1
    UNKNOWN_TOPIC_OR_PARTITION: Final = 3
    MESSAGE_TOO_LARGE: Final = 10
    INVALID_TOPIC: Final = 17
    TOPIC_ALREADY_EXISTS: Final = 36
    INVALID_PARTITIONS: Final = 37
    INVALID_CONFIG: Final = 40


class Refused(Exception):
    """The broker answered with an error; `code` is Kafka's number for it."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


class Sent(NamedTuple):
    """A record to produce; without a time the client gives it one."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


class Fetched(NamedTuple):
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int
    is_append_time: bool

    def as_sent(self) -> Sent:
        return Sent(self.value, self.key, self.headers, self.timestamp_ms, self.partition)


class How(NamedTuple):
    """Settings of a producer. Producers with equal settings are one producer, which lives as long as its driver."""

    codec: str = "none"
    acks: int = -1
    idempotent: bool = True
    linger_ms: int = 0
    name: str = ""
    """Another name makes another producer."""


PLAIN: Final = How()


class ClientDriver(abc.ABC):
    """One client library, connected to one broker."""

    @abc.abstractmethod
    def __init__(self, broker: KafkaBroker) -> None: ...

    @abc.abstractmethod
    def produce(self, topic: str, records: Sequence[Sent], how: How = PLAIN) -> list[int]:
        """The offsets that the broker gave, in order; with acks=0 anything."""

    @abc.abstractmethod
    def fetch(self, topic: str, starts: Mapping[int, int], count: int) -> list[Fetched]:
        """The first `count` records from these offsets (by partition) on, in the order of their arrival.

        The consumer starts over at the earliest record only where the claim says so: an offset that is not there is
        an error.
        """

    @abc.abstractmethod
    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """Of the first record at or after a time; the ends of the log for EARLIEST and LATEST."""

    @abc.abstractmethod
    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None: ...

    @abc.abstractmethod
    def delete(self, topic: str) -> None: ...

    @abc.abstractmethod
    def grow(self, topic: str, partitions: int) -> None:
        """To this many partitions in total."""

    @abc.abstractmethod
    def topics(self) -> dict[str, int]:
        """Every topic with its count of partitions."""

    @abc.abstractmethod
    def configs(self, topic: str) -> dict[str, str | None]: ...

    @abc.abstractmethod
    def set_config(self, topic: str, name: str, value: str | None) -> None:
        """None: back to the default."""

    @abc.abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """The low watermark then."""

    @abc.abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Connect = Callable[[KafkaBroker], ClientDriver]
