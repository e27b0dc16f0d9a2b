"""Join the record groups of many calls into one group per log and flush, and share its outcome out again. Pure.

Pieces without a producer's claim are always new, and neighbours among them that mean the same incarnation of the topic
commit together or not at all. They are joined into one piece, so the cost of a flush per log does not grow with the
number of calls. Bytes are never copied or joined, and a call's pieces stay adjacent and in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from llog.errors import LogError
from llog.formats.buffers import Buffer
from llog.log.append.append import Appended, AppendOutcome, EncodedGroup, piece_outcomes
from llog.log.append.pieces import NO_TIMESTAMP, Landed, Piece, PieceOutcome, bytes_of
from llog.log.keys import Keys, Log


class CommittedBatch(NamedTuple):
    """Committed records for the tail cache: the bytes as uploaded, base offsets not patched."""

    log: Log
    start_offset: int
    end_offset: int
    encoding: str
    body: Sequence[Buffer]
    timestamp_ms_max: int
    epoch: int = 0
    payload_bytes: int = 0
    """As `Piece` counts them."""


# -- joining ---------------------------------------------------------------------------------------------------------


def join_groups(groups: Sequence[EncodedGroup], byte_lengths: Sequence[int], *, claimed: bool) -> EncodedGroup:
    """One group of all of them, in order; `claimed` says whether any of their pieces has a claim."""
    first = groups[0]
    if len(groups) == 1:
        return first
    joinable = not claimed and len({piece.incarnation for group in groups for piece in group.pieces}) == 1
    pieces = (_single_piece(groups, byte_lengths),) if joinable else _join_pieces(groups)
    return EncodedGroup(
        first.log,
        sum([piece.msg_count for piece in pieces]),
        first.encoding,
        list(chain.from_iterable([group.body for group in groups])),
        max([group.max_timestamp_ms for group in groups]),
        pieces=pieces,
    )


def _single_piece(groups: Sequence[EncodedGroup], byte_lengths: Sequence[int]) -> Piece:
    msg_count = sum([group.msg_count for group in groups])
    dated = [_dated(piece, group.max_timestamp_ms) for group in groups for piece in group.pieces]
    newest_ms = max([piece.max_timestamp_ms for piece in dated])
    payload_bytes = sum([piece.payload_bytes for piece in dated])
    return Piece(msg_count, sum(byte_lengths), None, newest_ms, dated[0].incarnation, payload_bytes)


def _join_pieces(groups: Sequence[EncodedGroup]) -> tuple[Piece, ...]:
    """The pieces of all groups; neighbours that `_joins` accepts become one piece."""
    joined: list[Piece] = []
    for group in groups:
        for undated in group.pieces:
            piece, last = _dated(undated, group.max_timestamp_ms), joined[-1] if joined else None
            if last is None or not _joins(last, piece):
                joined.append(piece)
                continue
            newest_ms = max(last.max_timestamp_ms, piece.max_timestamp_ms)
            counts = last.msg_count + piece.msg_count, last.byte_length + piece.byte_length
            payload_bytes = last.payload_bytes + piece.payload_bytes
            joined[-1] = Piece(*counts, None, newest_ms, piece.incarnation, payload_bytes)
    return tuple(joined)


def _joins(last: Piece, piece: Piece) -> bool:
    """Whether two neighbours become one piece: neither has a claim, and both mean the same incarnation."""
    return last.claim is None and piece.claim is None and last.incarnation == piece.incarnation


def _dated(piece: Piece, max_timestamp_ms: int) -> Piece:
    """The piece with a timestamp: its own, or its group's."""
    if piece.max_timestamp_ms != NO_TIMESTAMP:
        return piece
    return Piece(
        piece.msg_count, piece.byte_length, piece.claim, max_timestamp_ms, piece.incarnation, piece.payload_bytes
    )


# -- outcomes --------------------------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """Adjacent new pieces with consecutive offsets: the content of one index entry."""

    first: int
    last: int
    start_offset: int
    end_offset: int


def stretches_of(pieces: Sequence[PieceOutcome]) -> list[Stretch]:
    """Few steps per piece: a flush may hold thousands of batches of idempotent producers."""
    stretches: list[Stretch] = []
    first = last = start_offset = end_offset = -1
    for number, piece in enumerate(pieces):
        if not isinstance(piece, Landed) or piece.repeated:
            continue
        if first >= 0 and last == number - 1 and end_offset == piece.start_offset - 1:
            last, end_offset = number, piece.end_offset
            continue
        if first >= 0:
            stretches.append(Stretch(first, last, start_offset, end_offset))
        first = last = number
        start_offset, end_offset = piece.start_offset, piece.end_offset
    if first >= 0:
        stretches.append(Stretch(first, last, start_offset, end_offset))
    return stretches


def share_out(
    joined: EncodedGroup, outcome: AppendOutcome, groups: Sequence[EncodedGroup], keys: Keys
) -> list[AppendOutcome]:
    """The outcome of each of the groups that were joined, in order."""
    if len(groups) == 1:
        return [outcome]
    if len(joined.pieces) == 1 and isinstance(outcome, Appended):
        return _split_offsets(outcome, groups)
    pieces = _split_outcomes(piece_outcomes(joined, outcome), groups)
    index_keys: dict[int, str] = {}
    for stretch in stretches_of(pieces):
        key = keys.index_entry(joined.log, stretch.end_offset).path
        index_keys.update(dict.fromkeys(range(stretch.first, stretch.last + 1), key))
    wal_uri = outcome.wal_uri if isinstance(outcome, Appended) else ""
    bounds = accumulate((len(group.pieces) for group in groups), initial=0)
    return [_outcome_of(joined.log, pieces, range(*ends), index_keys, wal_uri, keys) for ends in pairwise(bounds)]


def _split_offsets(outcome: Appended, groups: Sequence[EncodedGroup]) -> list[AppendOutcome]:
    """The usual case: one range of new offsets for groups without claims. Few steps per group."""
    log, next_offset, _, index_key, wal_uri, _ = outcome
    outcomes: list[AppendOutcome] = []
    for group in groups:
        start_offset, next_offset = next_offset, next_offset + group.msg_count
        landed: tuple[PieceOutcome, ...] = (Landed(start_offset, next_offset - 1),)
        if len(group.pieces) > 1:
            ends = accumulate((piece.msg_count for piece in group.pieces), initial=start_offset)
            landed = tuple(Landed(start, end - 1) for start, end in pairwise(ends))
        outcomes.append(Appended(log, start_offset, next_offset - 1, index_key, wal_uri, landed))
    return outcomes


def _split_outcomes(joined: Sequence[PieceOutcome], groups: Sequence[EncodedGroup]) -> list[PieceOutcome]:
    """An outcome for every piece of the groups, from the outcomes of the pieces that `_join_pieces` made of them."""
    outcomes: list[PieceOutcome] = []
    remaining, current, next_offset, last = iter(joined), None, 0, None
    for piece in (piece for group in groups for piece in group.pieces):
        if last is None or not _joins(last, piece):
            current = next(remaining)
            next_offset = current.start_offset if isinstance(current, Landed) else 0
        last = piece
        assert current is not None
        if piece.claim is not None or not isinstance(current, Landed):
            outcomes.append(current)
        else:
            outcomes.append(Landed(next_offset, next_offset + piece.msg_count - 1))
            next_offset += piece.msg_count
    return outcomes


def _outcome_of(
    log: Log, pieces: Sequence[PieceOutcome], numbers: range, index_keys: dict[int, str], wal_uri: str, keys: Keys
) -> AppendOutcome:
    own = tuple(pieces[numbers.start : numbers.stop])
    if len(own) == 1 and isinstance(own[0], Landed) and numbers.start in index_keys:  # the usual case
        return Appended(log, own[0].start_offset, own[0].end_offset, index_keys[numbers.start], wal_uri, own)
    landed = [piece for piece in own if isinstance(piece, Landed)]
    if not landed:
        errors = [copy_error(piece) for piece in own if isinstance(piece, LogError)]
        errors[0].outcomes = list(errors) if len(errors) > 1 else []
        return errors[0]
    key = next((index_keys[number] for number in reversed(numbers) if number in index_keys), "")
    if not key:  # only repeats: the entry that holds the last one
        key = keys.index_entry(log, landed[-1].end_offset).path
    return Appended(log, landed[0].start_offset, landed[-1].end_offset, key, wal_uri, own)


def copy_error(error: LogError) -> LogError:
    """A copy that shares nothing: the `outcomes` of an error belong to one caller."""
    copy = type(error).__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.args, copy.outcomes = error.args, []
    return copy


def committed_of(group: EncodedGroup, outcome: AppendOutcome) -> list[CommittedBatch]:
    """The new records of the group, one batch per stretch of contiguous offsets. Repeats are left out."""
    if not isinstance(outcome, Appended):
        return []
    batches = []
    for stretch in stretches_of(outcome.pieces):
        pieces, body = group.pieces[stretch.first : stretch.last + 1], group.body
        if len(pieces) < len(group.pieces):
            begin = sum([piece.byte_length for piece in group.pieces[: stretch.first]])
            body = bytes_of(body, begin, sum([piece.byte_length for piece in pieces]))
        newest_ms = max([_dated(piece, group.max_timestamp_ms).max_timestamp_ms for piece in pieces])
        payload_bytes = sum([piece.payload_bytes for piece in pieces])
        batches.append(
            CommittedBatch(
                group.log, stretch.start_offset, stretch.end_offset, group.encoding, body, newest_ms, 0, payload_bytes
            )
        )
    return batches
