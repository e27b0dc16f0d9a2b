"""One record group per log and flush: the groups of many requests joined as pieces, and its outcome shared out again.

Pieces that nobody numbers are always new, and neighbours among them land together or not at all: they are told to the
log as one piece, so that what a flush costs there does not grow with the number of its requests.

What must stay true: bytes are never copied or joined; a request's pieces stay neighbours, in order; every request
learns exactly what became of its own pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from llog.broker.produce.requests import Entry, own_error
from llog.errors import LogError
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.limits import LOG_CLAIMS_PER_APPEND_MAX
from llog.log.append.append import Appended, AppendOutcome, EncodedGroup, piece_outcomes
from llog.log.append.pieces import NOT_TOLD, Landed, Piece, PieceOutcome, bytes_of
from llog.log.keys import Keys, Log


class CommittedBatch(NamedTuple):
    """Records that landed, for the tail cache: the bytes as uploaded, base offsets not patched."""

    log: Log
    start_offset: int
    end_offset: int
    encoding: str
    body: Sequence[Buffer]
    timestamp_ms_max: int
    epoch: int = 0


class CheckedGroup(EncodedGroup):
    """A group whose pieces were made along with it, so that they need not be compared: with a dozen logs in a request
    that would cost as much as encoding them."""

    __slots__ = ()

    def __post_init__(self) -> None:
        pass


class Share:
    """One log's part of a flush, while it is gathered."""

    __slots__ = ("claims", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.claims = 0

    def takes(self, entry: Entry) -> bool:
        """Can the entry be a further piece of this group?

        A slice has one encoding, and one of bytes-batch-v1 is one batch. With more claims than one append may carry the
        group would be committed in several, and nobody could tell which index entry holds which piece.
        """
        encoding = self.entries[0].group.encoding
        if entry.group.encoding != encoding or encoding == BYTES_BATCH:
            return False
        return self.claims + entry.claims <= LOG_CLAIMS_PER_APPEND_MAX

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.claims += entry.claims

    def joined(self) -> EncodedGroup:
        first = self.entries[0].group
        if len(self.entries) == 1:
            return first
        groups = [entry.group for entry in self.entries]
        pieces = _merged(groups) if self.claims else (_one_piece(self.entries),)
        return EncodedGroup(
            first.log,
            sum([piece.msg_count for piece in pieces]),
            first.encoding,
            list(chain.from_iterable([group.body for group in groups])),
            max([group.max_timestamp_ms for group in groups]),
            pieces=pieces,
        )


def _one_piece(entries: Sequence[Entry]) -> Piece:
    """Of all of them, where none has a claim: their pieces need not be looked at."""
    msg_count = sum([entry.group.msg_count for entry in entries])
    byte_length = sum([entry.byte_length for entry in entries])
    return Piece(msg_count, byte_length, None, max([_newest_ms(entry.group) for entry in entries]))


def _newest_ms(group: EncodedGroup) -> int:
    return max([_dated(piece, group.max_timestamp_ms).max_timestamp_ms for piece in group.pieces])


def _merged(groups: Sequence[EncodedGroup]) -> tuple[Piece, ...]:
    """The pieces of all of them, neighbours without a claim as one."""
    found: list[Piece] = []
    for group in groups:
        for bare in group.pieces:
            piece, last = _dated(bare, group.max_timestamp_ms), found[-1] if found else None
            if last is None or last.claim is not None or piece.claim is not None:
                found.append(piece)
                continue
            newest_ms = max(last.max_timestamp_ms, piece.max_timestamp_ms)
            counts = last.msg_count + piece.msg_count, last.byte_length + piece.byte_length
            found[-1] = Piece(*counts, None, newest_ms)
    return tuple(found)


def _dated(piece: Piece, max_timestamp_ms: int) -> Piece:
    """What was told of its group holds for the piece, and only for it."""
    if piece.max_timestamp_ms != NOT_TOLD:
        return piece
    return Piece(piece.msg_count, piece.byte_length, piece.claim, max_timestamp_ms)


# -- outcomes --------------------------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """Neighbouring pieces, all new, that lie in the log one behind the other: what one index entry holds."""

    first: int
    last: int
    start_offset: int
    end_offset: int


def stretches_of(pieces: Sequence[PieceOutcome]) -> list[Stretch]:
    found: list[Stretch] = []
    for number, piece in enumerate(pieces):
        if not isinstance(piece, Landed) or piece.repeated:
            continue
        before = found[-1] if found else None
        if before is not None and before.last == number - 1 and before.end_offset == piece.start_offset - 1:
            found[-1] = before._replace(last=number, end_offset=piece.end_offset)
        else:
            found.append(Stretch(number, number, piece.start_offset, piece.end_offset))
    return found


def share_out(
    joined: EncodedGroup, outcome: AppendOutcome, groups: Sequence[EncodedGroup], keys: Keys
) -> list[AppendOutcome]:
    """What became of each of the groups that were joined, in order."""
    if len(groups) == 1:
        return [outcome]
    if len(joined.pieces) == 1 and isinstance(outcome, Appended):
        return _cut(outcome, groups)
    pieces = _outcomes_apart(piece_outcomes(joined, outcome), groups)
    held_by: dict[int, str] = {}
    for stretch in stretches_of(pieces):
        key = keys.index_entry(joined.log, stretch.end_offset).path
        held_by.update(dict.fromkeys(range(stretch.first, stretch.last + 1), key))
    wal_uri = outcome.wal_uri if isinstance(outcome, Appended) else ""
    bounds = accumulate((len(group.pieces) for group in groups), initial=0)
    return [_outcome_of(joined.log, pieces, range(*ends), held_by, wal_uri, keys) for ends in pairwise(bounds)]


def _cut(outcome: Appended, groups: Sequence[EncodedGroup]) -> list[AppendOutcome]:
    """One range of new offsets for groups that nobody numbered: nearly always, so it takes few steps per group."""
    log, next_offset, _, index_key, wal_uri, _ = outcome
    shares: list[AppendOutcome] = []
    for group in groups:
        start_offset, next_offset = next_offset, next_offset + group.msg_count
        landed: tuple[PieceOutcome, ...] = (Landed(start_offset, next_offset - 1),)
        if len(group.pieces) > 1:
            ends = accumulate((piece.msg_count for piece in group.pieces), initial=start_offset)
            landed = tuple(Landed(start, end - 1) for start, end in pairwise(ends))
        shares.append(Appended(log, start_offset, next_offset - 1, index_key, wal_uri, landed))
    return shares


def _outcomes_apart(merged: Sequence[PieceOutcome], groups: Sequence[EncodedGroup]) -> list[PieceOutcome]:
    """An outcome for every piece of the groups, from those of the pieces that `_merged` made of them."""
    found: list[PieceOutcome] = []
    outcomes, current, next_offset, claimed = iter(merged), None, 0, True
    for piece in (piece for group in groups for piece in group.pieces):
        if claimed or piece.claim is not None:
            current = next(outcomes)
            next_offset = current.start_offset if isinstance(current, Landed) else 0
        claimed = piece.claim is not None
        assert current is not None
        if claimed or not isinstance(current, Landed):
            found.append(current)
        else:
            found.append(Landed(next_offset, next_offset + piece.msg_count - 1))
            next_offset += piece.msg_count
    return found


def _outcome_of(
    log: Log, pieces: Sequence[PieceOutcome], numbers: range, held_by: dict[int, str], wal_uri: str, keys: Keys
) -> AppendOutcome:
    mine = tuple(pieces[numbers.start : numbers.stop])
    if len(mine) == 1 and isinstance(mine[0], Landed) and numbers.start in held_by:  # nearly always
        return Appended(log, mine[0].start_offset, mine[0].end_offset, held_by[numbers.start], wal_uri, mine)
    landed = [piece for piece in mine if isinstance(piece, Landed)]
    if not landed:
        errors = [own_error(piece) for piece in mine if isinstance(piece, LogError)]
        errors[0].outcomes = list(errors) if len(errors) > 1 else []
        return errors[0]
    key = next((held_by[number] for number in reversed(numbers) if number in held_by), "")
    if not key:  # repeats only: where the last one was stored
        key = keys.index_entry(log, landed[-1].end_offset).path
    return Appended(log, landed[0].start_offset, landed[-1].end_offset, key, wal_uri, mine)


def committed_of(group: EncodedGroup, outcome: AppendOutcome) -> list[CommittedBatch]:
    """What is new in the log, as runs of contiguous offsets; repeats are where they were, and not told again."""
    if not isinstance(outcome, Appended):
        return []
    starts = [*accumulate((piece.byte_length for piece in group.pieces), initial=0)]
    found = []
    for stretch in stretches_of(outcome.pieces):
        pieces = group.pieces[stretch.first : stretch.last + 1]
        whole = len(pieces) == len(group.pieces)
        begin, end = starts[stretch.first], starts[stretch.last + 1]
        body = group.body if whole else bytes_of(group.body, begin, end - begin)
        newest = max(_dated(piece, group.max_timestamp_ms).max_timestamp_ms for piece in pieces)
        found.append(CommittedBatch(group.log, stretch.start_offset, stretch.end_offset, group.encoding, body, newest))
    return found
