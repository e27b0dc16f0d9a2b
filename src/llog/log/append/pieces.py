"""Pieces: the batches of many producers inside one record group, each with an outcome of its own.

Why it exists: a broker puts the batches of many requests into one record group per log. A repeat among them is answered
with the offsets of the first time and one that is out of order is refused, while their neighbours are appended. So a
group is described piece by piece, and whatever part of it is new is committed as byte ranges of the one blob that was
uploaded. What must stay true: pieces tile the group, in order; each can be read alone (whole batches); only
neighbouring pieces are committed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from llog.errors import InvalidArgument, LogError
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.log.producers.idempotence import ProducerClaim

NOT_TOLD: Final = -1


class Piece(NamedTuple):
    """One producer's batches of a group: what is stored, or refused, as a whole."""

    msg_count: int
    byte_length: int
    claim: ProducerClaim | None = None
    """What an idempotent producer says of it; None: nobody numbers it, so it is always new."""
    max_timestamp_ms: int = NOT_TOLD
    """Not told: the group's counts."""


class PlacedPiece(NamedTuple):
    """A piece, uploaded: which of its group it is, and where its bytes lie in the object."""

    number: int
    byte_offset: int
    byte_length: int
    msg_count: int
    claim: ProducerClaim | None = None
    max_timestamp_ms: int = NOT_TOLD

    def follows(self, other: PlacedPiece) -> bool:
        return self.byte_offset == other.byte_offset + other.byte_length


class AppendSlice(NamedTuple):
    """One record group, uploaded: where its bytes lie and what `reserve` must know of them."""

    append_id: str
    incarnation: int
    data_key: str
    blob_created_at_ms: int
    """From the blob's id, not from a clock: what the horizon is compared with."""
    encoding: str
    pieces: tuple[PlacedPiece, ...]
    """Those that have no outcome yet, in order; not all of them need be neighbours."""

    def has_claims(self) -> bool:
        return any(piece.claim is not None for piece in self.pieces)


class Landed(NamedTuple):
    """A piece that is in the log, at these offsets."""

    start_offset: int
    end_offset: int
    repeated: bool = False
    """It was there already: the offsets of the first time."""


PieceOutcome = Landed | LogError


def checked_pieces(msg_count: int, encoding: str, body: Sequence[Buffer], pieces: tuple[Piece, ...]) -> None:
    """Raises `InvalidArgument` unless the pieces tile the group."""
    if sum(piece.msg_count for piece in pieces) != msg_count or any(piece.msg_count < 1 for piece in pieces):
        raise InvalidArgument("pieces", f"they hold {[p.msg_count for p in pieces]} messages, the group {msg_count}")
    byte_length = total_length(body)
    if sum(piece.byte_length for piece in pieces) != byte_length or any(piece.byte_length < 1 for piece in pieces):
        raise InvalidArgument("pieces", f"they have {[p.byte_length for p in pieces]} bytes, the group {byte_length}")
    if len(pieces) > 1 and encoding == BYTES_BATCH:
        raise InvalidArgument("pieces", f"{len(pieces)} pieces; a slice of {BYTES_BATCH} is one batch")
    for piece in pieces:
        if piece.claim is not None and (piece.claim.msg_count, piece.claim.offset_delta) != (piece.msg_count, 0):
            reason = f"{piece.claim} numbers {piece.claim.msg_count} messages, its piece holds {piece.msg_count}"
            raise InvalidArgument("pieces", reason)


def place(pieces: Sequence[Piece], *, byte_offset: int, max_timestamp_ms: int) -> tuple[PlacedPiece, ...]:
    """Where the pieces of a group lie once its body lies at `byte_offset` of an object."""
    starts = accumulate((piece.byte_length for piece in pieces), initial=byte_offset)
    return tuple(
        PlacedPiece(
            number,
            start,
            piece.byte_length,
            piece.msg_count,
            piece.claim,
            max_timestamp_ms if piece.max_timestamp_ms == NOT_TOLD else piece.max_timestamp_ms,
        )
        for number, (piece, start) in enumerate(zip(pieces, starts, strict=False))
    )


def bytes_of(body: Sequence[Buffer], byte_offset: int, byte_length: int) -> list[Buffer]:
    """A range of the body, as views: nothing is copied."""
    found: list[Buffer] = []
    for buffer in body:
        view = memoryview(buffer).cast("B")
        part = view[byte_offset : byte_offset + byte_length]
        if part:
            found.append(part)
        byte_length -= len(part)
        byte_offset = max(0, byte_offset - len(view))
    return found
