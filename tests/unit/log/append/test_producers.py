from __future__ import annotations

from llog.log.producers import WINDOW, Judgement, ProducerClaim, judge_claim, with_batch, with_batches


def claim(first: int, last: int, epoch: int = 0) -> ProducerClaim:
    return ProducerClaim(9, epoch, first, last)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert judge_claim(None, claim(7, 8)).judgement is Judgement.NEW


def test_the_last_five_batches_are_recognised_and_older_ones_are_not() -> None:
    states = with_batches({}, [claim(i, i).at(100 + i) for i in range(WINDOW + 1)], 0)
    for i in range(1, WINDOW + 1):
        judged = judge_claim(states[9], claim(i, i))
        assert judged.judgement is Judgement.REPEAT
        assert judged.first_time is not None
        assert judged.first_time.start_offset == 100 + i
    assert judge_claim(states[9], claim(0, 0)).judgement is Judgement.OUT_OF_ORDER
    assert judge_claim(states[9], claim(WINDOW + 1, WINDOW + 3)).judgement is Judgement.NEW


def test_a_new_epoch_begins_at_zero_and_ends_the_old_one() -> None:
    state = with_batch(None, claim(0, 4).at(1), 0)
    assert judge_claim(state, claim(5, 5, epoch=1)).judgement is Judgement.OUT_OF_ORDER
    assert judge_claim(state, claim(0, 0, epoch=1)).judgement is Judgement.NEW
    later = with_batch(state, claim(0, 0, epoch=1).at(6), 0)
    assert judge_claim(later, claim(5, 5)).judgement is Judgement.OLD_EPOCH
    assert [batch.epoch for batch in later.batches] == [1]


def test_sequences_wrap_at_31_bits() -> None:
    last = 2**31 - 1
    state = with_batch(None, claim(last - 1, last).at(1), 0)
    assert judge_claim(state, claim(0, 3)).judgement is Judgement.NEW
    assert claim(last, 1).msg_count == 3
