"""`llog broker`, `llog compactor`, `llog up`: the processes that stay.

An address that must not be listened on is refused before a store is opened, so that a mistake founds no cluster. The
first SIGTERM or SIGINT stops in good order (accept no more, answer, flush, release claims), a second one at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llog.cli.output import print_json_line
from llog.limits import STACK_BROKERS_MAX

if TYPE_CHECKING:
    from llog.broker.broker import Broker

RoleName = Literal["both", "write", "read"]
Host = Annotated[str | None, typer.Option("--host", help="Instead of LLOG_HTTP_BIND_HOST.")]
Port = Annotated[int | None, typer.Option("--port", help="Instead of LLOG_HTTP_PORT; 0 takes a free one.")]
BrokerId = Annotated[str | None, typer.Option("--broker-id", help="Instead of LLOG_CLIENT_IDENTIFIER.")]
RoleOption = Annotated[RoleName, typer.Option("--role", help="What it serves: both, write or read.")]
Brokers = Annotated[
    int,
    typer.Option(
        "--brokers",
        min=1,
        max=STACK_BROKERS_MAX,
        help="So many broker processes on the same stores, at the port and those after it.",
    ),
]
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

    settings = Settings.from_env()
    check_exposure(settings, host=host)
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
            on_started=lambda url, opened: _say_broker(url, opened, as_json),
        ),
        supervised=supervised,
    )


def compactor(as_json: Json = False) -> None:
    """Run the compactor service: compaction, merge, retention, vacuum, over all logs."""
    from llog.cli.stack import joining_spark
    from llog.compactor.service import serve
    from llog.settings import Settings
    from llog.settings.exposure import check_exposure

    settings = Settings.from_env()
    check_exposure(settings, host=settings.compactor_bind_host, variable="LLOG_COMPACTOR_BIND_HOST")
    join_spark = joining_spark(settings)
    run_until_stopped(
        lambda stop, _: serve(
            settings,
            stop,
            on_started=lambda url: _say_compactor(url, as_json, joining=join_spark is not None),
            join_spark=join_spark,
            on_spark=lambda state: _say_spark(state, as_json),
        )
    )


def up(
    host: Host = None, port: Port = None, broker_id: BrokerId = None, brokers: Brokers = 1, as_json: Json = False
) -> None:
    """Run a broker and a compactor in one process: the embedded stack. With --brokers, each broker is a process."""
    from llog.settings import Settings
    from llog.settings.exposure import check_exposure

    settings = Settings.from_env()
    check_exposure(settings, host=host)
    check_exposure(settings, host=settings.compactor_bind_host, variable="LLOG_COMPACTOR_BIND_HOST")
    if brokers == 1:
        run_until_stopped(lambda stop, at_once: _up(settings, stop, at_once, host, port, broker_id, as_json))
        return
    from llog.cli.stack import plan_stack, run_stack

    commands = plan_stack(settings, brokers=brokers, host=host, port=port, broker_id=broker_id, as_json=as_json)
    code = 0

    async def run(stop: asyncio.Event, at_once: asyncio.Event) -> None:
        nonlocal code
        code = await run_stack(
            settings,
            commands,
            stop,
            at_once,
            on_compactor=lambda url: _say_compactor(url, as_json, joining=settings.compactor_spark),
            on_spark=lambda state: _say_spark(state, as_json),
        )

    run_until_stopped(run)
    if code:
        raise typer.Exit(code)


async def _up(
    settings: object,
    stop: asyncio.Event,
    at_once: asyncio.Event,
    host: str | None,
    port: int | None,
    broker_id: str | None,
    as_json: bool,
) -> None:
    from llog.cli.stack import compact_patiently
    from llog.http.serve import serve as serve_broker
    from llog.settings import Settings

    assert isinstance(settings, Settings)

    def started(url: str, opened: Broker) -> None:
        _say_broker(url, opened, as_json)
        if not as_json:
            _say_what_to_try(url)

    both = [
        asyncio.ensure_future(
            serve_broker(
                settings,
                stop,
                at_once=at_once,
                broker_id=broker_id,
                host=host,
                port=port,
                patient=True,
                on_started=started,
            )
        ),
        asyncio.ensure_future(
            compact_patiently(
                settings,
                stop,
                on_started=lambda url: _say_compactor(url, as_json, joining=settings.compactor_spark),
                on_spark=lambda state: _say_spark(state, as_json),
            )
        ),
    ]
    # One that cannot run takes the other along: half a stack would only look like one.
    await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
    stop.set()
    for ended in await asyncio.gather(*both, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def run_until_stopped(
    serve: Callable[[asyncio.Event, asyncio.Event], Awaitable[None]], *, supervised: bool = False
) -> None:
    import uvloop

    from llog.broker.process_memory import keep_freed_memory
    from llog.http.logs import configure_logging

    keep_freed_memory()
    configure_logging()

    async def run() -> None:
        stop, at_once = asyncio.Event(), asyncio.Event()

        def told() -> None:
            (at_once if stop.is_set() else stop).set()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, told)
        if supervised:
            # A terminal sends Ctrl-C to the whole group, and the supervisor passes it on: once is meant.
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            _when_input_ends(loop, stop.set)
        else:
            loop.add_signal_handler(signal.SIGINT, told)
        await serve(stop, at_once)

    uvloop.run(run())


def _when_input_ends(loop: asyncio.AbstractEventLoop, told: Callable[[], None]) -> None:
    """The other end of the pipe is the supervisor's: it ends with it, however that ended."""
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 4_096):
            loop.remove_reader(descriptor)
            told()

    loop.add_reader(descriptor, readable)


def _say_broker(url: str, opened: Broker, as_json: bool) -> None:
    from llog.broker.broker import acknowledged_means
    from llog.broker.process_memory import spare_what_is_there

    spare_what_is_there()
    if as_json:
        print_json_line(
            {
                "service": "broker",
                "url": url,
                "broker_id": opened.broker_id,
                "role": opened.role,
                "acknowledged_means": acknowledged_means(opened.settings),
            }
        )
        return
    typer.echo(f"broker {opened.broker_id} ({opened.role}) at {url}")
    typer.echo(f"  acknowledged: {acknowledged_means(opened.settings)}")


def _say_compactor(url: str, as_json: bool, *, joining: bool) -> None:
    if as_json:
        print_json_line({"service": "compactor", "url": url})
        return
    typer.echo(f"compactor at {url}/health")
    if joining:
        typer.echo("  Spark: starting; until it is ready, compaction runs in this process")


def _say_spark(state: str, as_json: bool) -> None:
    if as_json:
        print_json_line({"spark": state})
        return
    typer.echo(f"  Spark: {state}")


def _say_what_to_try(url: str) -> None:
    typer.echo(
        f"""Try, in another terminal:
  curl -s -X POST {url}/produce -H 'content-type: application/json' \\
    -d '{{"topic_partitions": [{{"topic": "orders", "partition": 0, "records": ["alpha", "beta"]}}]}}'
  curl -s -X POST {url}/consume -H 'content-type: application/json' \\
    -d '{{"topic_partitions": [{{"topic": "orders", "partition": 0, "fetch_offset": 1}}]}}'
  curl -s {url}/health       {url}/schema is the API, {url}/metrics/prometheus the numbers
Stop with Ctrl-C."""
    )
