"""Groups of many calls are joined into one, and its outcome is shared out; pieces without claims become one piece."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.broker.produce.buffer import CallGroup, LogGroups, ProduceCall
from llog.broker.produce.groups import share_out
from llog.errors import AppendNotCommitted, LogError, OutOfOrderSequence
from llog.log.append.append import Appended, AppendOutcome, EncodedGroup
from llog.log.append.pieces import Landed, Piece, PieceOutcome
from llog.log.keys import Keys, Log
from llog.log.producers import ProducerClaim

LOG = Log("orders", 0)
KEYS = Keys("llog")


def group(number: int, pieces: list[tuple[int, bool]]) -> EncodedGroup:
    """Pieces of so many messages, with or without a claim."""
    made = tuple(
        Piece(count, 10 * count, ProducerClaim(100 + number, 0, at, at + count - 1) if claimed else None, 5 + number)
        for at, (count, claimed) in enumerate(pieces)
    )
    total = sum(piece.msg_count for piece in made)
    return EncodedGroup(LOG, total, "kafka-v2", [bytes(10 * total)], 5 + number, pieces=made)


async def joined(groups: list[EncodedGroup]) -> EncodedGroup:
    log_groups = LogGroups()
    for number, one in enumerate(groups):
        call = ProduceCall(1, 0, 0.0, lambda _: None)
        log_groups.add(CallGroup(call, number, one, sum(map(len, one.body))))
    return log_groups.join()


GROUPS = st.lists(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=4), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(GROUPS, st.data())
async def test_every_piece_gets_the_outcome_it_would_get_alone(
    wanted: list[list[tuple[int, bool]]], data: st.DataObject
) -> None:
    groups = [group(number, pieces) for number, pieces in enumerate(wanted)]
    one = await joined(groups)
    every = [piece for own in groups for piece in own.pieces]
    assert (one.msg_count, sum(map(len, one.body))) == (
        sum(g.msg_count for g in groups),
        sum(p.byte_length for p in every),
    )
    assert [piece.claim for piece in one.pieces if piece.claim] == [piece.claim for piece in every if piece.claim]
    assert max(piece.max_timestamp_ms for piece in one.pieces) == max(piece.max_timestamp_ms for piece in every)
    if len(groups) > 1:
        bare = [piece.claim is None for piece in one.pieces]
        assert not any(a and b for a, b in pairwise(bare)), "neighbours that could be one"
    # Claimed pieces may be repeats or refused; the others are always new.
    outcomes: list[PieceOutcome] = []
    expected: list[PieceOutcome] = []
    next_offset = 1_000
    rest = iter(every)
    for piece in one.pieces:
        fate = data.draw(st.sampled_from(["new", "repeat", "refused"])) if piece.claim else "new"
        if fate == "refused":
            outcomes.append(OutOfOrderSequence(*LOG, "sequence"))
            expected.append(outcomes[-1])
            next(rest)
        elif fate == "repeat":
            outcomes.append(Landed(7, 6 + piece.msg_count, repeated=True))
            expected.append(outcomes[-1])
            next(rest)
        else:
            outcomes.append(Landed(next_offset, next_offset + piece.msg_count - 1))
            left = piece.msg_count
            while left:
                own = next(rest)
                expected.append(Landed(next_offset, next_offset + own.msg_count - 1))
                next_offset += own.msg_count
                left -= own.msg_count
    if not any(isinstance(outcome, Landed) for outcome in outcomes):
        return
    landed = [outcome for outcome in outcomes if isinstance(outcome, Landed)]
    appended = Appended(LOG, landed[0].start_offset, landed[-1].end_offset, "key", "uri", tuple(outcomes))
    received: list[PieceOutcome] = []
    for asked, outcome in zip(groups, share_out(one, appended, groups, KEYS), strict=True):
        if isinstance(outcome, Appended):
            received += outcome.pieces
        else:
            refused = [error for error in outcome.outcomes if isinstance(error, LogError)]
            received += refused or [outcome] * len(asked.pieces)
    assert [_plain(outcome) for outcome in received] == [_plain(outcome) for outcome in expected]


def _plain(outcome: PieceOutcome) -> object:
    return outcome if isinstance(outcome, Landed) else type(outcome)


async def test_an_index_key_is_that_of_the_entry_which_holds_them_all() -> None:
    groups = [group(number, [(2, False)]) for number in range(3)]
    one = await joined(groups)
    key = KEYS.index_entry(LOG, 15).path
    outcome: AppendOutcome = Appended(LOG, 10, 15, key, "uri", (Landed(10, 15),))
    shared = share_out(one, outcome, groups, KEYS)
    assert shared == [
        Appended(LOG, start, start + 1, key, "uri", (Landed(start, start + 1),)) for start in (10, 12, 14)
    ]


async def test_a_refused_group_is_refused_for_each_with_an_error_of_its_own() -> None:
    groups = [group(number, [(2, False)]) for number in range(3)]
    shared = share_out(await joined(groups), AppendNotCommitted(*LOG, "no"), groups, KEYS)
    assert all(isinstance(outcome, AppendNotCommitted) for outcome in shared)
    assert len({id(outcome) for outcome in shared}) == 3


@pytest.mark.parametrize("stamped", ["piece", "group"])
async def test_the_joined_timestamp_is_the_newest_of_pieces_and_groups(stamped: str) -> None:
    stamp = (50, -1) if stamped == "piece" else (-1, 50)
    groups = [
        EncodedGroup(LOG, 1, "kafka-v2", [b"x"], stamp[1], pieces=(Piece(1, 1, None, stamp[0]),)),
        EncodedGroup(LOG, 1, "kafka-v2", [b"x"], 40, pieces=(Piece(1, 1, None, 40),)),
    ]
    [piece] = (await joined(groups)).pieces
    assert piece.max_timestamp_ms == 50
