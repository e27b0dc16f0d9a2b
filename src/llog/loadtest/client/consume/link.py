"""What a client asks of an engine: a link to one broker that carries one read after another.

An engine's link sends the request, scans the answer for stamps and says where each partition stands; `reading` decides
what that means for the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume.places import Longs, Places
from llog.loadtest.client.consume.scan import Scanner
from llog.loadtest.scenario.model import Consumers


class Asking(NamedTuple):
    """Of a client: what all of its links share."""

    topics: tuple[str, ...]
    """The scenario's, by position."""
    consumers: Consumers
    places: Places
    scanner: Scanner


class Read(NamedTuple):
    """What an answer says, partition by partition."""

    rows: Longs
    next_offsets: Longs
    ends: Longs
    """The offsets behind the last records."""
    outside: Longs
    """Rows whose offset is not in the log."""
    log_starts: Longs
    """The first offsets of those logs."""
    errors: Mapping[str, int]
    """How many partitions failed in another way, by error."""


class BrokerRefuses(ConnectionError):
    """The broker answers, and serves no reads now; another one may."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code


def error_name(error: Exception) -> str:
    """One of few names, by which failed requests are counted."""
    return error.code if isinstance(error, BrokerRefuses) else type(error).__name__


class Link(Protocol):
    async def read(self, rows: Longs) -> Read:
        """One request for these partitions. Raises OSError, TimeoutError or FormatError; the link is closed then."""

    async def ends(self, rows: Longs) -> Longs:
        """The offsets behind the last records now, UNKNOWN where the broker gives none; raises like `read`."""

    def close(self) -> None: ...


class Engine(Protocol):
    async def connect(self, broker: BrokerPlace, asking: Asking) -> Link:
        """Returns when the broker has answered a first request. Raises OSError, TimeoutError or FormatError."""
