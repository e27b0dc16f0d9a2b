"""The quick review of a scenario, from an empty machine to graphs of its load:

    guardian → stack → Prometheus, Grafana → targets → Prometheus shows every broker → load → look → targets cleared
    → end of all processes

The load starts only when Prometheus has the load test metrics of every broker, so the graphs miss nothing of it. The
review's files are in the run's `data/review/`, which ends with the run: were this process killed, its guardian would
end all processes and remove the targets with the directory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from llog.errors import StackFailed
from llog.loadtest.orchestrate import Outcome, measure
from llog.loadtest.prepare import adopt_run, bring_up, create_run, end_run, prepare
from llog.loadtest.progress import Progress
from llog.loadtest.review import grafana, prometheus
from llog.loadtest.review.engine import Engine, find_engine, variables
from llog.loadtest.review.targets import target_groups, write_targets
from llog.loadtest.stack.guardian import Guardian
from llog.loadtest.stack.interrupts import Interrupts
from llog.loadtest.stack.plan import inherited
from llog.loadtest.stack.record import StackFile
from llog.testing.servers import ServerUnavailable, free_port, is_ok, prometheus_program

READY_S_MAX: Final = 60.0
SHOWN_S_MAX: Final = 60.0
POLL_S: Final = 0.2
REPOSITORY: Final = Path(__file__).parents[4]
"""The dashboard, the alert rules and the compose file are in the checkout, not in the package."""


class ReviewUrls(msgspec.Struct, frozen=True):
    prometheus: str
    grafana: str
    """Empty without Grafana."""
    brokers: tuple[str, ...]
    compactors: tuple[str, ...]


class Review:
    """One review. `stay`: after the load, everything runs on until Ctrl-C or SIGTERM."""

    def __init__(self, stack: StackFile, progress: Progress, *, stay: bool, show: Callable[[str], None]) -> None:
        self._stack, self._progress, self._stay, self._show = stack, progress, stay, show
        self._scenario = prepare(stack)
        self._environment = inherited(os.environ, self._scenario)
        self._folder = stack.run.data / "review"
        self._targets = self._folder / "targets.json"
        self._engine: Engine | None = None
        self._ports: dict[str, int] = {}

    async def run(self) -> Outcome | None:
        """None if a signal came before the load."""
        guardian = Guardian(self._stack, self._environment)
        outcome = None
        try:
            await bring_up(self._stack, self._progress)
            if await self._part(self._start()):
                outcome = await measure(adopt_run(self._stack.run, self._progress), self._progress, keep=True)
                if self._stay and not outcome.interrupted and not outcome.errors:
                    self._show(f"report: {outcome.report}; everything runs on until Ctrl-C")
                    await self._part(asyncio.Event().wait())
        finally:
            self._clear()
            await end_run(self._stack, self._progress, spare=guardian.pid)
            guardian.dismiss()
        return outcome

    async def _part(self, part: Coroutine[Any, Any, object]) -> bool:
        """False if a signal ended it."""
        with Interrupts() as interrupts:
            await interrupts.run(part)
            return not interrupts.seen

    # -- start ---------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._folder.mkdir()
        self._ports = {
            name: preferred_port(port) for name, port in (("prometheus", prometheus.PORT), ("grafana", grafana.PORT))
        }
        prometheus_url = f"http://127.0.0.1:{self._ports['prometheus']}"
        write_targets(self._targets, [])
        await self._start_prometheus(prometheus_url)
        grafana_url = await self._start_grafana(prometheus_url)
        record = self._stack.record
        urls = ReviewUrls(
            prometheus_url,
            grafana_url,
            tuple(broker.http_url for broker in record.brokers),
            tuple(compactor.http_url for compactor in record.compactors),
        )
        write_targets(self._targets, target_groups(record))
        await self._until_shown(prometheus_url)
        self._show_urls(urls)

    async def _start_prometheus(self, url: str) -> None:
        config, data = self._folder / "prometheus.yml", self._folder / "prometheus"
        data.mkdir()
        rules = REPOSITORY / "grafana" / "alerts.yml"
        copied = self._folder / rules.name if rules.is_file() else None
        if copied is not None:
            copied.write_bytes(rules.read_bytes())
        config.write_bytes(msgspec.json.format(msgspec.json.encode(prometheus.configuration(self._targets, copied))))
        try:
            command = prometheus.command(prometheus_program(), config, data, self._ports["prometheus"])
        except ServerUnavailable as reason:
            engine = self._find_engine()
            if engine is None:
                raise StackFailed(prometheus.NAME, f"{reason}; no container engine answers either") from None
            command = engine.up(prometheus.NAME)
        self._progress.step("prometheus", f"starting Prometheus at {url}")
        self._launch(prometheus.NAME, command)
        await self._until(prometheus.NAME, lambda: is_ok(f"{url}/-/ready"), READY_S_MAX)

    async def _start_grafana(self, prometheus_url: str) -> str:
        """Its URL; empty where it cannot be had."""
        dashboard = REPOSITORY / "grafana" / "leaderless-log-observability.json"
        program = grafana.program()
        engine = None if program is not None else self._find_engine()
        if (program is None and engine is None) or not dashboard.is_file():
            self._show("Grafana is not installed and no container engine answers; Prometheus has its own graphs")
            return ""
        folder, data = self._folder / "grafana", self._folder / "grafana-data"
        data.mkdir()
        grafana.write_provisioning(folder, dashboard, prometheus_url)
        port = self._ports["grafana"]
        url = f"http://127.0.0.1:{port}"
        self._progress.step("grafana", f"starting Grafana at {url}")
        if program is not None:
            self._launch(grafana.NAME, grafana.command(program), grafana.settings(folder, data, port))
        elif engine is not None:
            self._launch(grafana.NAME, engine.up(grafana.NAME))
        await self._until(grafana.NAME, lambda: is_ok(f"{url}/api/health"), READY_S_MAX)
        return f"{url}/d/{grafana.DASHBOARD_UID}"

    def _find_engine(self) -> Engine | None:
        if self._engine is None:
            self._engine = find_engine(REPOSITORY / "deploy" / "review.yaml", self._stack.run.run_id)
        return self._engine

    def _launch(self, name: str, command: Sequence[str], more: dict[str, str] | None = None) -> None:
        environment = self._environment | variables(self._folder, self._ports) | (more or {})
        self._stack.launch(name, "other", command, environment)

    # -- waits ---------------------------------------------------------------------------------------------------------

    async def _until(self, name: str, ready: Callable[[], bool], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not await asyncio.to_thread(ready):
            if loop.time() > deadline:
                raise StackFailed(name, f"it was not ready within {seconds:.0f} s; {self._stack.log_tail(name)}")
            await asyncio.sleep(POLL_S)

    async def _until_shown(self, url: str) -> None:
        """Until Prometheus has the load test metrics of every broker and compactor."""
        record = self._stack.record
        wanted = {target for group in target_groups(record) for target in group.targets}
        self._progress.step("metrics", f"waiting until Prometheus shows {len(wanted)} processes")
        await self._until(
            prometheus.NAME, lambda: wanted <= prometheus.shown_instances(url, record.run_id), SHOWN_S_MAX
        )

    # -- end -----------------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        if self._folder.is_dir():
            write_targets(self._targets, [])
        if self._engine is not None:
            self._engine.end(self._environment | variables(self._folder, self._ports))

    def _show_urls(self, urls: ReviewUrls) -> None:
        self._show(f"Prometheus  {urls.prometheus}")
        if urls.grafana:
            self._show(f"Grafana     {urls.grafana}")
        for url in (*urls.brokers, *urls.compactors):
            self._show(f"metrics     {url}/metrics")


def preferred_port(port: int) -> int:
    """This port of the loopback address, or another one where it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return free_port()
    return port


async def review(
    source: str, changes: Sequence[str], results: Path, progress: Progress, *, stay: bool, show: Callable[[str], None]
) -> Outcome | None:
    """The outcome of the load; None if a signal came before it."""
    return await Review(create_run(source, changes, results, progress), progress, stay=stay, show=show).run()
