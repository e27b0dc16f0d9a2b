"""A group made of pieces: each is judged by itself, in order, and what is new goes together as far as it can."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from llog.errors import InvalidArgument
from llog.formats.values import ControlRecord, ProducerState, encode_value
from llog.limits import LOG_CLAIMS_PER_APPEND_MAX, LOG_CONTROL_BYTES_MAX, METADATA_KEY_BYTES_MAX
from llog.log.append.append import Appended, EncodedGroup, piece_outcomes
from llog.log.append.pieces import AppendSlice, Landed, Piece, PlacedPiece, bytes_of, place
from llog.log.control import (
    NothingNew,
    PieceVerdict,
    Refusal,
    Reserved,
    judge_pieces,
    new_control,
    reserve,
    weigh_claims,
)
from llog.log.keys import Log
from llog.log.producers import WINDOW, ProducerClaim, with_batches

OPEN = new_control(incarnation=2, first_offset=1, now_ms=10_000, vacuum_grace_ms=10_000)
ORDERS = Log("orders", 0)


def claim(producer_id: int, first: int, count: int = 2, epoch: int = 0) -> ProducerClaim:
    return ProducerClaim(producer_id, epoch, first, first + count - 1)


def pieces_of(*claims: ProducerClaim | None, at: int = 100) -> tuple[PlacedPiece, ...]:
    """Of two messages and ten bytes each."""
    return place([Piece(2, 10, claim) for claim in claims], byte_offset=at, max_timestamp_ms=5)


def part_of(*claims: ProducerClaim | None) -> AppendSlice:
    return AppendSlice("mine", 2, "s3://b/blob", 10_000, "kafka-v2", pieces_of(*claims))


def known(*stored: tuple[ProducerClaim, int]) -> dict[int, ProducerState]:
    return with_batches({}, [claim.at(offset) for claim, offset in stored], 0)


def decide(
    part: AppendSlice, states: Mapping[int, ProducerState], counter: int = 1
) -> Reserved | NothingNew | Refusal | object:
    control = replace(OPEN, sequence_counter=counter)
    return reserve(control, part, producers=states, settled_append_id=None)


def reserved(part: AppendSlice, states: Mapping[int, ProducerState], counter: int = 1) -> Reserved:
    decision = decide(part, states, counter)
    assert isinstance(decision, Reserved)
    return decision


def kinds(verdicts: Sequence[PieceVerdict]) -> dict[int, object]:
    return {v.number: v.outcome.kind if isinstance(v.outcome, Refusal) else tuple(v.outcome) for v in verdicts}


def test_new_pieces_are_appended_together_and_each_knows_its_offsets() -> None:
    made = reserved(part_of(claim(7, 0), None, claim(8, 0)), {}, counter=11)
    assert kinds(made.verdicts) == {0: (11, 12, False), 1: (13, 14, False), 2: (15, 16, False)}
    assert (made.pending.start_offset, made.pending.end_offset, made.pending.msg_count) == (11, 16, 6)
    assert (made.pending.byte_offset, made.pending.byte_length, made.pending.append_id) == (100, 30, "mine")
    assert [(batch.producer_id, batch.start_offset) for batch in made.pending.producers] == [(7, 11), (8, 15)]
    assert made.control.sequence_counter == 17


def test_a_repeat_gets_the_offsets_of_the_first_time() -> None:
    decision = decide(part_of(claim(7, 0), claim(7, 2)), known((claim(7, 0), 3), (claim(7, 2), 9)), counter=20)
    assert isinstance(decision, NothingNew)
    assert kinds(decision.verdicts) == {0: (3, 4, True), 1: (9, 10, True)}


def test_a_repeat_between_new_pieces_parts_them() -> None:
    part = part_of(claim(7, 2), claim(8, 0), claim(9, 0))
    states = known((claim(7, 0), 1), (claim(8, 0), 3))
    made = reserved(part, states, counter=5)
    assert kinds(made.verdicts) == {0: (5, 6, False), 1: (3, 4, True)}, "what follows the next new piece is not judged"
    assert (made.pending.byte_offset, made.pending.byte_length) == (100, 10)
    rest = part._replace(pieces=part.pieces[2:])
    then = reserved(rest, with_batches(states, made.pending.producers, 0), counter=7)
    assert kinds(then.verdicts) == {2: (7, 8, False)}
    assert (then.pending.byte_offset, then.pending.byte_length) == (120, 10)
    assert then.pending.append_id != made.pending.append_id


def test_a_refused_piece_harms_none_beside_it() -> None:
    states = known((claim(7, 0), 1), (claim(9, 0, epoch=3), 3))
    made = reserved(part_of(claim(7, 9), claim(9, 2, epoch=2), claim(8, 0), claim(7, 2)), states, counter=5)
    assert kinds(made.verdicts) == {0: "out_of_order", 1: "old_epoch", 2: (5, 6, False), 3: (7, 8, False)}


def test_refusals_and_repeats_are_distinct_outcomes() -> None:
    decision = decide(part_of(claim(7, 0), claim(7, 9)), known((claim(7, 0), 1)))
    assert isinstance(decision, NothingNew)
    assert kinds(decision.verdicts) == {0: (1, 2, True), 1: "out_of_order"}


def test_pieces_are_judged_against_the_new_ones_before_them() -> None:
    made = reserved(part_of(claim(7, 0), claim(7, 2), claim(7, 0), claim(7, 9)), {}, counter=1)
    assert kinds(made.verdicts) == {0: (1, 2, False), 1: (3, 4, False), 2: (1, 2, True), 3: "out_of_order"}
    assert len(made.pending.producers) == 2
    fresh_epoch = reserved(part_of(claim(7, 0, epoch=1), claim(7, 2, epoch=0)), {})
    assert kinds(fresh_epoch.verdicts) == {0: (1, 2, False), 1: "old_epoch"}


def test_pieces_that_are_not_neighbours_any_more_are_not_appended_together() -> None:
    part = part_of(None, None, None)
    made = reserved(part._replace(pieces=(part.pieces[0], part.pieces[2])), {})
    assert [piece.number for piece in made.run] == [0]


def test_a_log_refuses_before_any_piece_is_judged() -> None:
    states = known((claim(7, 0), 1))
    assert decide(part_of(claim(7, 9))._replace(incarnation=1), states) == Refusal(
        "stale_self", "the log was created again (incarnation 2)"
    )


def test_a_control_record_with_as_many_claims_as_allowed_stays_small() -> None:
    most = 2**63 - 1
    count = LOG_CLAIMS_PER_APPEND_MAX + 1
    many = [ProducerClaim(most - i, 2**15 - 1, 2**31 - 2, 2**31 - 1) for i in range(count)]
    # Their batches before these were stored by other appends.
    before = known(*((ProducerClaim(one.producer_id, one.epoch, 2**31 - 4, 2**31 - 3), 1) for one in many))
    uri = "s3://" + "b" * 63 + "/" + "k" * METADATA_KEY_BYTES_MAX
    part = part_of(*many)._replace(append_id="f" * 40, data_key=uri, blob_created_at_ms=2**62)
    full = replace(OPEN, sequence_counter=2**62, log_start_offset=2**62, commit_horizon_ms=2**62, epoch=2**31)
    made = reserve(full, part, producers=before, settled_append_id=None)
    assert isinstance(made, Reserved)
    assert len(made.pending.producers) == LOG_CLAIMS_PER_APPEND_MAX
    assert len(encode_value(made.control)) < LOG_CONTROL_BYTES_MAX
    rest = part._replace(pieces=part.pieces[len(made.run) :])
    then = reserve(
        replace(full, sequence_counter=made.control.sequence_counter), rest, producers=before, settled_append_id=""
    )
    assert isinstance(then, Reserved)
    assert [piece.number for piece in then.run] == [LOG_CLAIMS_PER_APPEND_MAX]


def test_of_each_producer_an_append_stores_the_last_five_batches() -> None:
    """So the size of a control record is bounded by its producers, however many batches they send."""
    count = 20 * LOG_CLAIMS_PER_APPEND_MAX
    batches = [claim(7 + i % 2, 2 * (i // 2)) for i in range(count)]
    made = reserved(part_of(*batches), {})
    assert len(made.run) == len(made.verdicts) == count
    assert made.pending.msg_count == 2 * count
    last = [claim.at(1 + 2 * i) for i, claim in enumerate(batches)][-2 * WINDOW :]
    assert list(made.pending.producers) == last, "in the order of their offsets"
    assert len(encode_value(made.control)) < 2_000


def test_what_an_append_stores_of_its_batches_leads_to_the_same_state_as_all_of_them() -> None:
    before = known((claim(7, 0), 1), (claim(8, 0, epoch=3), 3))
    batches = [claim(7, 2 * i + 2) for i in range(3)] + [claim(8, 2 * i, epoch=4) for i in range(7)]
    batches += [claim(7, 2 * i, epoch=1) for i in range(2)] + [claim(9, 0)]
    made = reserved(part_of(*batches), before, counter=5)
    everything = [one.at(5 + 2 * i) for i, one in enumerate(batches)]
    assert with_batches(before, made.pending.producers, 0) == with_batches(before, everything, 0)
    assert [(b.producer_id, b.epoch) for b in made.pending.producers] == [(8, 4)] * 5 + [(7, 1)] * 2 + [(9, 0)]


def test_a_piece_that_finds_no_room_leaves_no_claim_behind() -> None:
    part = part_of(claim(7, 0), claim(8, 0), claim(7, 2))
    made = reserved(part._replace(pieces=(part.pieces[0], part.pieces[2])), {})
    assert [piece.number for piece in made.run] == [0]
    assert list(made.pending.producers) == [claim(7, 0).at(1)]


def test_only_a_recovery_accepts_any_first_number_of_an_unknown_producer() -> None:
    part = part_of(claim(7, 4), claim(7, 6), claim(7, 9))
    assert isinstance(decide(part, {}), NothingNew)
    made = reserved(part._replace(accepts_unknown=True), {})
    assert kinds(made.verdicts) == {0: (1, 2, False), 1: (3, 4, False), 2: "out_of_order"}


def test_a_log_that_forgot_producers_says_so_to_an_unknown_one() -> None:
    control, part = replace(OPEN, sequence_counter=1), part_of(claim(7, 4), claim(8, 0), claim(8, 2))
    made = reserve(control, part, producers={}, settled_append_id=None, forgot=True)
    assert isinstance(made, Reserved)
    assert kinds(made.verdicts) == {0: "unknown_producer", 1: (1, 2, False), 2: (3, 4, False)}


def test_pieces_without_claims_do_not_count_against_the_limit() -> None:
    made = reserved(part_of(*[None] * (3 * LOG_CLAIMS_PER_APPEND_MAX)), {})
    assert len(made.run) == 3 * LOG_CLAIMS_PER_APPEND_MAX


@pytest.mark.parametrize("seed", range(40))
def test_committing_run_after_run_is_the_same_as_committing_piece_after_piece(seed: int) -> None:
    """The reference appends each piece alone, in order; the split must give every piece the very same outcome."""
    rng = random.Random(seed)
    claims = [
        rng.choice(
            [None, ProducerClaim(rng.randint(1, 3), rng.randint(0, 1), first := rng.randrange(0, 6, 2), first + 1)]
        )
        for _ in range(rng.randint(1, 12))
    ]
    states = known((claim(1, 0), 1), (claim(2, 0), 3), (claim(2, 2), 5))
    assert _committed(pieces_of(*claims), states, 7, together=True) == _committed(
        pieces_of(*claims), states, 7, together=False
    )


def _committed(
    pieces: Sequence[PlacedPiece], states: Mapping[int, ProducerState], counter: int, *, together: bool
) -> list[Landed | str]:
    outcomes: dict[int, Landed | str] = {}
    control: ControlRecord = replace(OPEN, sequence_counter=counter)
    while left := [piece for piece in pieces if piece.number not in outcomes]:
        judged = left if together else left[:1]
        part = AppendSlice("mine", 2, "s3://b/blob", 10_000, "kafka-v2", tuple(judged))
        decision = reserve(control, part, producers=states, settled_append_id=None)
        assert isinstance(decision, Reserved | NothingNew)
        for number, outcome in decision.verdicts:
            outcomes[number] = outcome.kind if isinstance(outcome, Refusal) else outcome
        if isinstance(decision, Reserved):
            states = with_batches(states, decision.pending.producers, 0)
            control = replace(decision.control, pending=None)
    return [outcomes[piece.number] for piece in pieces]


# -- an attempt that only producer state can decide --------------------------------------------------------------------


def test_one_piece_that_is_still_new_proves_that_the_run_was_not_committed() -> None:
    run = pieces_of(claim(7, 0), claim(8, 0))
    assert weigh_claims(run, {}) == ()
    assert weigh_claims(run, known((claim(7, 0), 1))) == ()


def test_pieces_that_producer_state_holds_are_committed_at_its_offsets() -> None:
    run = pieces_of(claim(7, 0), claim(8, 0))
    states = known((claim(7, 0), 1), (claim(8, 0), 3), (claim(7, 2), 5))
    assert weigh_claims(run, states) == ((0, Landed(1, 2, repeated=True)), (1, Landed(3, 4, repeated=True)))


def test_a_batch_that_left_the_window_is_in_the_log() -> None:
    run = pieces_of(claim(7, 0), claim(8, 0))
    gone_on = [(claim(7, 2 * i), 10 + 2 * i) for i in range(6)]
    (_, older), (_, repeat) = weigh_claims(run, known(*gone_on, (claim(8, 0), 3)))
    assert isinstance(older, Refusal)
    assert older.kind == "duplicate"
    assert repeat == Landed(3, 4, repeated=True)


def test_a_producer_in_a_later_epoch_leaves_its_earlier_batch_uncertain() -> None:
    run = pieces_of(claim(7, 0), claim(8, 0))
    assert weigh_claims(run, known((claim(7, 0, epoch=1), 1), (claim(8, 0), 3)))[0] == (0, None)


def test_a_log_that_forgot_producers_cannot_say_that_an_unknown_one_wrote_nothing() -> None:
    run = pieces_of(claim(7, 0), claim(8, 0))
    landed = (1, Landed(3, 4, repeated=True))
    assert weigh_claims(run, known((claim(8, 0), 3)), forgot=True) == ((0, None), landed)
    assert weigh_claims(run, known((claim(7, 0), 3)), forgot=False) == ()


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_group_without_pieces_is_one_piece() -> None:
    group = EncodedGroup(ORDERS, 3, "kafka-v2", [b"abc", b"de"], 5)
    assert group.pieces == (Piece(3, 5),)
    assert EncodedGroup(ORDERS, 2, "kafka-v2", [b"abc"], producers=(claim(7, 0),)).pieces == (Piece(2, 3, claim(7, 0)),)


@pytest.mark.parametrize(
    "pieces",
    [
        (Piece(1, 3), Piece(1, 2)),
        (Piece(1, 3), Piece(2, 3)),
        (Piece(0, 3), Piece(3, 2)),
        (Piece(1, 0), Piece(2, 5)),
        (Piece(1, 3, claim(7, 0)), Piece(2, 2)),
    ],
    ids=["messages", "bytes", "no message", "no byte", "sequences"],
)
def test_pieces_that_do_not_tile_the_group_are_refused(pieces: tuple[Piece, ...]) -> None:
    with pytest.raises(InvalidArgument, match="pieces"):
        EncodedGroup(ORDERS, 3, "kafka-v2", [b"abcde"], pieces=pieces)


def test_a_slice_of_bare_payloads_is_one_piece() -> None:
    with pytest.raises(InvalidArgument, match="bytes-batch-v1"):
        EncodedGroup(ORDERS, 3, "bytes-batch-v1", [b"abcde"], pieces=(Piece(1, 3), Piece(2, 2)))


def test_claims_of_a_group_with_pieces_belong_to_the_pieces() -> None:
    with pytest.raises(InvalidArgument, match="producers"):
        EncodedGroup(ORDERS, 2, "kafka-v2", [b"ab"], 5, (claim(7, 0),), (Piece(2, 2),))
    with pytest.raises(InvalidArgument, match="producers"):
        EncodedGroup(ORDERS, 4, "kafka-v2", [b"ab"], 5, (claim(7, 0), claim(8, 0)))


def test_a_part_of_a_group_has_its_pieces_bytes() -> None:
    body = [b"abc", b"d", b"efgh"]
    for start, length in itertools.product(range(9), range(9)):
        assert b"".join(bytes_of(body, start, length)) == b"abcdefgh"[start : start + length]
    group = EncodedGroup(ORDERS, 6, "kafka-v2", body, pieces=(Piece(1, 2), Piece(2, 3), Piece(3, 3)))
    part = group.only([0, 2])
    assert (b"".join(part.body), part.msg_count, part.pieces) == (b"abfgh", 4, (Piece(1, 2), Piece(3, 3)))


def test_a_piece_says_how_new_it_is_or_the_group_does() -> None:
    placed = place([Piece(1, 2, None, 3), Piece(1, 2)], byte_offset=0, max_timestamp_ms=9)
    assert [piece.max_timestamp_ms for piece in placed] == [3, 9]
    run = judge_pieces(placed[:1], {}, 1).run
    made = reserve(OPEN, AppendSlice("a", 2, "u", 10_000, "kafka-v2", run), producers={}, settled_append_id=None)
    assert isinstance(made, Reserved)
    assert made.pending.max_timestamp_ms == 3


def test_every_piece_has_an_outcome_whatever_became_of_the_group() -> None:
    group = EncodedGroup(ORDERS, 3, "kafka-v2", [b"abc"], pieces=(Piece(1, 1), Piece(2, 2)))
    pieces = (Landed(1, 1), Landed(2, 3))
    assert piece_outcomes(group, Appended(ORDERS, 1, 3, "key", "uri", pieces)) == pieces
