"""What commands share: the options that name the stores, an opened log, and the place where job tasks run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from llog.log.context import LogContext
    from llog.settings import Settings
    from llog.spark.jobs import Job
    from llog.wiring import Use

Result = TypeVar("Result")
Command = Callable[..., None]

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", help="The partition's number.")]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", "-p", help="One partition; all of them when left out.")
]
Logs = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOG", help="A topic, or topic:partition for one log; all logs when left out."),
]
Master = Annotated[
    str | None,
    typer.Option("--master", help="Run the tasks on this Spark master instead of LLOG_SPARK_MASTER; implies --spark."),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process/--spark",
        show_default=False,
        help="Run the tasks in this process (default of `llog compact` and `llog vacuum`) or on Spark (default of "
        "`llog pipeline …`).",
    ),
]


def with_stores(*stores: Literal["metadata", "objects", "wal"], audit: str = "") -> Callable[[Command], Command]:
    """Give a command `--…-url` options for `stores`, and pass it the resulting `settings` as its first argument.

    `audit` is the action of a command that changes something: a change that fails has an audit line as well."""

    def decorate(command: Command) -> Command:
        own, names = inspect.signature(command).parameters, vars(inspect.getmodule(command))
        urls = [
            inspect.Parameter(
                f"{store}_url",
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    str | None, typer.Option(f"--{store}-url", help=f"Instead of LLOG_{store.upper()}_URL.")
                ],
            )
            for store in stores
        ]

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            from llog.settings import Settings
            from llog.telemetry.process_logs import ensure_audit_lines

            ensure_audit_lines()
            overrides = {url.name: arguments.pop(url.name) for url in urls}
            with _audited(audit, arguments):
                command(Settings.from_env(**overrides), **arguments)

        # Typer reads the signature. `settings` is not an option, and its type is not imported at run time, so the other
        # annotations, which are strings, are evaluated here one by one.
        options = [
            parameter.replace(
                kind=inspect.Parameter.KEYWORD_ONLY,
                annotation=eval(parameter.annotation, names),
            )
            for parameter in own.values()
            if parameter.name != "settings"
        ] + urls
        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in options}
        return run

    return decorate


@contextmanager
def _audited(action: str, arguments: Mapping[str, object]) -> Iterator[None]:
    """Write the audit line of a change that raised an error."""
    from llog.audit_log import write_refusal
    from llog.cli.exits import UNCERTAIN, exit_code_of
    from llog.errors import LlogError

    try:
        yield
    except LlogError as error:
        if action:
            named = [arguments.get(name) for name in ("group", "topic", "partition", "source", "user", "principal")]
            subject = ":".join(str(value) for value in named if value is not None)
            write_refusal(action, subject, "uncertain" if exit_code_of(error) == UNCERTAIN else "refused", error)
        raise


def on_log(
    settings: Settings,
    work: Callable[[LogContext], Awaitable[Result]],
    *,
    title: str | None = None,
    blobs: Use | None = None,
    segments: Use | None = None,
) -> Result:
    """Open the log of `settings`, run `work` on it, and close it. `title` is shown while the work runs.

    `blobs` and `segments` name what the work does to the two object stores beyond reading.
    """
    import asyncio

    from llog.cli.output import progress_line
    from llog.wiring import Use, opened_log

    async def run() -> Result:
        with progress_line(title or "", wanted=title is not None):
            async with opened_log(settings, blobs=blobs or Use.NOTHING, segments=segments or Use.NOTHING) as stores:
                return await work(stores.context)

    return asyncio.run(run())


def run_job(
    settings: Settings,
    title: str,
    work: Callable[[Job], Awaitable[Result]],
    *,
    in_process: bool,
    master: str | None = None,
    blobs: Use | None = None,
    segments: Use | None = None,
    progress: bool = True,
) -> Result:
    """Run a pipeline job: open the log and the task runner, draw the progress of the tasks, and close everything, also
    after Ctrl-C, which cancels what runs on Spark."""
    import asyncio

    from llog.cli.output import progress_line
    from llog.spark.jobs import Place, opened_job
    from llog.wiring import Use

    place = Place(master=master, in_process=in_process and master is None)
    uses = {"blobs": blobs or Use.NOTHING, "segments": segments or Use.NOTHING}

    async def run() -> Result:
        with progress_line(title, wanted=progress) as advance:
            async with opened_job(settings, place, **uses, on_progress=advance) as job:
                return await work(job)

    return asyncio.run(run())
