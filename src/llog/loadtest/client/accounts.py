"""What became of a producer process's requests: counts and latencies per phase, the ledger, remap events.

Counts belong to the phase in which the answer comes, so that rates are those of the phase; latencies belong to the
phase in which the request was due, so that none is left out. `cut` turns what has gathered since the last one into
lines of `client-30s.jsonl`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np

from llog.loadtest.artifacts import ClientSample, GeneratorHealth, Phase, RemapEvent
from llog.loadtest.client.histograms import Latencies
from llog.loadtest.client.ledger import ProducedLedger, runs
from llog.loadtest.client.schedule import Now, PhaseClock
from llog.loadtest.client.stamp import Longs, Stamps
from llog.loadtest.client.streams import Group
from llog.loadtest.client.usage import Usage, process_usage
from llog.loadtest.client.wire import Request


class _Counts:
    def __init__(self) -> None:
        self.requests = 0.0
        self.records = self.due_requests = 0
        self.failed: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.latency, self.service, self.send_delay = Latencies(), Latencies(), Latencies()

    @property
    def is_empty(self) -> bool:
        return not (self.requests or self.due_requests or self.failed or self.retried or len(self.latency))


class Accounts:
    def __init__(self, process: str, run: Path, record_bytes: int, phases: PhaseClock, now_s: Now) -> None:
        self.ledger = ProducedLedger()
        self.records_sent = 0
        """Each once, however often it was sent."""
        self.records_acknowledged = 0
        self.phases = phases
        self.lag_s_max = 0.0
        self._process, self._run, self._record_bytes, self._now_s = process, run, record_bytes, now_s
        self._counts: dict[Phase, _Counts] = {"warm_up": _Counts(), "measured": _Counts(), "after": _Counts()}
        self._remapped: set[tuple[int, int, int, int]] = set()
        self._late = 0
        self._begin_s = now_s()
        self.measure_usage(process_usage)

    @property
    def payload_bytes_acknowledged(self) -> int:
        return self.records_acknowledged * self._record_bytes

    def measure_usage(self, usage: Callable[[], Usage]) -> None:
        """Of what limits the process: the process itself, or a thread of it."""
        self._usage, self._begin_usage = usage, usage()

    # -- what clients report --

    def sent(self, records: int) -> None:
        self.records_sent += records

    def acknowledged(self, request: Request, producer: int) -> None:
        now_s, plan = self._now_s(), request.stream.plan
        answered = self._counts[self.phases.phase_of(now_s)]
        answered.requests += 1
        answered.records += plan.request_records
        counts = self._counts[self.phases.phase_of(request.due_s)]
        counts.latency.add(round((now_s - request.due_s) * 1e6))
        counts.service.add(round((now_s - request.first_sent_s) * 1e6))
        counts.send_delay.add(round((request.first_sent_s - request.due_s) * 1e6))
        self.records_acknowledged += plan.request_records
        for partition in plan.group.partitions:
            self.ledger.acknowledge((producer, plan.group.topic, partition), request.sequence, plan.batch_records)

    def delivered(self, stamps: Stamps, service_us: Longs, now_s: float, request_records: int) -> None:
        """Records of an engine that makes its own requests; their latencies count one by one."""
        due_us, each = np.unique(stamps.due_us, return_inverse=True)
        phases = [self.phases.phase_of(us / 1e6) for us in due_us.tolist()]
        for phase in set(phases):
            rows = np.array([of == phase for of in phases])[each]
            counts = self._counts[phase]
            counts.latency.add_many(round(now_s * 1e6) - stamps.due_us[rows])
            counts.service.add_many(service_us[rows])
        answered = self._counts[self.phases.phase_of(now_s)]
        answered.requests += len(stamps.sequence) / request_records
        answered.records += len(stamps.sequence)
        self.records_acknowledged += len(stamps.sequence)
        for key, first, count in runs(stamps):
            self.ledger.acknowledge(key, first, count)

    def undelivered(self, stamps: Stamps, reason: str) -> None:
        """Records that such an engine gave up."""
        for due_us in stamps.due_us.tolist():
            self._counts[self.phases.phase_of(due_us / 1e6)].failed[reason] += 1
        for key, first, count in runs(stamps):
            self.ledger.leave_uncertain(key, first, count)

    def delayed(self, due_s: float, now_s: float) -> None:
        """Such an engine takes a request."""
        self._counts[self.phases.phase_of(due_s)].send_delay.add(round((now_s - due_s) * 1e6))

    def failed(self, request: Request, producer: int, reason: str, *, uncertain: bool) -> None:
        plan = request.stream.plan
        self._counts[self.phases.phase_of(request.due_s)].failed[reason] += 1
        if uncertain:
            for partition in plan.group.partitions:
                key = (producer, plan.group.topic, partition)
                self.ledger.leave_uncertain(key, request.sequence, plan.batch_records)

    def retried(self, reason: str) -> None:
        self._counts[self.phases.phase_of(self._now_s())].retried[reason] += 1

    def sent_late(self) -> None:
        self._late += 1

    def remapped(self, group: Group, from_broker: int, failure: int, to_broker: int, reason: str) -> None:
        """`failure` counts the broker's failures: each partition has one event for one of them."""
        fresh = [
            partition
            for partition in group.partitions
            if (group.topic, partition, from_broker, failure) not in self._remapped
        ]
        self._remapped = {key for key in self._remapped if key[2] != from_broker or key[3] == failure}
        self._remapped.update((group.topic, partition, from_broker, failure) for partition in fresh)
        now_s = self._now_s()
        self._append(
            "remap-events.jsonl",
            [
                RemapEvent(now_s, self._process, group.topic_name, partition, "write", from_broker, to_broker, reason)
                for partition in fresh
            ],
        )

    # -- what the process reports --

    def due(self, count: int, phase: Phase) -> None:
        self._counts[phase].due_requests += count

    def cut(self, phase: Phase) -> None:
        """`phase` is the one of the time since the last cut; answers may belong to earlier ones."""
        end_s, usage = self._now_s(), self._usage()
        used = usage.since(self._begin_usage)
        lag_ms = self.lag_s_max * 1_000
        health = GeneratorHealth(used.cpu_s, end_s - self._begin_s, lag_ms, self._late, used.waited_s)
        samples = [
            self._sample(of, counts, end_s, health if of == phase else GeneratorHealth(0.0, 0.0, 0.0))
            for of, counts in self._counts.items()
            if of == phase or not counts.is_empty
        ]
        self._append("client-30s.jsonl", samples)
        self._counts = {of: _Counts() for of in self._counts}
        self._begin_s, self._begin_usage, self.lag_s_max, self._late = end_s, usage, 0.0, 0

    def _sample(self, phase: Phase, counts: _Counts, end_s: float, health: GeneratorHealth) -> ClientSample:
        return ClientSample(
            process=self._process,
            kind="producer",
            phase=phase,
            begin_s=self._begin_s,
            end_s=end_s,
            due_requests=counts.due_requests,
            requests=round(counts.requests),
            failed=dict(counts.failed),
            retried=dict(counts.retried),
            records=counts.records,
            payload_bytes=counts.records * self._record_bytes,
            latency=counts.latency.take(),
            service=counts.service.take(),
            send_delay=counts.send_delay.take(),
            generator=health,
        )

    def _append(self, name: str, lines: Iterable[msgspec.Struct]) -> None:
        """Whole lines: one write, which the kernel appends at once."""
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if data:
            file = os.open(self._run / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, data)
            finally:
                os.close(file)
