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

Outcome = Literal["landed", "refused", "uncertain"]
ReadOutcome = Literal["records", "end", "out_of_range", "not_there", "inconsistent", "no_answer"]
Act = Literal["fence", "unfence", "delete_records", "retain", "delete_topic", "create_topic"]

NEVER: Final = 2**63 - 1
"""As the time of an answer that never came."""


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`op` is the number that its client gave the operation; unique per client."""

    op: int
    topic: str = ""
    partition: int = 0


class AppendAsked(ClientEvent, frozen=True, kw_only=True):
    tokens: tuple[str, ...]
    """One per record; every record ever asked for has its own. A retry repeats its tokens."""
    producer_id: int = -1
    """Of an idempotent producer; its batch has the sequences from `first_sequence` on."""
    producer_epoch: int = -1
    first_sequence: int = -1


class AppendTold(ClientEvent, frozen=True, kw_only=True):
    outcome: Outcome
    start_offset: int = -1
    reason: str = ""
    """The name of the error."""


class ReadAsked(ClientEvent, frozen=True, kw_only=True):
    offset: int


class ReadTold(ClientEvent, frozen=True, kw_only=True):
    outcome: ReadOutcome
    records: tuple[tuple[int, str], ...] = ()
    log_start_offset: int = -1
    """Of `out_of_range`: the bounds that were told."""
    next_offset: int = -1
    reason: str = ""


class ActAsked(ClientEvent, frozen=True, kw_only=True):
    act: Act
    offset: int = -1
    """Of `delete_records`: before which; -1 means the end of the log."""


class ActTold(ClientEvent, frozen=True, kw_only=True):
    done: bool
    """False: refused or uncertain."""
    value: int = -1
    """The epoch after a fence or unfence, the log's start after retention, the incarnation of a topic."""
    reason: str = ""


class Observed(ClientEvent, frozen=True, kw_only=True):
    """Control and cursor, read strictly. The cursor was read after control, or at the same time."""

    incarnation: int
    epoch: int
    counter: int
    log_start_offset: int
    cursor: int


AnyEvent = AppendAsked | AppendTold | ReadAsked | ReadTold | ActAsked | ActTold | Observed
Record = Callable[[AnyEvent], None]
"""Takes the events of a client."""


class Noted(NamedTuple):
    """An event with its place in the history."""

    at: int
    actor: str
    event: AnyEvent


class _EventLine(msgspec.Struct, frozen=True):
    at: int
    actor: str
    event: AnyEvent


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_EventLine)


def encode_line(noted: Noted) -> bytes:
    return _encoder.encode(_EventLine(noted.at, noted.actor, noted.event)) + b"\n"


def decode_lines(data: bytes) -> Iterable[Noted]:
    """Every whole line: a process that is killed may leave half of its last one."""
    for line in data.split(b"\n")[:-1]:
        read = _decoder.decode(line)
        yield Noted(read.at, read.actor, read.event)
