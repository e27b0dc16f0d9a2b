"""Events of a history: what a client asked, when, and the answer it got.

Simulated actors and processes that are killed record the same events, so one checker serves both. A client records an
event before it sends the request, and another after the answer came; an operation without an answer may have happened
at any later time. Events are plain values that survive a line of JSON. `at` orders them: the position in a simulated
run, or nanoseconds of one machine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

import msgspec

from llog.log.keys import Log
from llog.log.producers import ProducerClaim

Outcome = Literal["landed", "refused", "uncertain"]
ReadOutcome = Literal["records", "end", "out_of_range", "not_initialized", "inconsistent", "no_answer"]
Act = Literal["fence", "unfence", "delete_records", "retain", "delete_topic", "create_topic"]

NEVER: Final = 2**63 - 1
"""As the time of an answer that never came."""


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    op: int
    """The number that the client gave the operation; unique per client. The answer repeats it."""


class AppendAsked(ClientEvent, frozen=True, kw_only=True):
    log: Log
    tokens: tuple[str, ...]
    """One per record; every record ever asked for has its own. A retry repeats its tokens."""
    claim: ProducerClaim | None = None
    """Of an idempotent producer."""


class AppendAnswered(ClientEvent, frozen=True, kw_only=True):
    outcome: Outcome
    start_offset: int = -1
    reason: str = ""
    """The name of the error."""


class ReadAsked(ClientEvent, frozen=True, kw_only=True):
    log: Log
    offset: int


class ReadAnswered(ClientEvent, frozen=True, kw_only=True):
    outcome: ReadOutcome
    records: tuple[tuple[int, str], ...] = ()
    log_start_offset: int = -1
    """Of `out_of_range`: the bounds that the error names."""
    next_offset: int = -1
    reason: str = ""


class ActAsked(ClientEvent, frozen=True, kw_only=True):
    log: Log
    act: Act
    offset: int = -1
    """Of `delete_records`: before which; -1 means the end of the log."""


class ActAnswered(ClientEvent, frozen=True, kw_only=True):
    done: bool
    """False: refused or uncertain."""
    value: int = -1
    """The epoch after a fence or unfence, the log's start after retention, the incarnation of a topic."""
    reason: str = ""


class Observed(ClientEvent, frozen=True, kw_only=True):
    """Control and cursor, read strictly. The cursor was read after control, or at the same time."""

    log: Log
    incarnation: int
    epoch: int
    counter: int
    log_start_offset: int
    cursor: int


AnyEvent = AppendAsked | AppendAnswered | ReadAsked | ReadAnswered | ActAsked | ActAnswered | Observed
Record = Callable[[AnyEvent], None]
"""Takes the events of a client."""


class Noted(NamedTuple):
    """An event with its place in the history."""

    at: int
    actor: str
    event: AnyEvent


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Noted)


def encode_line(noted: Noted) -> bytes:
    return _encoder.encode(noted) + b"\n"


def decode_lines(data: bytes) -> Iterable[Noted]:
    """Every whole line: a process that is killed may leave half of its last one."""
    for line in data.split(b"\n")[:-1]:
        yield _decoder.decode(line)
