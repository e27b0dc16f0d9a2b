"""Sequences of records: sets of them, and what comparing produced with received ones says."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from llog.errors import LoadTestError
from llog.loadtest.artifacts import Loss
from llog.loadtest.client.ledger import Key, ProducedLedger, ReceivedLedger, compare, total_loss
from llog.loadtest.client.ranges import Ranges
from llog.loadtest.client.stamp import Stamps

KEY: Key = (7, 0, 3)
TOPICS = ["load", "other"]


def produced(*acknowledged: tuple[int, int]) -> ProducedLedger:
    ledger = ProducedLedger()
    for first, end in acknowledged:
        ledger.acknowledge(KEY, first, end - first)
    return ledger


def received(*runs: tuple[int, int], ended: bool = True) -> ReceivedLedger:
    ledger = ReceivedLedger()
    for first, end in runs:
        ledger.receive_run(KEY, first, end - first)
    if ended:
        ledger.end(0, 3)
    return ledger


def test_ranges_agree_with_a_set() -> None:
    random_source = random.Random(3)
    for _ in range(200):
        ranges, members = Ranges(), set[int]()
        for _ in range(20):
            first = random_source.randrange(60)
            numbers = set(range(first, first + random_source.randrange(1, 9)))
            assert ranges.add(first, first + len(numbers)) == len(numbers & members)
            members |= numbers
        assert len(ranges) == len(members)
        assert ranges.last_end == max(members) + 1
        assert {n for a, b in zip(ranges.starts, ranges.ends, strict=True) for n in range(a, b)} == members
        assert all(a < b for a, b in zip(ranges.ends, ranges.starts[1:], strict=False))
        limit = random_source.randrange(70)
        other = Ranges([5, 30], [20, 33])
        wanted = {n for n in members if n < limit}
        assert len(ranges.below(limit)) == len(wanted)
        assert ranges.below(limit).common(other) == len(wanted & {*range(5, 20), *range(30, 33)})


def test_a_run_in_order_is_one_range() -> None:
    ranges = Ranges()
    for first in range(0, 1_000, 10):
        ranges.add(first, first + 10)
    assert (ranges.starts, ranges.ends) == ([0], [1_000])


def test_everything_received_once_is_no_loss() -> None:
    assert compare(produced((0, 100)), received((0, 40), (40, 100)), TOPICS) == {}


def test_an_acknowledged_record_that_no_one_received_is_missing() -> None:
    assert compare(produced((0, 100)), received((0, 50), (51, 100)), TOPICS) == {"load:3": Loss(missing=1)}


def test_a_record_that_arrives_twice_is_a_duplicate() -> None:
    assert compare(produced((0, 100)), received((0, 51), (50, 100)), TOPICS) == {"load:3": Loss(duplicates=1)}


def test_records_that_change_places_are_reordered() -> None:
    assert compare(produced((0, 4)), received((0, 1), (2, 3), (1, 2), (3, 4)), TOPICS) == {"load:3": Loss(reordered=1)}


def test_a_received_record_without_acknowledgement_is_reported() -> None:
    ledger = produced((0, 10))
    ledger.leave_uncertain(KEY, 10, 5)
    assert compare(ledger, received((0, 12)), TOPICS) == {"load:3": Loss(unacknowledged=2)}
    assert ledger.records_uncertain == 5


def test_a_partition_that_was_not_read_to_its_end_misses_only_what_lies_before() -> None:
    assert compare(produced((0, 100)), received((0, 50), (60, 70), ended=False), TOPICS) == {"load:3": Loss(missing=10)}


def test_a_partition_without_any_received_record_misses_all_once_its_end_was_reached() -> None:
    assert compare(produced((0, 5)), received(), TOPICS) == {"load:3": Loss(missing=5)}
    assert compare(produced((0, 5)), received(ended=False), TOPICS) == {}


def test_runs_are_found_in_columns_of_stamps() -> None:
    rows = [(7, 0, 3, 0), (7, 0, 3, 1), (8, 0, 3, 2), (7, 0, 3, 2), (7, 1, 3, 3), (7, 0, 3, 2)]
    producer, topic, partition, sequence = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    ledger = ReceivedLedger()
    ledger.receive(Stamps(producer, topic, partition, sequence, due_us=sequence, position=sequence))
    assert {key: len(ranges) for key, ranges in ledger.received.items()} == {KEY: 3, (8, 0, 3): 1, (7, 1, 3): 1}
    assert ledger.duplicates == {(0, 3): 1}
    assert ledger.records_received == 6


def test_ledgers_of_processes_merge() -> None:
    all_produced, all_received = produced((0, 10)), received((0, 6))
    all_produced.merge(produced((10, 20)))
    all_received.merge(received((5, 20)))
    assert all_produced.records_acknowledged == 20
    assert compare(all_produced, all_received, TOPICS) == {"load:3": Loss(duplicates=1)}
    assert total_loss([Loss(1, 2, 3, 4), Loss(10, 20, 30, 40)]) == Loss(11, 22, 33, 44)


def test_ledgers_survive_their_files(tmp_path: Path) -> None:
    wrote, path = received((0, 5), (7, 9), (3, 4), (6, 7)), tmp_path / "received.bin"
    wrote.save(path, "run")
    read = ReceivedLedger.load(path, "run")
    assert (read.duplicates, read.reordered, read.ended) == ({(0, 3): 1}, {(0, 3): 1}, {(0, 3)})
    assert read.received[KEY].starts == [0, 6]
    made = produced((0, 5))
    made.leave_uncertain(KEY, 5, 1)
    made.save(path, "run")
    again = ProducedLedger.load(path, "run")
    assert (again.records_acknowledged, again.records_uncertain) == (5, 1)


def test_a_ledger_that_is_absent_damaged_or_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "acknowledged.bin"
    with pytest.raises(LoadTestError, match="no ledger"):
        ProducedLedger.load(path, "run")
    produced((0, 5)).save(path, "run")
    with pytest.raises(LoadTestError, match="another run"):
        ProducedLedger.load(path, "next")
    path.write_bytes(b"\x00")
    with pytest.raises(LoadTestError, match="damaged"):
        ProducedLedger.load(path, "run")
