"""`llog broker`, `llog compactor`: the processes that stay (`llog up` is both).

An address that must not be listened on is refused before a store is opened, so that a mistake founds no cluster. The
first SIGTERM or SIGINT stops in good order (accept no more, answer, flush, release claims), a second one at once. A JVM
that was launched for Spark ends with the process, whether it was ready or not.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llog.cli.services.banner import say_broker, say_compactor, say_spark

if TYPE_CHECKING:
    from llog.broker.broker import Broker
    from llog.cli.services.supervision import OnWords

RoleName = Literal["both", "write", "read"]
Host = Annotated[str | None, typer.Option("--host", help="Instead of LLOG_HTTP_BIND_HOST.")]
Port = Annotated[int | None, typer.Option("--port", help="Instead of LLOG_HTTP_PORT; 0 takes a free one.")]
BrokerId = Annotated[str | None, typer.Option("--broker-id", help="Instead of LLOG_CLIENT_IDENTIFIER.")]
RoleOption = Annotated[RoleName, typer.Option("--role", help="What it serves: both, write or read.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document per line: what listens where.")]
Supervised = Annotated[
    bool,
    typer.Option("--supervised", hidden=True, help="Stop when standard input ends; Ctrl-C is the supervisor's."),
]


def broker(
    host: Host = None,
    port: Port = None,
    broker_id: BrokerId = None,
    role: RoleOption = "both",
    as_json: Json = False,
    supervised: Supervised = False,
) -> None:
    """Run a broker: HTTP produce and consume."""
    from llog.http.serve import serve
    from llog.settings import Settings
    from llog.settings.exposure import check_exposure

    settings = Settings.from_env(client_identifier=broker_id, http_bind_host=host, http_port=port)
    check_exposure(settings, host=host)
    beside: dict[str, object] = {}

    def started(url: str, opened: Broker) -> None:
        opened.beside = beside
        say_broker(url, opened, as_json)

    run_until_stopped(
        lambda stop, at_once: serve(
            settings,
            stop,
            at_once=at_once,
            role=role,
            broker_id=broker_id,
            host=host,
            port=port,
            patient=True,
            on_started=started,
        ),
        supervised_by=beside.update if supervised else None,
    )


def compactor(as_json: Json = False) -> None:
    """Run the compactor service: compaction, by key too, merge, retention, vacuum, over all logs."""
    from llog.cli.services.stack import compact_patiently, first_spark_state
    from llog.settings import Settings
    from llog.settings.exposure import check_exposure

    settings = Settings.from_env()
    check_exposure(settings, host=settings.compactor_bind_host, variable="LLOG_COMPACTOR_BIND_HOST")

    def started(url: str) -> None:
        say_compactor(url, as_json)
        say_spark(first_spark_state(settings), as_json)

    run_until_stopped(
        lambda stop, at_once: compact_patiently(
            settings,
            stop,
            at_once=at_once,
            on_started=started,
            on_spark=lambda state: say_spark(state, as_json),
        )
    )


def run_until_stopped(
    serve: Callable[[asyncio.Event, asyncio.Event], Awaitable[None]], *, supervised_by: OnWords | None = None
) -> None:
    """With `supervised_by`, standard input is a supervisor's: its words are told there, and its end is the stop."""
    import uvloop

    from llog.broker.process_memory import keep_freed_memory
    from llog.cli.services.supervision import read_words
    from llog.telemetry.process_logs import configure_logging

    keep_freed_memory()
    configure_logging()

    async def run() -> None:
        stop, at_once, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

        def told() -> None:
            if stop.is_set() and not at_once.is_set():
                at_once.set()
                loop.run_in_executor(None, _end_jvm)  # what runs there ends with it
            stop.set()

        loop.add_signal_handler(signal.SIGTERM, told)
        if supervised_by is not None:
            # A terminal sends Ctrl-C to the whole group, and the supervisor passes it on: once is meant.
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            read_words(loop, supervised_by, on_end=stop.set)
        else:
            loop.add_signal_handler(signal.SIGINT, told)
        await serve(stop, at_once)

    try:
        uvloop.run(run())
    finally:
        _end_jvm()


def _end_jvm() -> None:
    if "pyspark" in sys.modules:
        from llog.spark.sessions.launch import end_own_jvm

        end_own_jvm()
