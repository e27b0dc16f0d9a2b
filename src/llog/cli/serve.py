"""`llog up`, `llog broker` and `llog compactor`: the long-running processes.

An address that must not be listened on is refused before a store is opened, so that a mistake creates no cluster. The
first SIGTERM or SIGINT stops in order (accept no more, answer, flush, release claims), a second one at once. A JVM that
was launched for Spark ends with the process.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from llog.cli.banner import kafka_address, print_broker, print_compactor, print_examples, print_spark, print_workers
from llog.cli.output import JsonLines

if TYPE_CHECKING:
    from llog.broker.broker import Broker
    from llog.cli.stack import OnMessage, SparkState
    from llog.settings import Settings

Host = Annotated[str | None, typer.Option("--host", help="Instead of LLOG_HTTP_BIND_HOST.")]
Port = Annotated[int | None, typer.Option("--port", help="Instead of LLOG_HTTP_PORT; 0 takes a free port.")]
KafkaPort = Annotated[
    str | None,
    typer.Option("--kafka-port", help="Instead of LLOG_KAFKA_PORT; 0 takes a free port, '' turns Kafka off."),
]
KafkaAdvertised = Annotated[str | None, typer.Option("--kafka-advertised", help="Instead of LLOG_KAFKA_ADVERTISED.")]
NodeId = Annotated[int | None, typer.Option("--node-id", help="Instead of LLOG_NODE_ID.")]
BrokerId = Annotated[str | None, typer.Option("--broker-id", help="Instead of LLOG_CLIENT_IDENTIFIER.")]


# -- the commands ----------------------------------------------------------------------------------------------------


def broker(
    host: Host = None,
    port: Port = None,
    kafka_port: KafkaPort = None,
    kafka_advertised: KafkaAdvertised = None,
    node_id: NodeId = None,
    broker_id: BrokerId = None,
    role: Annotated[Literal["both", "write", "read"], typer.Option("--role", help="Serve writes, reads or both.")] = (
        "both"
    ),
    as_json: JsonLines = False,
    supervised: Annotated[
        bool,
        typer.Option("--supervised", hidden=True, help="Stop at the end of standard input; ignore Ctrl-C."),
    ] = False,
    shared_port: Annotated[int | None, typer.Option("--shared-port", hidden=True)] = None,
    shared_kafka_port: Annotated[int | None, typer.Option("--shared-kafka-port", hidden=True)] = None,
) -> None:
    """Run a broker: produce and consume over HTTP and with Kafka clients. With LLOG_WORKERS, several processes."""
    from llog.process.serve import serve
    from llog.settings.listening import SharedPorts

    settings = _broker_settings(
        host=host,
        client_identifier=broker_id,
        http_port=port,
        kafka_port=kafka_port,
        kafka_advertised=kafka_advertised,
        node_id=node_id,
    )
    if settings.workers > 1 and not supervised:
        _run_workers(settings, host, role, as_json)
        return
    beside: dict[str, object] = {}

    def started(url: str, opened: Broker) -> None:
        opened.beside = beside
        print_broker(url, opened, as_json)

    run_until_stopped(
        lambda stop, at_once: serve(
            settings,
            stop,
            at_once=at_once,
            role=role,
            broker_id=broker_id,
            host=host,
            port=port,
            shared=None if shared_port is None else SharedPorts(shared_port, shared_kafka_port),
            patient=True,
            on_started=started,
        ),
        log_level=settings.log_level,
        on_message=beside.update if supervised else None,
    )


def compactor(as_json: JsonLines = False) -> None:
    """Run the compactor service: compaction, key compaction, merge, retention and vacuum over all logs."""
    from llog.cli.stack import compact_patiently, first_spark_state
    from llog.settings import Settings

    settings = Settings.from_env()
    _check_compactor_exposure(settings)

    def started(url: str) -> None:
        print_compactor(url, as_json)
        print_spark(first_spark_state(settings), as_json)

    run_until_stopped(
        lambda stop, at_once: compact_patiently(
            settings,
            stop,
            at_once=at_once,
            on_started=started,
            on_spark=lambda state: print_spark(state, as_json),
        ),
        log_level=settings.log_level,
    )


def up(
    host: Host = None,
    port: Port = None,
    kafka_port: KafkaPort = None,
    broker_id: BrokerId = None,
    brokers: Annotated[
        int,
        typer.Option(
            "--brokers",
            min=1,
            max=64,
            help="Run this many broker processes on the same stores, at the ports and the following ones.",
        ),
    ] = 1,
    as_json: JsonLines = False,
) -> None:
    """Run a broker and a compactor in one process; with --brokers, each broker is a process of its own."""
    from llog.cli.stack import SparkState

    settings = _broker_settings(host=host, client_identifier=broker_id, http_port=port, kafka_port=kafka_port)
    _check_compactor_exposure(settings)
    spark = SparkState(settings, lambda state: print_spark(state, as_json))
    if brokers == settings.workers == 1:
        run_until_stopped(
            lambda stop, at_once: _up(settings, stop, at_once, spark, host, port, broker_id, as_json),
            log_level=settings.log_level,
        )
        return
    _up_with_processes(settings, spark, brokers, host, as_json)


def _up_with_processes(settings: Settings, spark: SparkState, brokers: int, host: str | None, as_json: bool) -> None:
    from llog.cli.nodes import HeldPorts, plan_brokers
    from llog.cli.stack import run_stack
    from llog.errors import SettingsError

    def compacting(url: str) -> None:
        print_compactor(url, as_json)
        spark.show()

    def run(commands: list[list[str]]) -> None:
        _run_processes(
            lambda stop, at_once: run_stack(
                settings, commands, stop, at_once, on_compactor=compacting, on_spark=spark.change
            ),
            settings,
        )

    if settings.workers == 1:
        run(plan_brokers(settings, count=brokers, host=host, as_json=as_json))
        return
    if brokers > 1:
        raise SettingsError("LLOG_WORKERS", str(settings.workers), "--brokers starts several processes too; use one")
    with HeldPorts(settings, host) as held:
        commands = plan_brokers(settings, count=settings.workers, host=host, shared=held.ports, as_json=as_json)
        url, kafka = held.url, held.kafka
        print_workers(url, kafka, len(commands), as_json)
        if not as_json:
            print_examples(url, kafka)
        run(commands)


def _run_workers(settings: Settings, host: str | None, role: str, as_json: bool) -> None:
    from llog.cli.nodes import HeldPorts, plan_brokers
    from llog.cli.stack import run_workers

    with HeldPorts(settings, host) as held:
        count, ports = settings.workers, held.ports
        commands = plan_brokers(settings, count=count, host=host, role=role, shared=ports, as_json=as_json)
        print_workers(held.url, held.kafka, len(commands), as_json)
        _run_processes(lambda stop, at_once: run_workers(commands, stop, at_once), settings)


def _run_processes(supervise: Callable[[asyncio.Event, asyncio.Event], Awaitable[int]], settings: Settings) -> None:
    """Run a supervisor; this process ends with its exit code."""
    code = 0

    async def run(stop: asyncio.Event, at_once: asyncio.Event) -> None:
        nonlocal code
        code = await supervise(stop, at_once)

    run_until_stopped(run, log_level=settings.log_level)
    if code:
        raise typer.Exit(code)


async def _up(
    settings: Settings,
    stop: asyncio.Event,
    at_once: asyncio.Event,
    spark: SparkState,
    host: str | None,
    port: int | None,
    broker_id: str | None,
    as_json: bool,
) -> None:
    from llog.cli.stack import compact_patiently
    from llog.process.serve import serve as serve_broker

    def started(url: str, opened: Broker) -> None:
        opened.beside = spark.health_page
        print_broker(url, opened, as_json)
        spark.show()
        if not as_json:
            print_examples(url, kafka_address(opened))

    broker = serve_broker(
        settings, stop, at_once=at_once, broker_id=broker_id, host=host, port=port, patient=True, on_started=started
    )
    compactor = compact_patiently(
        settings,
        stop,
        at_once=at_once,
        on_started=lambda url: print_compactor(url, as_json),
        on_spark=spark.change,
    )
    both = [asyncio.ensure_future(broker), asyncio.ensure_future(compactor)]
    # If one fails, the other stops: half a stack would look like a whole one.
    await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
    stop.set()
    for ended in await asyncio.gather(*both, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def _broker_settings(*, host: str | None, **arguments: Any) -> Settings:
    from llog.settings import Settings
    from llog.settings.listening import check_exposure, check_kafka_address

    settings = Settings.from_env(http_bind_host=host, **arguments)
    check_exposure(settings, host=host)
    if settings.kafka_port is not None:
        check_kafka_address(settings)
    return settings


def _check_compactor_exposure(settings: Settings) -> None:
    from llog.settings.listening import check_exposure

    check_exposure(settings, host=settings.compactor_bind_host, variable="LLOG_COMPACTOR_BIND_HOST")


# -- signals ---------------------------------------------------------------------------------------------------------


def run_until_stopped(
    serve: Callable[[asyncio.Event, asyncio.Event], Awaitable[None]],
    *,
    log_level: str,
    on_message: OnMessage | None = None,
) -> None:
    """Run `serve(stop, at_once)`. With `on_message`, standard input comes from a supervisor: each of its messages is
    passed on, and its end means stop."""
    import uvloop

    from llog.cli.stack import read_messages
    from llog.process_memory import keep_freed_memory
    from llog.telemetry.process_logs import configure_logging

    keep_freed_memory()
    configure_logging(level=log_level.upper())

    async def run() -> None:
        stop, at_once, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

        def signalled() -> None:
            if stop.is_set() and not at_once.is_set():
                at_once.set()
                loop.run_in_executor(None, _end_jvm)  # tasks that run on Spark end with it
            stop.set()

        loop.add_signal_handler(signal.SIGTERM, signalled)
        if on_message is not None:
            # A terminal sends Ctrl-C to the whole process group, and the supervisor passes it on as SIGTERM.
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            read_messages(loop, on_message, on_end=stop.set)
        else:
            loop.add_signal_handler(signal.SIGINT, signalled)
        try:
            await serve(stop, at_once)
        finally:
            # From here on the process ends by itself: a further signal must not turn a clean exit into a killed one.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    try:
        uvloop.run(run())
    finally:
        _end_jvm()


def _end_jvm() -> None:
    if "pyspark" in sys.modules:
        from llog.spark.sessions.launch import end_own_jvm

        end_own_jvm()
