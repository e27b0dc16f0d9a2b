"""The generator processes as the driver sees them: started, given orders, watched, ended."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, Final, Literal

import msgspec

from llog.errors import LoadTestError
from llog.loadtest.client.orders import GeneratorPlan, Order, Report
from llog.loadtest.run_directory import RUN_DIR_VARIABLE, RunDirectory
from llog.loadtest.stack.processes import mark_of

START_S_MAX: Final = 60.0
"""Until a process is connected."""
CUT_S_MAX: Final = 10.0
END_S_MAX: Final = 30.0
"""For a process to write its results after its last order has ended."""
KILL_WAIT_S_MAX: Final = 5.0
LOG_TAIL_BYTES_MAX: Final = 2_000
LINE_BYTES_MAX: Final = 1 << 20

Kind = Literal["producer", "consumer"]
OnProcess = Callable[[str, Kind, int, Sequence[str]], object]
"""Gets name, kind, process id and command of a process that was just started."""
MODULES: Final[dict[Kind, str]] = {
    "producer": "llog.loadtest.client.producer",
    "consumer": "llog.loadtest.client.consume.process",
}


class GeneratorProcess:
    def __init__(self, run: RunDirectory, plan: GeneratorPlan, process: asyncio.subprocess.Process) -> None:
        self.name, self.kind = plan.process, plan.kind
        self.latest = Report("progress")
        self._run, self._process = run, process
        self._ready, self._cut = asyncio.Event(), asyncio.Event()
        self._reason = ""
        self.ended = asyncio.create_task(self._listen())
        """Done when the process has ended."""

    @classmethod
    async def start(cls, run: RunDirectory, plan: GeneratorPlan, on_process: OnProcess) -> GeneratorProcess:
        run.write(f"plan-{plan.process}.json", plan)
        command = [sys.executable, "-m", MODULES[plan.kind], str(run.path), plan.process]
        environment = {**os.environ, RUN_DIR_VARIABLE: mark_of(run.path)}
        with _log_file(run, plan.process) as log:
            # A session of its own: an interrupt from the terminal goes to the driver alone.
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        on_process(plan.process, plan.kind, process.pid, command)
        return cls(run, plan, process)

    async def wait_ready(self) -> None:
        await self._wait(self._ready, START_S_MAX, "did not connect")

    async def order(self, order: Order) -> None:
        """A process that has ended is noticed elsewhere."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self._process.stdin.drain()

    async def cut(self) -> None:
        """Have it write what it has measured so far."""
        self._cut.clear()
        await self.order(Order("cut"))
        await self._wait(self._cut, CUT_S_MAX, "did not report")

    async def wait_ended(self, seconds: float) -> None:
        """Raises `LoadTestError` when it does not end, or ends without success."""
        await asyncio.wait([self.ended], timeout=seconds)
        if not self.ended.done():
            raise LoadTestError(f"{self.name} did not end within {seconds:.0f} s; {self._log_tail()}")
        self.check_success()

    def check_running(self) -> None:
        if self.ended.done():
            raise self._failure()

    def check_success(self) -> None:
        if self._process.returncode != 0 or self._reason:
            raise self._failure()

    async def end(self) -> None:
        """At once, whatever it does."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait([self.ended], timeout=KILL_WAIT_S_MAX)
        if not self.ended.done():
            self._process.kill()
            await self.ended

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        decoder = msgspec.json.Decoder(Report)
        async for line in self._process.stdout:
            try:
                report = decoder.decode(line)
            except msgspec.DecodeError:
                self._reason = f"it wrote {line[:100]!r}"
                continue
            match report.event:
                case "ready":
                    self._ready.set()
                case "cut":
                    self.latest = report
                    self._cut.set()
                case "progress":
                    self.latest = report
                case "failed":
                    self._reason = report.reason
        await self._process.wait()

    async def _wait(self, event: asyncio.Event, seconds: float, failure: str) -> None:
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([waiting, self.ended], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not event.is_set():
                self.check_running()
                raise LoadTestError(f"{self.name} {failure} within {seconds:.0f} s; {self._log_tail()}")
        finally:
            waiting.cancel()

    def _failure(self) -> LoadTestError:
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return LoadTestError(f"{self.name} {how} before the load was over; {self._reason or self._log_tail()}")

    def _log_tail(self) -> str:
        try:
            text = (self._run.logs / f"{self.name}.log").read_bytes()[-LOG_TAIL_BYTES_MAX:]
        except OSError as error:
            return f"its log cannot be read: {error}"
        return f"its log ends with: {text.decode(errors='replace').strip()}"


def _log_file(run: RunDirectory, name: str) -> BinaryIO:
    return open(run.logs / f"{name}.log", "ab")
