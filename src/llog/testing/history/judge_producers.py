"""I12, the states: the producer snapshot says what the log below it says.

Recomputed from the history (the sequences of each batch) and the contents (their offsets), as far as retention left
them: for every producer the last batches of its last epoch, up to five.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llog.formats.values import ProducerState
from llog.testing.history.judge_clients import LogCase
from llog.testing.history.verdict import Violation

REMEMBERED: Final = 5
Known = tuple[int, int, int, int]
"""Epoch, first and last sequence, first offset."""


def judge_producers(case: LogCase) -> Iterator[Violation]:
    image = case.image
    if case.stored is None or image is None or image.head is None or image.control is None:
        return
    if image.head.incarnation != image.control.incarnation:
        return
    as_of = image.head.as_of
    states: dict[int, ProducerState] = {}
    for number in range(image.head.pages):
        page = image.pages.get((as_of, number))
        for state in page.producers if page is not None else ():
            states[state.producer_id] = state
    stored = _stored(case)
    for producer, batches in stored.items():
        below = [batch for batch in batches if batch[3] < as_of]
        if below:
            yield from _compare(case, as_of, producer, below, states.get(producer))
    for producer, state in states.items():
        ahead = [batch for batch in state.batches if batch.start_offset >= as_of]
        if ahead:
            yield case.violation("I12", ahead[0].start_offset, f"producer {producer}: known before it was passed")


def _stored(case: LogCase) -> dict[int, list[Known]]:
    """Every producer's batches that are stored completely, by offset."""
    assert case.stored is not None
    offset_of = {token: offset for offset, token in case.stored.items()}
    found: dict[int, list[Known]] = {}
    for batch in case.batches.values():
        claim = batch.attempts[-1].asked.claim  # an earlier one may have been refused before its epoch ended
        if claim is None or any(token not in offset_of for token in batch.tokens):
            continue
        known = (claim.epoch, claim.first_sequence, claim.last_sequence, offset_of[batch.tokens[0]])
        found.setdefault(claim.producer_id, []).append(known)
    for batches in found.values():
        batches.sort(key=lambda batch: batch[3])
    return found


def _compare(
    case: LogCase, as_of: int, producer: int, below: list[Known], state: ProducerState | None
) -> Iterator[Violation]:
    epoch = below[-1][0]
    expected = [batch for batch in below if batch[0] == epoch][-REMEMBERED:]
    if state is None:
        yield case.violation("I12", below[-1][3], f"producer {producer} is not in the snapshot as of {as_of}")
        return
    snapshot = [(state.epoch, b.first_sequence, b.last_sequence, b.start_offset) for b in state.batches]
    if snapshot[-len(expected) :] != expected:
        text = f"producer {producer}: the snapshot as of {as_of} says {snapshot}, the log {expected}"
        yield case.violation("I12", below[-1][3], text)
