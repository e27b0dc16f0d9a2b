from __future__ import annotations

from llog.formats.values import ProducerState
from llog.log.producers import WINDOW, Judgement, ProducerClaim, judge_claim, with_batch, with_batches


def claim(first: int, last: int, epoch: int = 0) -> ProducerClaim:
    return ProducerClaim(9, epoch, first, last)


def test_an_unknown_producer_begins_at_zero() -> None:
    assert judge_claim(None, claim(0, 8)).judgement is Judgement.NEW
    assert judge_claim(None, claim(0, 0, epoch=3)).judgement is Judgement.NEW
    for first in (1, 7, 2**31 - 1):
        assert judge_claim(None, claim(first, first)).judgement is Judgement.OUT_OF_ORDER


def test_a_log_that_has_forgotten_producers_does_not_call_an_unknown_one_out_of_order() -> None:
    assert judge_claim(None, claim(0, 8), forgot=True).judgement is Judgement.NEW
    assert judge_claim(None, claim(7, 8), forgot=True).judgement is Judgement.UNKNOWN
    state = with_batch(None, claim(0, 4).at(1), 0)
    assert judge_claim(state, claim(7, 8), forgot=True).judgement is Judgement.OUT_OF_ORDER
    assert judge_claim(state, claim(7, 8, epoch=1), forgot=True).judgement is Judgement.OUT_OF_ORDER


def test_the_last_five_batches_are_recognised_and_older_ones_are_not() -> None:
    states = with_batches({}, [claim(i, i).at(100 + i) for i in range(WINDOW + 1)], 0)
    for i in range(1, WINDOW + 1):
        judged = judge_claim(states[9], claim(i, i))
        assert judged.judgement is Judgement.REPEAT
        assert judged.first_time is not None
        assert judged.first_time.start_offset == 100 + i
    assert judge_claim(states[9], claim(0, 0)).judgement is Judgement.DUPLICATE
    assert judge_claim(states[9], claim(WINDOW + 1, WINDOW + 3)).judgement is Judgement.NEW


def test_a_new_epoch_begins_at_zero_and_ends_the_old_one() -> None:
    state = with_batch(None, claim(0, 4).at(1), 0)
    assert judge_claim(state, claim(5, 5, epoch=1)).judgement is Judgement.OUT_OF_ORDER
    assert judge_claim(state, claim(0, 0, epoch=1)).judgement is Judgement.NEW
    later = with_batch(state, claim(0, 0, epoch=1).at(6), 0)
    for old in (claim(5, 5), claim(0, 4), claim(0, 0)):
        assert judge_claim(later, old).judgement is Judgement.OLD_EPOCH, "also if it repeats a batch of that epoch"
    assert [batch.epoch for batch in later.batches] == [1]


def test_sequences_wrap_at_31_bits() -> None:
    last = 2**31 - 1
    state = with_batch(None, claim(last - 1, last).at(1), 0)
    assert judge_claim(state, claim(0, 3)).judgement is Judgement.NEW
    assert claim(last, 1).msg_count == 3


def test_only_what_lies_before_a_full_window_is_a_duplicate() -> None:
    """Anything else that is neither new nor a repeat would make its client take records for stored that are not."""
    states = with_batches({}, [claim(10 * i, 10 * i + 9).at(10 * i) for i in range(WINDOW + 1)], 0)
    judged = {
        (first, last): judge_claim(states[9], claim(first, last)).judgement
        for first, last in [(0, 9), (3, 4), (5, 10), (10, 12), (12, 14), (50, 58), (55, 65), (59, 59), (61, 61)]
    }
    assert [known for known, judgement in judged.items() if judgement is Judgement.DUPLICATE] == [(0, 9), (3, 4)]
    assert set(judged.values()) == {Judgement.DUPLICATE, Judgement.OUT_OF_ORDER}
    shorter = with_batches({}, [claim(10 * i, 10 * i + 9).at(10 * i) for i in range(WINDOW)], 0)
    assert judge_claim(shorter[9], claim(3, 4)).judgement is Judgement.OUT_OF_ORDER


def test_a_window_that_wraps_recognises_repeats_and_what_is_older() -> None:
    last = 2**31 - 1
    spans = [(last - 9, last - 8), (last - 7, last - 5), (last - 4, last - 2), (last - 1, 0), (1, 3), (4, 4)]
    states = with_batches({}, [claim(*span).at(100 + i) for i, span in enumerate(spans)], 0)
    judged = [judge_claim(states[9], claim(*span)).judgement for span in spans]
    assert judged == [Judgement.DUPLICATE, *[Judgement.REPEAT] * WINDOW]
    assert judge_claim(states[9], claim(5, 6)).judgement is Judgement.NEW
    assert judge_claim(states[9], claim(6, 6)).judgement is Judgement.OUT_OF_ORDER


def test_a_producer_without_batches_keeps_its_epoch_and_begins_at_zero() -> None:
    state = ProducerState(producer_id=9, epoch=2, batches=(), updated_at_ms=0)
    judged = [
        judge_claim(state, claim(*of)).judgement for of in [(0, 0, 1), (0, 0, 2), (1, 1, 2), (0, 0, 3), (1, 1, 3)]
    ]
    assert judged == [
        Judgement.OLD_EPOCH,
        Judgement.NEW,
        Judgement.OUT_OF_ORDER,
        Judgement.NEW,
        Judgement.OUT_OF_ORDER,
    ]
