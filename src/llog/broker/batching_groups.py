"""One record group per log and flush: the groups of many requests joined as pieces, and its outcome shared out again.

What must stay true: bytes are never copied or joined; a request's pieces stay neighbours, in order; every request
learns exactly what became of its own pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from llog.broker.batching_requests import Entry, own_error
from llog.errors import LogError
from llog.formats.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.crc import Buffer
from llog.limits import LOG_CLAIMS_PER_APPEND_MAX
from llog.log.append import Appended, AppendOutcome, EncodedGroup, piece_outcomes
from llog.log.keys import Keys, Log
from llog.log.pieces import NOT_TOLD, Landed, Piece, PieceOutcome, bytes_of


class CommittedBatch(NamedTuple):
    """Records that landed, for the tail cache: the bytes as uploaded, base offsets not patched."""

    log: Log
    start_offset: int
    end_offset: int
    encoding: str
    body: Sequence[Buffer]
    timestamp_ms_max: int
    epoch: int = 0


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
        return EncodedGroup(
            first.log,
            sum(group.msg_count for group in groups),
            first.encoding,
            [buffer for group in groups for buffer in group.body],
            max(group.max_timestamp_ms for group in groups),
            pieces=tuple(_dated(piece, group.max_timestamp_ms) for group in groups for piece in group.pieces),
        )


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
    pieces = piece_outcomes(joined, outcome)
    held_by: dict[int, str] = {}
    for stretch in stretches_of(pieces):
        key = keys.index_entry(joined.log, stretch.end_offset).path
        held_by.update(dict.fromkeys(range(stretch.first, stretch.last + 1), key))
    wal_uri = outcome.wal_uri if isinstance(outcome, Appended) else ""
    bounds = accumulate((len(group.pieces) for group in groups), initial=0)
    return [_outcome_of(joined.log, pieces, range(*ends), held_by, wal_uri, keys) for ends in pairwise(bounds)]


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
