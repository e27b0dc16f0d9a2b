"""`client-30s.jsonl` lines of a consumer process: what was received since the last line, and how the process did."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from llog.loadtest.artifacts import ClientSample, GeneratorHealth, Phase
from llog.loadtest.client.consume.tally import Tally
from llog.loadtest.client.usage import process_usage

TICK_S: Final = 0.05


class Lag:
    """How late the event loop wakes."""

    def __init__(self) -> None:
        self._worst_s = 0.0

    async def watch(self) -> None:
        while True:
            begun_s = time.monotonic()
            await asyncio.sleep(TICK_S)
            self._worst_s = max(self._worst_s, time.monotonic() - begun_s - TICK_S)

    def take_ms(self) -> float:
        """The worst since the last call."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s * 1_000


class Sampler:
    def __init__(self, process: str, tally: Tally, lag: Lag) -> None:
        self._process, self._tally, self._lag = process, tally, lag
        self._begin_s = tally.now_s()
        self._usage = process_usage()
        self._requests = self._records = self._payload_bytes = 0

    def take(self, phase: Phase) -> ClientSample:
        tally, end_s, usage = self._tally, self._tally.now_s(), process_usage()
        used, interval_s = usage.since(self._usage), end_s - self._begin_s
        requests = tally.requests - self._requests
        sample = ClientSample(
            process=self._process,
            kind="consumer",
            phase=phase,
            begin_s=self._begin_s,
            end_s=end_s,
            due_requests=requests,
            requests=requests,
            retried=dict(tally.retried),
            records=tally.records - self._records,
            payload_bytes=tally.payload_bytes - self._payload_bytes,
            latency=tally.latency.take(),
            end_to_end=tally.end_to_end.take(),
            generator=GeneratorHealth(used.cpu_s, interval_s, self._lag.take_ms(), waited_s=used.waited_s),
        )
        tally.retried.clear()
        self._begin_s, self._usage = end_s, usage
        self._requests, self._records, self._payload_bytes = tally.requests, tally.records, tally.payload_bytes
        return sample
