"""What becomes of records whose requests an engine makes by itself, and of events that repeat."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from llog.loadtest.artifacts import ClientSample, Phase, RemapEvent
from llog.loadtest.client.accounts import Accounts
from llog.loadtest.client.histograms import decode
from llog.loadtest.client.schedule import PhaseClock
from llog.loadtest.client.stamp import Stamps
from llog.loadtest.client.streams import Group


class Accounted:
    def __init__(self, run: Path) -> None:
        self.now_s, self._run = 100.0, run
        phases = PhaseClock()
        phases.enter("measured", 110.0)
        self.accounts = Accounts("producer-0", run, 1_000, phases, lambda: self.now_s)

    def samples(self, phase: Phase) -> dict[str, ClientSample]:
        self.accounts.cut(phase)
        lines = (self._run / "client-30s.jsonl").read_bytes().splitlines()
        return {sample.phase: sample for sample in (msgspec.json.decode(line, type=ClientSample) for line in lines)}

    def remaps(self) -> list[RemapEvent]:
        lines = (self._run / "remap-events.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=RemapEvent) for line in lines]


def stamps(first: int, *due_s: float) -> Stamps:
    count = len(due_s)
    zeros = np.zeros(count, np.int64)
    due_us = (np.array(due_s) * 1e6).astype(np.int64)
    return Stamps(zeros, zeros, zeros, np.arange(first, first + count), due_us, zeros)


def test_delivered_records_count_when_they_are_answered_and_their_latency_when_they_were_due(tmp_path: Path) -> None:
    own = Accounted(tmp_path)
    own.now_s = 112.0
    own.accounts.delivered(stamps(0, 109.0, 111.0, 111.5, 111.5), np.full(4, 5_000), own.now_s, 2)
    found = own.samples("measured")
    assert (found["measured"].requests, found["measured"].records, found["measured"].payload_bytes) == (2, 4, 4_000)
    assert (found["warm_up"].requests, found["warm_up"].records) == (0, 0)
    assert decode(found["measured"].latency).get_total_count() == 3
    assert decode(found["warm_up"].latency).get_total_count() == 1
    assert own.accounts.ledger.records_acknowledged == own.accounts.records_acknowledged == 4


def test_undelivered_records_are_failed_and_uncertain(tmp_path: Path) -> None:
    own = Accounted(tmp_path)
    own.accounts.undelivered(stamps(5, 111.0, 111.0), "_MSG_TIMED_OUT")
    assert own.samples("measured")["measured"].failed == {"_MSG_TIMED_OUT": 2}
    assert own.accounts.ledger.records_uncertain == 2


def test_a_partition_has_one_event_for_a_failure_of_a_broker(tmp_path: Path) -> None:
    own = Accounted(tmp_path)
    group, overlapping = Group(0, "load", (1, 2), (0, 1)), Group(0, "load", (2, 3), (0, 1))
    own.accounts.remapped(group, 0, 1, 1, "connection lost")
    own.accounts.remapped(group, 0, 1, 1, "connection lost")
    own.accounts.remapped(overlapping, 0, 1, 1, "connection lost")
    assert [event.partition for event in own.remaps()] == [1, 2, 3]
    own.accounts.remapped(group, 0, 2, 1, "timeout")
    assert [(event.partition, event.reason) for event in own.remaps()[3:]] == [(1, "timeout"), (2, "timeout")]
    assert own.remaps()[0] == RemapEvent(100.0, "producer-0", "load", 1, "write", 0, 1, "connection lost")
