"""`llog up`: the embedded stack, a broker and a compactor in one process; with `--brokers`, each broker is a process.

The broker is there at once, and Spark joins the compactor when it is ready. Its state stands in the banner, on a line
of its own whenever it changes, and in the health page of every broker of the stack.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.services.banner import say_broker, say_compactor, say_spark, say_what_to_try
from llog.cli.services.serve import BrokerId, Host, Json, Port, run_until_stopped

if TYPE_CHECKING:
    from llog.broker.broker import Broker
    from llog.settings import Settings
from typing import Final

# `llog up --brokers`: more than a machine has use for.
STACK_BROKERS_MAX: Final = 64


Brokers = Annotated[
    int,
    typer.Option(
        "--brokers",
        min=1,
        max=STACK_BROKERS_MAX,
        help="So many broker processes on the same stores, at the port and those after it.",
    ),
]


def up(
    host: Host = None, port: Port = None, broker_id: BrokerId = None, brokers: Brokers = 1, as_json: Json = False
) -> None:
    """Run a broker and a compactor in one process: the embedded stack. With --brokers, each broker is a process."""
    from llog.settings import Settings
    from llog.settings.exposure import check_exposure

    settings = Settings.from_env(client_identifier=broker_id, http_bind_host=host, http_port=port)
    check_exposure(settings, host=host)
    check_exposure(settings, host=settings.compactor_bind_host, variable="LLOG_COMPACTOR_BIND_HOST")
    if brokers == 1:
        run_until_stopped(lambda stop, at_once: _up(settings, stop, at_once, host, port, broker_id, as_json))
        return
    from llog.cli.services.stack import plan_stack, run_stack

    commands = plan_stack(settings, brokers=brokers, host=host, port=port, broker_id=broker_id, as_json=as_json)
    spark = SparkShown(settings, as_json)
    code = 0

    def compacting(url: str) -> None:
        say_compactor(url, as_json)
        spark.say()

    async def run(stop: asyncio.Event, at_once: asyncio.Event) -> None:
        nonlocal code
        code = await run_stack(settings, commands, stop, at_once, on_compactor=compacting, on_spark=spark.changed)

    run_until_stopped(run)
    if code:
        raise typer.Exit(code)


async def _up(
    settings: Settings,
    stop: asyncio.Event,
    at_once: asyncio.Event,
    host: str | None,
    port: int | None,
    broker_id: str | None,
    as_json: bool,
) -> None:
    from llog.cli.services.stack import compact_patiently
    from llog.http.serve import serve as serve_broker

    spark = SparkShown(settings, as_json)

    def started(url: str, opened: Broker) -> None:
        opened.beside = spark.page
        say_broker(url, opened, as_json)
        spark.say()
        if not as_json:
            say_what_to_try(url)

    broker = serve_broker(
        settings,
        stop,
        at_once=at_once,
        broker_id=broker_id,
        host=host,
        port=port,
        patient=True,
        on_started=started,
    )
    compactor = compact_patiently(
        settings,
        stop,
        at_once=at_once,
        on_started=lambda url: say_compactor(url, as_json),
        on_spark=spark.changed,
    )
    both = [asyncio.ensure_future(broker), asyncio.ensure_future(compactor)]
    # One that cannot run takes the other along: half a stack would only look like one.
    await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
    stop.set()
    for ended in await asyncio.gather(*both, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


class SparkShown:
    """The state of the stack's Spark, as it was told last."""

    def __init__(self, settings: Settings, as_json: bool) -> None:
        from llog.cli.services.stack import first_spark_state

        self._as_json = as_json
        self.page: dict[str, object] = {"spark": first_spark_state(settings)}
        """What health pages show."""

    def say(self) -> None:
        say_spark(str(self.page["spark"]), self._as_json)

    def changed(self, state: str) -> None:
        self.page["spark"] = state
        self.say()
