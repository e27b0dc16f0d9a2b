"""What the raw engines have in common: requests, their frames and outcomes, and the interface that HTTP and Kafka fill.

A frame is a whole request in writable memory, made once and used again: for each sending, only stamps, sequences and
checksums are written into it. A request keeps its frame until it is answered, because it may have to be sent again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from llog.loadtest.client.schedule import Schedule
from llog.loadtest.client.stamp import END, STAMP_BYTES, Longs, Octets, digits, stamp
from llog.loadtest.client.streams import StreamPlan
from llog.loadtest.scenario.model import Records

SEQUENCE_MODULUS: Final = 2**31
"""Producers' sequences in Kafka and llog are 31 bits."""
FILLER: Final = b"x"
"""What the compressible share of a value repeats."""
_BLANK: Final = stamp("0" * 8, 0, 0, 0, 0, 0)
TEXT: Final = bytes(code for code in range(0x20, 0x7F) if code not in b'"\\;')
"""What JSON strings hold without escapes; no semicolon, which ends a stamp."""
BINARY: Final = bytes(code for code in range(256) if code != END)


class Identity(NamedTuple):
    """Of a client towards brokers, so that a request that is sent again is stored once."""

    producer_id: int
    epoch: int


class Verdict(Enum):
    ACCEPTED = "accepted"
    RETRY = "retry"
    """The broker cannot take it now, or it is not known what became of it."""
    EARLIER_MISSING = "earlier missing"
    """A request before it has not been stored."""
    FORGOTTEN = "forgotten"
    """The broker does not know the identity any more."""
    REFUSED = "refused"


class Outcome(NamedTuple):
    verdict: Verdict
    reason: str = ""


ACCEPTED: Final = Outcome(Verdict.ACCEPTED)
_GRAVEST_FIRST: Final = (
    Verdict.REFUSED,
    Verdict.FORGOTTEN,
    Verdict.RETRY,
    Verdict.EARLIER_MISSING,
    Verdict.ACCEPTED,
)


def gravest(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of a request is that of its worst batch: batches that were stored can be repeated without effect."""
    return min(outcomes, key=lambda outcome: _GRAVEST_FIRST.index(outcome.verdict), default=ACCEPTED)


class Frame:
    """One request in memory."""

    __slots__ = ("body", "memory", "shape")

    def __init__(self, shape: Any, content: bytes | bytearray) -> None:
        self.shape = shape
        self.memory = bytearray(content)
        self.body: Octets = np.frombuffer(self.memory, np.uint8)


class Stream:
    """A client's requests for one group of partitions."""

    __slots__ = ("broker", "identity_base", "next_sequence", "partitions", "plan", "schedule", "turn", "unanswered")

    def __init__(self, plan: StreamPlan) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.partitions: Longs = np.array(plan.group.partitions, np.int64)
        self.next_sequence = 0
        self.identity_base = 0
        """The sequence with which the present identity of the client began: brokers count from there."""
        self.broker = -1
        """Where its unanswered requests are; the next one goes there too, because a producer's order must hold."""
        self.unanswered = 0
        self.turn = 0


class Request:
    """One request, from its first sending to its outcome."""

    __slots__ = (
        "broker_sequence",
        "data",
        "due_s",
        "first_sent_s",
        "frame",
        "identity",
        "outcome",
        "sendings",
        "sent_s",
        "sequence",
        "stream",
    )

    def __init__(self, stream: Stream, due_s: float, now_s: float, identity: Identity, frame: Frame) -> None:
        self.stream, self.due_s, self.identity, self.frame = stream, due_s, identity, frame
        self.sequence = stream.next_sequence
        self.broker_sequence = (self.sequence - stream.identity_base) % SEQUENCE_MODULUS
        stream.next_sequence += stream.plan.batch_records
        self.first_sent_s = self.sent_s = now_s
        self.sendings = 0
        self.outcome = ACCEPTED
        self.data: bytes | bytearray | memoryview = frame.memory


class Connecting(Protocol):
    """A connection as a wire sees it."""

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer to a request that is not part of the load."""
        ...


class Wire(Protocol):
    """One protocol: how its requests are made and its answers are understood."""

    def frame(self, stream: Stream) -> Frame:
        """A free or a new frame for this stream's requests."""
        ...

    def give_back(self, frame: Frame) -> None:
        """The frame is not in use any more."""
        ...

    def fill(self, request: Request, producer: int) -> None:
        """Write stamps, sequences and checksums; sets `request.data`."""
        ...

    def measure(self, data: bytearray) -> tuple[int, int] | None:
        """Where the body of the first answer begins and where it ends; None while the answer is not complete, or not
        yet measurable. Raises `LoadTestError` for what is no answer."""
        ...

    def outcome(self, data: bytearray, begin: int, end: int) -> Outcome:
        """Of the first answer, whose body is there."""
        ...

    async def prepare(self, connection: Connecting) -> None:
        """Ask a broker what requests need to know, once for a process."""
        ...

    async def identify(self, connection: Connecting) -> Identity:
        """A new identity."""
        ...

    async def probe(self, connection: Connecting) -> None:
        """Raises OSError or `LoadTestError` unless the broker serves requests."""
        ...


class FramePool:
    """Frames by shape; as many as are in flight at once."""

    def __init__(self, make: Callable[[Any], Frame]) -> None:
        self._make = make
        self._free: dict[Any, list[Frame]] = {}

    def take(self, shape: Any) -> Frame:
        free = self._free.get(shape)
        return free.pop() if free else self._make(shape)

    def give_back(self, frame: Frame) -> None:
        self._free.setdefault(frame.shape, []).append(frame)


def prepared_values(records: Records, count: int, alphabet: bytes) -> list[bytes]:
    """Values with an empty stamp, then bytes that do not compress, then the compressible share."""
    rest = records.bytes - STAMP_BYTES
    repeated = round(rest * records.compressibility)
    letters = np.frombuffer(alphabet, np.uint8)
    noise = letters[np.random.default_rng(count).integers(0, len(letters), (count, rest - repeated))]
    return [_BLANK + row.tobytes() + FILLER * repeated for row in noise]


def places(positions: Longs, width: int) -> Longs:
    """For each position a row with the places of `width` bytes from there on."""
    rows: Longs = positions[:, None] + np.arange(width, dtype=np.int64)
    return rows


def key_digits(keys: int, count: int) -> Octets:
    """Keys drawn at random, as texts of equal length."""
    return digits(np.random.default_rng(secrets.randbits(32)).integers(0, keys, count))
