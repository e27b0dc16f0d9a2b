"""The load of a run: starts the generator processes, leads them through the phases, and merges their results.

    start → ready → begin together → warm-up → (search) → measured → producers drain → consumers read to the end → merge

All orders with a time are sent ahead of it, so that processes change phases together. A process that ends early ends
the load with a `LoadTestError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from llog.errors import LoadTestError
from llog.loadtest.artifacts import ClientSummary, Phase, SearchStep
from llog.loadtest.client.children import END_S_MAX, GeneratorProcess, Kind, OnProcess
from llog.loadtest.client.ledger import ProducedLedger, ReceivedLedger, compare
from llog.loadtest.client.merge import Finished, latency_of, summarise
from llog.loadtest.client.orders import ConsumerResult, GeneratorPlan, Order, ProducerResult
from llog.loadtest.client.schedule import Clock
from llog.loadtest.client.search import judge, next_rate, sustained_mb_per_s
from llog.loadtest.run_directory import RunDirectory

AHEAD_S: Final = 0.5
"""How long before its time an order is sent."""
WATCH_S: Final = 1.0
"""Between two lines of progress."""
SETTLE_SHARE: Final = 0.25
"""Of a step of the search that is not measured: requests of the rate before are still under way."""

Value = TypeVar("Value")


async def run_load(
    run: RunDirectory,
    *,
    on_phase: Callable[[Phase], None],
    on_process: OnProcess,
    on_progress: Callable[[str], None],
    restart_brokers: Callable[[], Awaitable[None]],
) -> ClientSummary:
    """Writes `client-summary.json`. `restart_brokers` runs before consumers that begin after the producers, if the
    scenario wants it. Raises `LoadTestError`; however it ends, no generator process stays."""
    drive = _Drive(run, on_phase, on_process, on_progress)
    try:
        summary = await drive.run(restart_brokers)
    finally:
        await drive.end()
    run.write("client-summary.json", summary)
    return summary


class _Drive:
    def __init__(
        self,
        run: RunDirectory,
        on_phase: Callable[[Phase], None],
        on_process: OnProcess,
        on_progress: Callable[[str], None],
    ) -> None:
        self._run, self._scenario = run, run.config().scenario
        self._on_phase, self._on_process, self._on_progress = on_phase, on_process, on_progress
        self._offset_s = Clock.offset_now_s()
        self._now_s = Clock(self._offset_s).now_s
        self._processes: list[GeneratorProcess] = []
        self._offered_mb_per_s = self._scenario.load.target_mb_per_s or 0.0
        self._steps: list[SearchStep] = []
        self._seen: tuple[float, int, int] = (0.0, 0, 0)

    async def run(self, restart_brokers: Callable[[], Awaitable[None]]) -> ClientSummary:
        scenario, consumers = self._scenario, self._scenario.consumers
        reads_later = consumers.begin == "after_producers" and scenario.produces
        if scenario.produces:
            await self._start("producer", scenario.producers.processes)
        if consumers.clients and not reads_later:
            await self._start("consumer", min(consumers.processes, consumers.clients))
        if not self._processes and not reads_later:
            raise LoadTestError("the scenario has neither producers nor consumers")
        measured_s = await self._through_phases()
        drain_at_s = self._now_s()
        if consumers.clients and reads_later:
            if consumers.restart_brokers:
                await restart_brokers()
            await self._start("consumer", min(consumers.processes, consumers.clients))
            at_s = self._now_s() + AHEAD_S
            await self._order("consumer", Order("begin", at_s), Order("phase", at_s, "measured"))
            drain_at_s = at_s + AHEAD_S  # a consumer that drains before it has begun reads nothing
        await self._drain_consumers(drain_at_s)
        return self._summary(measured_s)

    async def end(self) -> None:
        await asyncio.gather(*(process.end() for process in self._processes))

    # -- phases --

    async def _through_phases(self) -> float:
        """Until the producers have ended; the length of the measured phase."""
        load = self._scenario.load
        begin_s = self._now_s() + AHEAD_S
        self._on_phase("warm_up")
        await self._order(None, Order("begin", begin_s))
        measured_at_s = begin_s + load.warm_up_s
        if load.search is not None:
            await self._until(measured_at_s)
            await self._search()
            measured_at_s = self._now_s() + AHEAD_S
            await self._order("producer", Order("rate", measured_at_s, mb_per_s=self._offered_mb_per_s))
        end_s = measured_at_s + load.duration_s
        answers_until_s = end_s + self._scenario.producers.timeout_s
        await self._order(None, Order("phase", measured_at_s, "measured"))
        await self._until(measured_at_s)
        self._on_phase("measured")
        await self._until(end_s - AHEAD_S)
        await self._order("producer", Order("drain", end_s, until_s=answers_until_s))
        await self._order("consumer", Order("phase", end_s, "after"))
        await self._until(end_s)
        self._on_phase("after")
        await self._wait_ended("producer", answers_until_s)
        return load.duration_s

    async def _search(self) -> None:
        search = self._scenario.load.search
        assert search is not None
        while (rate := next_rate(search, self._steps)) is not None:
            at_s = self._now_s() + AHEAD_S
            await self._order("producer", Order("rate", at_s, mb_per_s=rate))
            await self._until(at_s + SETTLE_SHARE * search.step_s)
            begin_s = self._now_s()
            await self._cut()
            await self._until(at_s + search.step_s)
            await self._cut()
            samples = [sample for sample in self._run.client_samples() if sample.begin_s >= begin_s]
            produced = [sample for sample in samples if sample.kind == "producer"]
            seconds = sum(sample.generator.interval_s for sample in produced) / len(self._of("producer"))
            reached = sum(sample.payload_bytes for sample in produced) / 1e6 / seconds
            step = judge(search, rate, reached, latency_of(produced).p99)
            self._steps.append(step)
            outcome = "sustained" if step.sustained else step.reason
            self._on_progress(f"search: {rate:.3g} MB/s, p99 {step.produce_p99_ms:.0f} ms: {outcome}")
        self._offered_mb_per_s = sustained_mb_per_s(self._steps)
        if not self._offered_mb_per_s:
            raise LoadTestError(f"no rate was sustained, not even {self._steps[-1].offered_mb_per_s:.3g} MB/s")

    async def _drain_consumers(self, at_s: float) -> None:
        if not self._of("consumer"):
            return
        until_s = at_s + self._scenario.consumers.drain_s
        await self._order("consumer", Order("drain", at_s, until_s=until_s))
        await self._wait_ended("consumer", until_s)

    # -- processes --

    def _of(self, kind: Kind | None) -> list[GeneratorProcess]:
        return [process for process in self._processes if kind in (None, process.kind)]

    async def _start(self, kind: Kind, count: int) -> None:
        search = self._scenario.load.search
        rate = min(search.start_mb_per_s, search.highest_mb_per_s) if search else self._offered_mb_per_s
        for number in range(count):
            plan = GeneratorPlan(f"{kind}-{number}", kind, number, count, self._offset_s, rate)
            self._processes.append(await GeneratorProcess.start(self._run, plan, self._on_process))
        await asyncio.gather(*(process.wait_ready() for process in self._of(kind)))

    async def _order(self, kind: Kind | None, *orders: Order) -> None:
        for order in orders:
            await asyncio.gather(*(process.order(order) for process in self._of(kind) if not process.ended.done()))

    async def _cut(self) -> None:
        await asyncio.gather(*(process.cut() for process in self._of("producer")))

    async def _until(self, at_s: float) -> None:
        """Wait; raises `LoadTestError` as soon as a process ends."""
        while (left_s := at_s - self._now_s()) > 0:
            await asyncio.wait(
                [process.ended for process in self._processes],
                timeout=min(left_s, WATCH_S),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for process in self._processes:
                process.check_running()
            self._show_progress(f"{left_s:.0f} s left")

    async def _wait_ended(self, kind: Kind, until_s: float) -> None:
        """Their last order is done at `until_s` at the latest."""
        waiting = self._of(kind)
        while any(not process.ended.done() for process in waiting):
            others = [process for process in self._processes if process not in waiting and not process.ended.done()]
            left_s = until_s + END_S_MAX - self._now_s()
            if left_s <= 0:
                break
            await asyncio.wait(
                [process.ended for process in (*waiting, *others) if not process.ended.done()],
                timeout=min(left_s, WATCH_S),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for process in others:
                process.check_running()
            for process in waiting:
                if process.ended.done():
                    process.check_success()
            self._show_progress(f"{max(until_s - self._now_s(), 0):.0f} s left at most")
        for process in waiting:
            await process.wait_ended(0.0)

    def _show_progress(self, rest: str) -> None:
        """At most one line in `WATCH_S`."""
        now_s = self._now_s()
        then_s, produced_then, consumed_then = self._seen
        if now_s - then_s < WATCH_S / 2:
            return
        produced, consumed = (sum(p.latest.payload_bytes for p in self._of(k)) for k in ("producer", "consumer"))
        seconds = now_s - then_s
        self._seen = (now_s, produced, consumed)
        if then_s:
            self._on_progress(
                f"{(produced - produced_then) / 1e6 / seconds:.1f} MB/s in,"
                f" {(consumed - consumed_then) / 1e6 / seconds:.1f} MB/s out, {rest}"
            )

    # -- results --

    def _summary(self, measured_s: float) -> ClientSummary:
        producers, consumers = self._results("producer", ProducerResult), self._results("consumer", ConsumerResult)
        produced, received = ProducedLedger(), ReceivedLedger()
        for process in self._of("producer"):
            produced.merge(ProducedLedger.load(self._run.path / f"acknowledged-{process.name}.bin", self._run.run_id))
        for process in self._of("consumer"):
            received.merge(ReceivedLedger.load(self._run.path / f"received-{process.name}.bin", self._run.run_id))
        topics = [topic.name for topic in self._scenario.topics]
        losses = compare(produced, received, topics) if producers and consumers else {}
        return summarise(
            Finished(
                self._run.run_id,
                self._offered_mb_per_s,
                measured_s,
                list(self._run.client_samples()),
                producers,
                consumers,
                losses,
                tuple(self._steps),
            )
        )

    def _results(self, kind: Kind, of: type[Value]) -> Sequence[Value]:
        results = []
        for process in self._of(kind):
            result = self._run.read(f"result-{process.name}.json", of)
            if result is None:
                raise LoadTestError(f"{process.name} ended without a result")
            results.append(result)
        return results
