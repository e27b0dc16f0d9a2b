"""`llog up`: the compactor beside its brokers; with `--brokers N` these are processes on the same stores.

    this process: compactor, signals          llog broker --port P       standard input: a pipe from here
                  └─ stop, exit codes ──────► llog broker --port P+1     … that tells how Spark is (`supervision`)

Why it exists: a Python process uses one core; brokers share nothing but the stores, so a machine with cores runs more
of them. What must stay true: one process group; whoever ends takes the stack along, and its exit code is the stack's;
children end with this process also when it is killed, because the pipe that they read ends; a store that is away while
the stack starts is waited for by all of them, and the brokers' `/health` tells of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from llog.cli.services.supervision import say_to
from llog.errors import SettingsError, StoreError
from llog.limits import STORE_PROBE_MS
from llog.settings import Settings

if TYPE_CHECKING:
    from llog.compactor.tasks import Join, TaskRunner

PORT_MAX: Final = 65_535
_log: Final = logging.getLogger("llog.compactor")


def plan_stack(
    settings: Settings,
    *,
    brokers: int,
    host: str | None,
    port: int | None,
    broker_id: str | None,
    as_json: bool = False,
) -> list[list[str]]:
    """The command line of each broker. Raises for stores that processes cannot share, and for too few ports."""
    for name in ("metadata_url", "objects_url", "wal_url"):
        url = getattr(settings, name)
        if urlsplit(url).scheme == "memory":
            raise SettingsError(f"LLOG_{name.upper()}", url, "several broker processes share no memory: use one broker")
    first_port = settings.http_port if port is None else port
    if first_port and first_port + brokers - 1 > PORT_MAX:
        raise SettingsError("LLOG_HTTP_PORT", str(first_port), f"there are no {brokers} ports from there on")
    name = settings.client_identifier if broker_id is None else broker_id
    commands = []
    for number in range(brokers):
        command = [sys.executable, "-m", "llog", "broker", "--supervised", "--broker-id", f"{name}-{number}"]
        command += ["--port", str(first_port + number if first_port else 0)]
        command += ["--json"] if as_json else []
        commands.append(command if host is None else [*command, "--host", host])
    return commands


def plan_exit_code(returncode: int) -> int:
    """As a shell tells it: 128 and the signal, for a process that a signal ended."""
    return 128 - returncode if returncode < 0 else returncode


async def run_stack(
    settings: Settings,
    commands: Sequence[Sequence[str]],
    stop: asyncio.Event,
    at_once: asyncio.Event,
    *,
    on_compactor: Callable[[str], None],
    on_spark: Callable[[str], None] | None = None,
) -> int:
    """Until `stop`, or until one of them ends; the exit code of the one that ended first by itself, else 0."""
    children: list[Process] = []
    spark = {"spark": first_spark_state(settings)}

    def spark_changed(state: str) -> None:
        spark["spark"] = state
        say_to(children, spark)
        if on_spark is not None:
            on_spark(state)

    hurrying = asyncio.ensure_future(_hurry(children, at_once))
    compactor = asyncio.ensure_future(
        compact_patiently(settings, stop, at_once=at_once, on_started=on_compactor, on_spark=spark_changed)
    )
    stopping = asyncio.ensure_future(stop.wait())
    ended: list[asyncio.Task[int]] = []
    try:
        for command in commands:
            child = await asyncio.create_subprocess_exec(*command, stdin=PIPE)
            children.append(child)
            say_to([child], spark)
            ended.append(asyncio.ensure_future(child.wait()))
        await asyncio.wait([*ended, compactor, stopping], return_when=asyncio.FIRST_COMPLETED)
        # A child that is gone before the stop was asked for: even with 0 the stack is no longer what it was.
        gone = [] if stop.is_set() else [task.result() for task in ended if task.done()]
    finally:
        stop.set()
        _tell(children)
        await asyncio.gather(*ended, stopping, return_exceptions=True)
        hurrying.cancel()
        await asyncio.gather(hurrying, return_exceptions=True)
        await compactor
    # One that had not begun when it was told to stop is ended by the signal itself, and that is as good.
    told = [0 if task.result() == -signal.SIGTERM else task.result() for task in ended]
    codes = [plan_exit_code(code) for code in gone or told]
    return max(codes, default=0)


async def compact_patiently(
    settings: Settings,
    stop: asyncio.Event,
    *,
    at_once: asyncio.Event | None = None,
    on_started: Callable[[str], None],
    on_spark: Callable[[str], None] | None = None,
) -> None:
    """The compactor until `stop`. Stores that are away while it starts are waited for, as brokers do; what waiting does
    not help against is raised."""
    started = asyncio.Event()

    def begun(url: str) -> None:
        started.set()
        on_started(url)

    serving = asyncio.ensure_future(_compact_until(settings, stop, at_once, started, begun, on_spark))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if started.is_set() or serving.done():
            await serving
    finally:
        # One that only waits has nothing to end in good order, and a silent store would keep it for long.
        for task in (serving, stopping):
            task.cancel()
        await asyncio.gather(serving, stopping, return_exceptions=True)


def first_spark_state(settings: Settings) -> str:
    """Of a stack that begins."""
    from llog.compactor.tasks import NOT_WANTED, STARTING

    return STARTING if settings.compactor_spark else NOT_WANTED


def joining_spark(settings: Settings) -> Join | None:
    """How the compactor's tasks come to Spark; None where the settings say that they should not."""
    if not settings.compactor_spark:
        return None

    async def join() -> TaskRunner:
        from llog.spark.runner.compaction import join_session

        joined = await join_session(settings)
        try:
            await _until_proven(joined, settings)
        except BaseException:
            await joined.runner.close()
            raise
        return joined

    return join


async def _until_proven(joined: TaskRunner, settings: Settings) -> None:
    """Ready is a Spark that has run a task. Given up meanwhile, the JVM goes first: a job that is being planned cannot
    be interrupted otherwise, and nobody shall wait for it."""
    from llog.pipeline.runtime.probe_task import prove
    from llog.spark.sessions.launch import end_own_jvm

    proving = asyncio.ensure_future(prove(joined.runner, settings.objects_url))
    try:
        await asyncio.shield(proving)
    except asyncio.CancelledError:
        await asyncio.to_thread(end_own_jvm)
        proving.cancel()
        await asyncio.gather(proving, return_exceptions=True)
        raise


async def _compact_until(
    settings: Settings,
    stop: asyncio.Event,
    at_once: asyncio.Event | None,
    started: asyncio.Event,
    begun: Callable[[str], None],
    on_spark: Callable[[str], None] | None,
) -> None:
    from llog.compactor.service import serve

    told, join_spark = "", joining_spark(settings)
    while True:
        try:
            return await serve(
                settings, stop, at_once=at_once, on_started=begun, join_spark=join_spark, on_spark=on_spark
            )
        except StoreError as error:
            if started.is_set() or not error.retriable:
                raise
            if type(error).__name__ != told:
                told = type(error).__name__
                _log.warning("waiting for a store", extra={"llog": {"error_type": told, "error": str(error)}})
        await asyncio.sleep(STORE_PROBE_MS / 1_000)


async def _hurry(children: Sequence[Process], at_once: asyncio.Event) -> None:
    """The second signal, passed on."""
    await at_once.wait()
    _tell(children)


def _tell(children: Sequence[Process]) -> None:
    for child in children:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                child.send_signal(signal.SIGTERM)
