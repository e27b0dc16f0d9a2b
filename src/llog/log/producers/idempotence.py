"""Idempotent producers: judges whether a batch is new, a repeat, or out of order. Pure.

Kafka's rule: a producer numbers its records per log; the last five batches of an epoch are remembered, so a repeat
within that window gets its first offsets. `reserve` judges against state that is complete as of the control version
being replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from llog.formats.values import ProducerBatch, ProducerState

WINDOW: Final = 5
SEQUENCE_MODULUS: Final = 2**31


class ProducerClaim(NamedTuple):
    """The sequence numbers of one piece of a record group."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    offset_delta: int = 0
    """From the piece's first message: always 0, because a claim covers its whole piece."""

    @property
    def msg_count(self) -> int:
        return (self.last_sequence - self.first_sequence) % SEQUENCE_MODULUS + 1

    def at(self, start_offset: int) -> ProducerBatch:
        """As it is stored, its first message at `start_offset`."""
        return ProducerBatch(
            producer_id=self.producer_id,
            epoch=self.epoch,
            first_sequence=self.first_sequence,
            last_sequence=self.last_sequence,
            start_offset=start_offset,
        )


class Judgement(Enum):
    NEW = "new"
    REPEAT = "repeat"
    OUT_OF_ORDER = "out of order"
    OLD_EPOCH = "old epoch"


class Judged(NamedTuple):
    judgement: Judgement
    first_time: ProducerBatch | None = None
    """Of a REPEAT: the batch that is stored."""


def judge_claim(state: ProducerState | None, claim: ProducerClaim) -> Judged:
    """Judge against the state of that producer; None: an unknown producer, which may start with any number."""
    if state is None or not state.batches:
        return Judged(Judgement.NEW)
    if claim.epoch < state.epoch:
        return Judged(Judgement.OLD_EPOCH)
    if claim.epoch > state.epoch:
        return Judged(Judgement.NEW if claim.first_sequence == 0 else Judgement.OUT_OF_ORDER)
    for batch in state.batches:
        if (batch.first_sequence, batch.last_sequence) == (claim.first_sequence, claim.last_sequence):
            return Judged(Judgement.REPEAT, batch)
    expected = (state.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS
    return Judged(Judgement.NEW if claim.first_sequence == expected else Judgement.OUT_OF_ORDER)


def with_batch(state: ProducerState | None, batch: ProducerBatch, now_ms: int) -> ProducerState:
    """The state after that batch was stored."""
    kept = state.batches if state is not None and state.epoch == batch.epoch else ()
    return ProducerState(
        producer_id=batch.producer_id,
        epoch=batch.epoch,
        batches=(*kept, batch)[-WINDOW:],
        updated_at_ms=max(now_ms, state.updated_at_ms if state is not None else 0),
    )


def with_batches(
    states: Mapping[int, ProducerState], batches: Iterable[ProducerBatch], now_ms: int
) -> dict[int, ProducerState]:
    """The state of all producers after these batches, in offset order."""
    after = dict(states)
    add_batches(after, batches, now_ms)
    return after


def add_batches(states: dict[int, ProducerState], batches: Iterable[ProducerBatch], now_ms: int) -> None:
    """`with_batches` in place: a log may have many producers, an append only a few of them."""
    for batch in batches:
        states[batch.producer_id] = with_batch(states.get(batch.producer_id), batch, now_ms)
