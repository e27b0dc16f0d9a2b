"""Java programs of Kafka's packages: tools that end, and services that run until they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from llog.testing.kafka_server import java_command
from tests.clients.kafka.program_driver import SHORT_LIVED
from tests.conformance.running import end_group, run
from tests.conformance.suite import until

TOOL_SECONDS_MAX: Final = 90
STOP_SECONDS_MAX: Final = 30
_LOG4J: Final = """\
appender.console.type=Console
appender.console.name=STDOUT
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=STDOUT
"""


class Java:
    """`java` with the jars of one directory in its class path, and its log at level WARN in the output."""

    def __init__(self, packages: Path, directory: Path, *, classes: Path | None = None) -> None:
        (directory / "log4j2.properties").write_text(_LOG4J)
        self._directory = directory
        self._runs = 0
        options = (*SHORT_LIVED, f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}")
        *command, path = java_command(packages, *options)
        self._command = [*command, path if classes is None else f"{classes}:{path}"]

    def tool(
        self,
        main: str,
        *arguments: str | Path,
        given: str | None = None,
        seconds: float = TOOL_SECONDS_MAX,
        may_fail: bool = False,
    ) -> str:
        """The output of a program that ends by itself."""
        ended = run([*self._command, main, *arguments], limit_seconds=seconds, log=self._next_log(main), given=given)
        name = main.rpartition(".")[2]
        if ended.code is None or (ended.code != 0 and not may_fail):
            raise AssertionError(f"{name}, {ended.why}: {ended.output[-2_000:]}")
        return ended.output

    @contextmanager
    def service(self, main: str, *arguments: str | Path) -> Iterator[Service]:
        """A program that runs while the block does, then gets SIGTERM."""
        log = self._next_log(main)
        with open(log, "wb") as output:
            child = subprocess.Popen(
                [*self._command, main, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ,
            )
        service = Service(main, child, log)
        try:
            yield service
            service.stop()
        finally:
            end_group(child)

    def _next_log(self, main: str) -> Path:
        self._runs += 1
        return self._directory / f"{self._runs:03}-{main.rpartition('.')[2]}.log"


class Service:
    def __init__(self, name: str, child: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self._child, self._log = name.rpartition(".")[2], child, log

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, what: str, ready: Callable[[], bool], seconds: float) -> None:
        def ready_or_ended() -> bool:
            if ready():
                return True
            if self._child.poll() is not None:
                raise AssertionError(f"{self.name} ended before: {what}; {self.output()[-2_000:]}")
            return False

        try:
            until(what, ready_or_ended, seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}; {last_warning(self.output())}") from None

    def stop(self) -> None:
        self._child.send_signal(signal.SIGTERM)
        self._child.wait(STOP_SECONDS_MAX)

    def kill(self) -> None:
        end_group(self._child)


def last_warning(output: str) -> str:
    """The newest line of a log that is an error or a warning."""
    lines = [line for line in output.splitlines() if line.startswith(("ERROR ", "WARN "))]
    errors = [line for line in lines if line.startswith("ERROR ")]
    return (errors or lines or [""])[-1]


def properties(path: Path, lines: Sequence[tuple[str, object]]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in lines))
    return path
