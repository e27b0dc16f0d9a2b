"""What commands share: store options, jobs, and how a report is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from llog.cli.app import app
from llog.cli.frame import InProcess, Master, run_job, with_stores
from llog.cli.output import AsJson, print_report
from llog.errors import InvalidArgument
from llog.pipeline.runtime.tasks import LocalTasks, TaskFailed, tools_of
from llog.settings import Settings
from llog.spark.jobs import Job
from llog.wiring import Use
from tests.spark.sample_tasks import OBEY, Order, Told


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({}, data_dir=tmp_path)


async def echo(job: Job) -> list[int]:
    outcomes = await job.runner.run(OBEY, [Order("echo", n) for n in range(3)])
    return [one.number for one in outcomes if isinstance(one, Told)]


def test_a_job_in_this_process_needs_no_spark_and_has_its_stores(settings: Settings) -> None:
    async def work(job: Job) -> list[int]:
        assert isinstance(job.runner, LocalTasks)
        assert job.context.segments is not None
        assert job.context.wal is None
        return await echo(job)

    for use in (Use.PUT, Use.LIST):
        assert run_job(settings, "echoing", work, in_process=True, segments=use) == [0, 1, 2]


def test_stores_of_this_process_alone_are_refused_before_spark_is_started() -> None:
    settings = Settings.from_env({}, metadata_url="memory://", objects_url="memory://")
    with pytest.raises(InvalidArgument, match="run in process"):
        run_job(settings, "echoing", echo, in_process=False)


def test_every_task_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    details: list[str] = []
    heard: list[int] = []

    async def work(job: Job) -> None:
        runner = LocalTasks(tools_of(job.context), on_progress=lambda more, detail: details.append(f"{more}: {detail}"))

        def listen(number: int, outcome: Told | TaskFailed) -> None:
            heard.append(number)

        await runner.run(OBEY, [Order("echo"), Order("miss")], listen)
        await runner.run(OBEY, [Order("echo")])

    run_job(settings, "echoing", work, in_process=True)
    assert details == ["0: 0 of 2 tasks", "1: 1 of 2 tasks", "1: 2 of 2 tasks", "0: 2 of 3 tasks", "1: 3 of 3 tasks"]
    assert sorted(heard) == [0, 1]


@with_stores("metadata", "wal")
def command(
    settings: Settings,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
    empty: bool = False,
) -> None:
    numbers = [] if empty else [1, 2]
    document = {"numbers": numbers, "metadata_url": settings.metadata_url}
    print_report(as_json, document, ("number",), [(str(n),) for n in numbers], empty="nothing to do")


def test_a_report_is_a_table_or_one_json_document() -> None:
    one = typer.Typer()
    one.command()(command)
    run = CliRunner().invoke
    printed = json.loads(run(one, ["--json", "--master", "local[2]", "--in-process"]).stdout)
    assert printed["numbers"] == [1, 2]
    assert [line.strip() for line in run(one, []).stdout.splitlines()][::2] == ["number", "1"]
    assert run(one, ["--empty"]).stdout == "nothing to do\n"
    assert json.loads(run(one, ["--empty", "--json"]).stdout)["numbers"] == []


def test_store_options_become_settings_and_only_those_asked_for_exist() -> None:
    one = typer.Typer()
    one.command()(command)
    run = CliRunner().invoke
    assert json.loads(run(one, ["--json", "--metadata-url", "memory://x"]).stdout)["metadata_url"] == "memory://x"
    assert run(one, ["--objects-url", "memory://x"]).exit_code == 2


@pytest.mark.parametrize(("command_line", "here"), [("compact", True), ("pipeline compact", False)])
def test_a_job_under_two_names_differs_only_in_where_it_runs_by_default(
    command_line: str, here: bool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[bool] = []

    def note(*_: object, in_process: bool, **__: object) -> None:
        places.append(in_process)
        raise typer.Exit

    monkeypatch.setattr("llog.cli.pipeline.run_job", note)
    monkeypatch.setenv("LLOG_DATA_DIR", str(settings.data_dir))
    for options in ([], ["--spark"], ["--in-process"]):
        assert CliRunner().invoke(app, [*command_line.split(), *options]).exit_code == 0
    assert places == [here, False, True]


def test_help_imports_neither_spark_nor_arrow() -> None:
    code = (
        "import sys; from llog.cli.app import app\n"
        "try: app(['pipeline', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'numba'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
