"""The stack of `llog up`: the compactor beside its brokers. With `--brokers` or LLOG_WORKERS, each broker is a process.

    this process: compactor, signals          llog broker --port P       standard input: a pipe from this process
                  └─ stop, exit codes ──────► llog broker --port P+1     … that carries the state of Spark as JSON lines

A Python process uses one core, and brokers share nothing but the stores, so several processes use several cores. All
are in one process group. A broker that ends by itself is started again (`cli/supervisor.py`); when the compactor fails,
the stack ends. When this process is killed, the pipes end, and so do the brokers. If a store is unreachable at the
start, every process waits for it (see `/health`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from llog.cli.supervisor import MESSAGE_BYTES_MAX, SupervisedBroker, keep_running
from llog.errors import StoreError
from llog.limits import STORE_PROBE_MS
from llog.settings import Settings

if TYPE_CHECKING:
    from llog.compactor.backends import Backend, JoinSpark

OnMessage = Callable[[Mapping[str, object]], None]
_log: Final = logging.getLogger("llog.compactor")


async def run_stack(
    settings: Settings,
    commands: Sequence[Sequence[str]],
    stop: asyncio.Event,
    at_once: asyncio.Event,
    *,
    on_compactor: Callable[[str], None],
    on_spark: Callable[[str], None] | None = None,
) -> int:
    """Run until `stop` is set, the compactor ends, or no broker is left to run; the exit code of the stack."""
    spark: dict[str, object] = {"spark": first_spark_state(settings)}
    brokers = [SupervisedBroker(_name_of(command), command, lambda: spark) for command in commands]

    def spark_changed(state: str) -> None:
        spark["spark"] = state
        for broker in brokers:
            broker.send(spark)
        if on_spark is not None:
            on_spark(state)

    compactor = asyncio.ensure_future(
        compact_patiently(settings, stop, at_once=at_once, on_started=on_compactor, on_spark=spark_changed)
    )
    try:
        return await _run_brokers(brokers, stop, at_once, [compactor])
    finally:
        await compactor


async def run_workers(commands: Sequence[Sequence[str]], stop: asyncio.Event, at_once: asyncio.Event) -> int:
    """Run brokers alone until `stop` is set or none is left to run; the exit code."""
    brokers = [SupervisedBroker(_name_of(command), command, dict) for command in commands]
    return await _run_brokers(brokers, stop, at_once, [])


async def _run_brokers(
    brokers: Sequence[SupervisedBroker],
    stop: asyncio.Event,
    at_once: asyncio.Event,
    until: Sequence[asyncio.Future[None]],
) -> int:
    hurrying = asyncio.ensure_future(_pass_on_second_signal(brokers, at_once))
    try:
        return await keep_running(brokers, stop, until)
    finally:
        hurrying.cancel()
        await asyncio.gather(hurrying, return_exceptions=True)


def _name_of(command: Sequence[str]) -> str:
    return command[command.index("--broker-id") + 1] if "--broker-id" in command else command[-1]


async def _pass_on_second_signal(brokers: Sequence[SupervisedBroker], at_once: asyncio.Event) -> None:
    await at_once.wait()
    for broker in brokers:
        broker.terminate()


# -- messages from the supervisor ------------------------------------------------------------------------------------


def read_messages(
    loop: asyncio.AbstractEventLoop,
    on_message: OnMessage,
    *,
    on_end: Callable[[], None],
    descriptor: int | None = None,
) -> None:
    """Pass on every message from standard input, and its end, which means that the supervisor is gone. Lines that are
    not JSON objects, or too long, are skipped."""
    source = sys.stdin.fileno() if descriptor is None else descriptor
    held = bytearray()

    def readable() -> None:
        data = os.read(source, MESSAGE_BYTES_MAX)
        if not data:
            loop.remove_reader(source)
            on_end()
            return
        held.extend(data)
        *lines, rest = bytes(held).split(b"\n")
        held[:] = rest if len(rest) <= MESSAGE_BYTES_MAX else b""
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):
                on_message(msgspec.json.decode(line, type=dict[str, object]))

    loop.add_reader(source, readable)


# -- the compactor and its Spark -------------------------------------------------------------------------------------


async def compact_patiently(
    settings: Settings,
    stop: asyncio.Event,
    *,
    at_once: asyncio.Event | None = None,
    on_started: Callable[[str], None],
    on_spark: Callable[[str], None] | None = None,
) -> None:
    """Run the compactor until `stop`. It waits for stores that are unreachable at the start, as brokers do; errors that
    waiting does not cure are raised."""
    started = asyncio.Event()

    def note_start(url: str) -> None:
        started.set()
        on_started(url)

    serving = asyncio.ensure_future(_compact_until(settings, stop, at_once, started, note_start, on_spark))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if started.is_set() or serving.done():
            await serving
    finally:
        # A compactor that has not started has nothing to end in order, and a silent store would hold it for long.
        for task in (serving, stopping):
            task.cancel()
        await asyncio.gather(serving, stopping, return_exceptions=True)


async def _compact_until(
    settings: Settings,
    stop: asyncio.Event,
    at_once: asyncio.Event | None,
    started: asyncio.Event,
    note_start: Callable[[str], None],
    on_spark: Callable[[str], None] | None,
) -> None:
    from llog.compactor.service import serve

    logged, join_spark = "", joining_spark(settings)
    while True:
        try:
            return await serve(
                settings, stop, at_once=at_once, on_started=note_start, join_spark=join_spark, on_spark=on_spark
            )
        except StoreError as error:
            if started.is_set() or not error.retriable:
                raise
            if type(error).__name__ != logged:
                logged = type(error).__name__
                _log.warning("waiting for a store", extra={"llog": {"error_type": logged, "error": str(error)}})
        await asyncio.sleep(STORE_PROBE_MS / 1_000)


class SparkState:
    """The latest state of the stack's Spark, for the terminal and for health pages."""

    def __init__(self, settings: Settings, on_show: Callable[[str], None]) -> None:
        self._on_show = on_show
        self.health_page: dict[str, object] = {"spark": first_spark_state(settings)}

    def show(self) -> None:
        self._on_show(str(self.health_page["spark"]))

    def change(self, state: str) -> None:
        self.health_page["spark"] = state
        self.show()


def first_spark_state(settings: Settings) -> str:
    from llog.compactor.backends import NOT_WANTED, STARTING

    return STARTING if settings.compactor_spark else NOT_WANTED


def joining_spark(settings: Settings) -> JoinSpark | None:
    """How the compactor joins Spark; None when the settings say that it must not."""
    if not settings.compactor_spark:
        return None

    async def join() -> Backend:
        from llog.spark.runner.compaction import join_session

        joined = await join_session(settings)
        try:
            await _until_proven(joined, settings)
        except BaseException:
            await joined.runner.close()
            raise
        return joined

    return join


async def _until_proven(joined: Backend, settings: Settings) -> None:
    """Spark is ready when it has run a task. On cancellation the JVM is ended first: a job that is being planned cannot
    be interrupted in any other way."""
    from llog.pipeline.runtime.tasks import prove
    from llog.spark.sessions.launch import end_own_jvm

    proving = asyncio.ensure_future(prove(joined.runner, settings.objects_url))
    try:
        await asyncio.shield(proving)
    except asyncio.CancelledError:
        await asyncio.to_thread(end_own_jvm)
        proving.cancel()
        await asyncio.gather(proving, return_exceptions=True)
        raise
