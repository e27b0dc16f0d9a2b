"""Idempotent producers: judges whether a batch is new, a repeat, or out of order.

Kafka's rules: a producer numbers its records per log, from 0 on in each epoch; the last five batches of an epoch are
remembered, so a repeat within that window gets its first offsets. `reserve` judges against state that is complete as of
the control version being replaced (`llog.log.producer_state`).

An unknown producer must begin at 0 too. Kafka's brokers accept any number from one, because only the leader of a
partition sees its batches. Here two brokers may receive the batches of one producer in any order, and the first batch
would be refused for ever after the second was taken for a beginning (h31).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from llog.formats.values import ProducerBatch, ProducerState
from llog.limits import LOG_CLAIMS_PER_APPEND_MAX

WINDOW: Final = 5
SEQUENCE_MODULUS: Final = 2**31

_NO_EPOCH: Final = -1


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
    DUPLICATE = "duplicate"
    """Older than the window: it is in the log, and its offsets are forgotten."""
    OUT_OF_ORDER = "out of order"
    OLD_EPOCH = "old epoch"
    UNKNOWN = "unknown"
    """Not the beginning of a producer that the log does not know, and the log has forgotten producers."""


class Judged(NamedTuple):
    judgement: Judgement
    first_time: ProducerBatch | None = None
    """Of a REPEAT: the batch that is stored."""


_NEW: Final = Judged(Judgement.NEW)


class ProducerWindow:
    """What a log remembers of one producer, while the claims of one append are judged.

    It changes in place: an append may hold thousands of batches of one producer, and each is judged against the ones
    before it. `forgot`: the log has forgotten producers, so an unknown one need not be new.
    """

    __slots__ = ("_forgot", "_next_sequence", "batches", "epoch")

    def __init__(self, state: ProducerState | None, *, forgot: bool = False) -> None:
        self._forgot = forgot
        self.epoch = _NO_EPOCH if state is None else state.epoch
        self.batches = [] if state is None else list(state.batches)
        """The last ones of the epoch, at most WINDOW."""
        self._next_sequence = (self.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS if self.batches else 0

    def is_unknown(self) -> bool:
        return self.epoch == _NO_EPOCH

    def judge(self, claim: ProducerClaim) -> Judged:
        if claim.first_sequence == self._next_sequence and claim.epoch == self.epoch:  # the usual case
            return _NEW
        if claim.epoch > self.epoch:
            if claim.first_sequence == 0:
                return _NEW
            return Judged(Judgement.UNKNOWN if self.is_unknown() and self._forgot else Judgement.OUT_OF_ORDER)
        if claim.epoch < self.epoch:
            return Judged(Judgement.OLD_EPOCH)
        for batch in self.batches:
            if batch.first_sequence == claim.first_sequence and batch.last_sequence == claim.last_sequence:
                return Judged(Judgement.REPEAT, batch)
        return Judged(Judgement.DUPLICATE if self._is_older(claim) else Judgement.OUT_OF_ORDER)

    def _is_older(self, claim: ProducerClaim) -> bool:
        """Whether the whole claim lies before a full window. A claim that overlaps the window without being a repeat is
        not a duplicate: its client would take records for stored that are not."""
        if len(self.batches) < WINDOW:
            return False  # the window holds everything since the epoch began
        distance = (self.batches[0].first_sequence - claim.last_sequence) % SEQUENCE_MODULUS
        return 0 < distance < SEQUENCE_MODULUS // 2

    def add(self, batch: ProducerBatch) -> None:
        """The batch was judged NEW and is stored."""
        batches = self.batches
        if batch.epoch != self.epoch:
            self.epoch = batch.epoch
            batches.clear()
        batches.append(batch)
        if len(batches) > WINDOW:
            del batches[0]
        self._next_sequence = (batch.last_sequence + 1) % SEQUENCE_MODULUS


def judge_claim(state: ProducerState | None, claim: ProducerClaim, *, forgot: bool = False) -> Judged:
    """Judge one claim against the state of its producer; None: an unknown producer."""
    return ProducerWindow(state, forgot=forgot).judge(claim)


class StoredClaims:
    """Counts the claims that one append stores: WINDOW of each producer, and LOG_CLAIMS_PER_APPEND_MAX in all. So any
    number of batches of one producer fits into one append."""

    __slots__ = ("_by_producer", "count")

    def __init__(self) -> None:
        self._by_producer: dict[int, int] = {}
        self.count = 0

    def fits(self, claims: Sequence[ProducerClaim]) -> bool:
        if self.count + len(claims) <= LOG_CLAIMS_PER_APPEND_MAX:
            return True
        known = self._by_producer
        more = sum([known.get(claim.producer_id, 0) < WINDOW for claim in claims])
        return self.count + more <= LOG_CLAIMS_PER_APPEND_MAX

    def add(self, producer_id: int) -> None:
        known = self._by_producer.get(producer_id, 0)
        if known < WINDOW:
            self._by_producer[producer_id] = known + 1
            self.count += 1


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
