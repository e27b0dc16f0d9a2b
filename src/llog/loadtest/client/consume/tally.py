"""What the consumers of a process have received since the last sample, and over the whole run."""

from __future__ import annotations

from collections import Counter

from llog.loadtest.client.consume import scan_kernels as kernels
from llog.loadtest.client.consume.scan import Scanner
from llog.loadtest.client.histograms import Latencies
from llog.loadtest.client.ledger import ReceivedLedger
from llog.loadtest.client.schedule import Now


class Tally:
    def __init__(self, scanner: Scanner, now_s: Now) -> None:
        self.scanner, self.ledger = scanner, ReceivedLedger()
        self.requests = 0
        self.retried: Counter[str] = Counter()
        """Reads that were repeated, by the reason."""
        self.records = 0
        self.latency = Latencies()
        """Of one request, its wait for records included."""
        self.end_to_end = Latencies()
        self.now_s = now_s
        """Unix time."""

    @property
    def payload_bytes(self) -> int:
        return int(self.scanner.sums[kernels.PAYLOAD_BYTES])

    def answered(self, begun_s: float) -> None:
        """A request that was sent at `begun_s` has its answer now, and the scanner has seen it."""
        received_s = self.now_s()
        self.requests += 1
        self.latency.add(round((received_s - begun_s) * 1e6))
        self.records += self.scanner.take(self.ledger, self.end_to_end, round(received_s * 1e6))
