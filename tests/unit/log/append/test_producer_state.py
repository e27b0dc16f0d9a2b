"""What a process knows of a log's producers is bounded, and says when producers were dropped."""

from __future__ import annotations

import pytest

from llog.formats.values import Pending
from llog.log.producer_state import KnownProducers
from llog.log.producers import ProducerClaim


def pending(producer_id: int, offset: int) -> Pending:
    return Pending(
        append_id=str(offset),
        start_offset=offset,
        end_offset=offset,
        msg_count=1,
        data_key="u",
        encoding="kafka-v2",
        producers=(ProducerClaim(producer_id, 0, 0, 0).at(offset),),
        created_at_ms=1,
    )


def test_the_producers_that_wrote_longest_ago_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.log.producer_state.LOG_PRODUCERS_MAX", 5)
    monkeypatch.setattr("llog.log.producer_state.LOG_PRODUCERS_SLACK", 3)
    known = KnownProducers()
    known.as_of = 1
    for offset in range(1, 9):
        known.add(pending(100 - offset, offset))
    assert (len(known.states), known.forgot) == (8, False), "dropping waits until several can go"
    known.add(pending(99, 9))  # an old one writes again
    known.add(pending(50, 10))
    assert known.forgot
    assert sorted(known.states) == [50, 92, 93, 94, 99], "by the offset of their last batch, not by id"
    assert known.as_of == 11


def test_an_append_that_does_not_follow_changes_nothing() -> None:
    known = KnownProducers()
    known.as_of = 5
    known.add(pending(7, 6))
    assert (known.states, known.as_of) == ({}, 5)
