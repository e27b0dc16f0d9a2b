"""`llog pipeline …`: the frame that every job's command stands in.

A job's command lives in its own module, `pipeline_<job>.py`, which is imported at the end of this one. It looks so:

    @app.command()
    def retain(
        dry_run: DryRun = False,
        as_json: AsJson = False,
        master: Master = None,
        in_process: InProcess = False,
        metadata_url: MetadataUrl = None,
        objects_url: ObjectsUrl = None,
        wal_url: WalUrl = None,
    ) -> None:
        settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
        setting = JobSetting("retaining", settings, master=master, in_process=in_process, segments=Use.PUT)
        report = run_job(setting, lambda job: do_retain(job, dry_run=dry_run))      # of `llog.spark.job_work`
        print_report(report, as_json, ("log", "records"), [(str(one.log), str(one.records)) for one in report.logs])
        if report.failed:
            raise typer.Exit(FAILED)

- `run_job` opens the log and the runner (Spark, or this process with `--in-process` or `spark=False`), draws the
  progress of the tasks on stderr, and closes everything, also after Ctrl-C, which cancels what runs in Spark.
- `job.advance(amount, detail)` tells of progress that is not made by tasks.
- `print_report` prints the report itself as JSON, or the rows as a table: stdout holds one of them and nothing else.
- What takes data away has `DryRun` and `Yes` (`llog.cli.compact`) and asks (`llog.cli.output.ask`).

What must stay true: nothing heavy is imported before a command runs; a command that needs no Spark starts none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from llog.cli.output import print_json, print_table

if TYPE_CHECKING:
    from llog.opening import Use
    from llog.settings import Settings
    from llog.spark.job import Job

__all__ = ["InProcess", "JobSetting", "Master", "app", "print_report", "run_job"]

Report = TypeVar("Report")

Master = Annotated[
    str | None,
    typer.Option("--master", help="Where Spark's tasks run, instead of LLOG_SPARK_MASTER; sc://… is Spark Connect."),
]
InProcess = Annotated[bool, typer.Option("--in-process", help="Run the tasks in this process, without Spark.")]

app = typer.Typer(
    help="Jobs over all the data: compact, clean, check, export. They run on Spark, or with --in-process without it.",
    no_args_is_help=True,
)


@app.callback()
def _pipeline() -> None:
    """Keeps each job a command of its own, also while there is only one."""


class JobSetting(NamedTuple):
    """What a job works on and with."""

    title: str
    """In front of its progress: "compacting"."""
    settings: Settings
    master: str | None = None
    in_process: bool = False
    blobs: Use | None = None
    """What is done to the store of fresh bytes; None: nothing beyond reading."""
    segments: Use | None = None
    spark: bool = True
    """False for a job without tasks: no session is started for it."""
    progress: bool = True


def run_job(setting: JobSetting, work: Callable[[Job], Awaitable[Report]]) -> Report:
    """Do the work with everything open; what it raises becomes the exit code that `llog.cli.exits` says."""
    import asyncio

    from llog.cli.progress import progress_line
    from llog.opening import Use
    from llog.spark.job import Place, opened_job

    place = Place(master=setting.master, in_process=setting.in_process or not setting.spark)
    uses = {"blobs": setting.blobs or Use.NOTHING, "segments": setting.segments or Use.NOTHING}

    async def main() -> Report:
        with progress_line(setting.title, wanted=setting.progress) as advance:
            async with opened_job(setting.settings, place, **uses, advance=advance) as job:
                return await work(job)

    return asyncio.run(main())


def print_report(report: Any, as_json: bool, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """`report` is anything msgspec encodes; the rows are for people."""
    if as_json:
        print_json(report)
    elif rows:
        print_table(columns, rows)
    else:
        typer.echo("nothing to do")


# -- the jobs: one line each, from llog.cli.pipeline_<job>; importing one registers it with `app` --------------------
