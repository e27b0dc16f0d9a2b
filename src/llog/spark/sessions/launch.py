"""The JVM of this process's session: known from the moment it is launched, so that it can be ended.

pyspark launches the JVM inside the call that creates a session and does not publish its process id until the session is
ready, seconds later. A stop during that time would have to wait for the start. And pyspark keeps its connection to a
JVM that died.

Only a JVM launched here is ended: first by a request (it removes its directories), then by force, together with the
processes it started, which share its process group. A JVM also ends by itself when this process ends, because its
standard input closes.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

# How long a JVM may take to end after a request (it removes its directories) before it is killed.
SPARK_END_MS_MAX: Final = 3_000

GIVEN_UP: Final = "it was given up while it started"


class Launch:
    """One start of a session: `noted` around it, in the thread that starts; `end` from any other, at any time."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up = False

    @property
    def pid(self) -> int | None:
        """Of the JVM, or of the script that becomes it; None before it is launched, and on Spark Connect."""
        return None if self._process is None else self._process.pid

    @property
    def ending(self) -> str:
        """How the JVM ended, for a message; empty while it runs, or when there was none."""
        status = None if self._process is None else self._process.poll()
        if status is None:
            return ""
        return f"its process was ended by signal {-status}" if status < 0 else f"its process ended with {status}"

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the JVM that pyspark launches within this block. Raises if `end` was called before."""
        from pyspark import java_gateway

        popen = java_gateway.Popen  # type: ignore[attr-defined]

        def launch(command: list[str], **given: Any) -> subprocess.Popen[bytes]:
            # With it Python runs in the forked child, after the fork handlers of all libraries; those of gRPC, which a
            # metadata store's client may use, ended it by signal 11 now and then. It is to keep Ctrl-C away from the
            # JVM, which a process group of its own does as well.
            given.pop("preexec_fn", None)
            with self._changing:
                self._check()
                self._process = popen(command, process_group=0, **given)
                return self._process

        self._check()
        java_gateway.Popen = launch  # type: ignore[attr-defined, assignment]
        try:
            yield
        finally:
            java_gateway.Popen = popen  # type: ignore[attr-defined]

    def end(self, timeout_ms: int = SPARK_END_MS_MAX) -> None:
        """No JVM is left when this returns, and none will be launched."""
        with self._changing:
            self._given_up = True
            process = self._process
        if process is None or process.poll() is not None:
            return
        _tell(process, signal.SIGTERM)
        try:
            process.wait(timeout_ms / 1_000)
        except subprocess.TimeoutExpired:
            _tell(process, signal.SIGKILL)
            process.wait()

    def _check(self) -> None:
        if self._given_up:
            raise RuntimeError(GIVEN_UP)


def _tell(process: subprocess.Popen[bytes], what: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it ended just now
        os.killpg(process.pid, what)


# -- the JVM of this process -----------------------------------------------------------------------------------------


def _process_behind_pyspark() -> subprocess.Popen[bytes] | None:
    """The JVM that pyspark launched in this process."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    # Not `gateway.proc`: what a gateway does not know itself it asks the JVM for.
    return None if gateway is None else vars(gateway).get("proc")


def own_jvm_is_gone() -> bool:
    process = _process_behind_pyspark()
    return process is not None and process.poll() is not None


def end_own_jvm(timeout_ms: int = SPARK_END_MS_MAX) -> None:
    """End the JVM that this process launched, if it did; for processes that end."""
    process = _process_behind_pyspark()
    if process is None or process.poll() is not None:
        return
    _hang_up()
    process.terminate()
    try:
        process.wait(timeout_ms / 1_000)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _hang_up() -> None:
    """Silence py4j, which would report the connections that end, although they end on purpose."""
    from pyspark import SparkContext

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    context = SparkContext._active_spark_context
    if context is not None and context._accumulatorServer is not None:
        with suppress(FileNotFoundError):  # a JVM that ends at the same signal removes the socket too
            context._accumulatorServer.shutdown()


def forget_dead_jvm() -> None:
    """Where the JVM of this process is gone, let pyspark start anew; else nothing."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if not own_jvm_is_gone():
        return
    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # or `stop` would ask the JVM, and warn
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


# -- reasons -----------------------------------------------------------------------------------------------------------

_JVM_STACK: Final = "\nJVM stacktrace:"
_PYTHON_STACK: Final = "Traceback (most recent call last):"
_ERROR: Final = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt|NotFound)\b(:|$)")
_NOISE: Final = ("at ", "An error occurred while calling", "...", "org.apache.spark.SparkException: Job aborted")


def reason_in(text: str) -> str:
    """The end of a Python traceback where there is one, else the first line that is no frame of the JVM's stack."""
    # Between the call that failed and the error of the JVM, py4j puts a colon.
    lines = [line.strip().removeprefix(": ") for line in text.partition(_JVM_STACK)[0].splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line) and not line.startswith(("org.", "java.", "py4j."))]
    if _PYTHON_STACK in text and errors:
        return errors[-1]
    useful = [line for line in lines if not line.startswith(_NOISE)]
    return next(iter(useful or lines), "")
