"""Pieces: the batches of single producers inside one record group, each with its own outcome.

A broker puts the batches of many calls into one record group per log. A repeat among them is answered with its first
offsets, a piece out of order is refused, and their neighbours are appended. So a group is described piece by piece, and
the new pieces are committed as byte ranges of the one uploaded blob. Pieces tile their group in order, each can be read
alone (whole batches), and only adjacent pieces are committed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import InvalidArgument, LogError
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.log.producers import ProducerClaim

NO_TIMESTAMP: Final = -1


class Piece(NamedTuple):
    """One producer's batches in a record group: appended or refused as a whole."""

    msg_count: int
    byte_length: int
    claim: ProducerClaim | None = None
    """The sequence numbers of an idempotent producer; None: without numbers, so always new."""
    max_timestamp_ms: int = NO_TIMESTAMP
    """NO_TIMESTAMP: the group's maximum applies."""
    incarnation: int | None = None
    """The incarnation of the topic that the producer means: the piece is refused by any other, and creates nothing.
    None: the current one, which the append creates if the topic is missing."""
    payload_bytes: int = 0
    """Bytes of the values of its records, for the metrics; as `llog_log_append_payload_bytes_total` counts them."""


class PlacedPiece(NamedTuple):
    """An uploaded piece: its number in the group, and its byte range in the object."""

    number: int
    byte_offset: int
    byte_length: int
    msg_count: int
    claim: ProducerClaim | None = None
    max_timestamp_ms: int = NO_TIMESTAMP

    def follows(self, other: PlacedPiece) -> bool:
        return self.byte_offset == other.byte_offset + other.byte_length


class AppendSlice(NamedTuple):
    """An uploaded record group: where its bytes are, and what `reserve` needs to know of them."""

    append_id: str
    incarnation: int
    data_key: str
    blob_created_at_ms: int
    """From the blob's id, not from a clock: the value that the commit horizon is compared with."""
    encoding: str
    pieces: tuple[PlacedPiece, ...]
    """The pieces without an outcome, in order; they need not be adjacent."""
    accepts_unknown: bool = False
    """Only of a recovery: an unknown producer may begin with any number, because what it wrote before is lost."""

    def has_claims(self) -> bool:
        return any(piece.claim is not None for piece in self.pieces)


class Landed(NamedTuple):
    """A piece that is in the log, with its offsets."""

    start_offset: int
    end_offset: int
    repeated: bool = False
    """The piece was in the log before; the offsets are those of the first time."""


PieceOutcome = Landed | LogError


def check_pieces(msg_count: int, encoding: str, body: Sequence[Buffer], pieces: tuple[Piece, ...]) -> None:
    """Raises `InvalidArgument` unless the pieces tile the group."""
    byte_length = total_length(body)
    if len(pieces) == 1:  # the usual case; runs for every log of every produce request, so it takes few steps
        count, length, claim, _, _, _ = pieces[0]
        if count == msg_count > 0 and length == byte_length > 0 and (claim is None or _speaks_for(claim, count)):
            return
    if sum(piece.msg_count for piece in pieces) != msg_count or any(piece.msg_count < 1 for piece in pieces):
        raise InvalidArgument("pieces", f"they hold {[p.msg_count for p in pieces]} messages, the group {msg_count}")
    if sum(piece.byte_length for piece in pieces) != byte_length or any(piece.byte_length < 1 for piece in pieces):
        raise InvalidArgument("pieces", f"they have {[p.byte_length for p in pieces]} bytes, the group {byte_length}")
    if len(pieces) > 1 and encoding == BYTES_BATCH:
        raise InvalidArgument("pieces", f"a slice of {BYTES_BATCH} is one batch, got {len(pieces)} pieces")
    for piece in pieces:
        if piece.claim is not None and not _speaks_for(piece.claim, piece.msg_count):
            reason = f"{piece.claim} numbers {piece.claim.msg_count} messages, its piece holds {piece.msg_count}"
            raise InvalidArgument("pieces", reason)


def _speaks_for(claim: ProducerClaim, msg_count: int) -> bool:
    return claim.offset_delta == 0 and claim.msg_count == msg_count


def place(pieces: Sequence[Piece], *, byte_offset: int, max_timestamp_ms: int) -> tuple[PlacedPiece, ...]:
    """The byte ranges of a group's pieces when its body starts at `byte_offset` of an object."""
    placed: list[PlacedPiece] = []
    for number, (msg_count, byte_length, claim, own_timestamp_ms, _, _) in enumerate(pieces):
        newest_ms = max_timestamp_ms if own_timestamp_ms == NO_TIMESTAMP else own_timestamp_ms
        placed.append(PlacedPiece(number, byte_offset, byte_length, msg_count, claim, newest_ms))
        byte_offset += byte_length
    return tuple(placed)


def bytes_of(body: Sequence[Buffer], byte_offset: int, byte_length: int) -> list[Buffer]:
    """A byte range of the body, as views without a copy."""
    views: list[Buffer] = []
    for buffer in body:
        view = memoryview(buffer).cast("B")
        part = view[byte_offset : byte_offset + byte_length]
        if part:
            views.append(part)
        byte_length -= len(part)
        byte_offset = max(0, byte_offset - len(view))
    return views
