"""The frame of `llog pipeline …`: what a command gets, and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from llog.cli.output import AsJson
from llog.cli.pipeline.frame import InProcess, JobSetting, Master, print_report, run_job
from llog.errors import InvalidArgument
from llog.opening import Use
from llog.pipeline.runtime.progress import ToldRunner
from llog.pipeline.runtime.work import InProcessRunner, TaskFailed
from llog.settings import Settings
from llog.spark.job import Job
from tests.spark.sample_tasks import OBEY, Order, Told


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({}, data_dir=tmp_path)


async def echo(job: Job) -> list[int]:
    outcomes = await job.runner.run(OBEY, [Order("echo", n) for n in range(3)])
    return [one.number for one in outcomes if isinstance(one, Told)]


def test_a_job_in_this_process_needs_no_spark_and_has_its_stores(settings: Settings) -> None:
    async def work(job: Job) -> list[int]:
        assert isinstance(job.runner, ToldRunner)
        assert isinstance(job.runner.inner, InProcessRunner)
        assert job.context.segments is not None
        assert job.context.wal is None
        return await echo(job)

    setting = JobSetting("echoing", settings, in_process=True, segments=Use.PUT)
    assert run_job(setting, work) == [0, 1, 2]
    assert run_job(JobSetting("echoing", settings, spark=False, segments=Use.LIST), work) == [0, 1, 2]


def test_stores_of_this_process_alone_are_refused_before_spark_is_started() -> None:
    settings = Settings.from_env({}, metadata_url="memory://", objects_url="memory://")
    with pytest.raises(InvalidArgument, match="run in process"):
        run_job(JobSetting("echoing", settings), echo)


def test_every_task_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    heard: list[int] = []

    async def work(job: Job) -> None:
        assert isinstance(job.runner, ToldRunner)
        runner = ToldRunner(job.runner.inner, lambda more, detail: told.append(f"{more}: {detail}"))

        def listen(number: int, outcome: Told | TaskFailed) -> None:
            heard.append(number)

        await runner.run(OBEY, [Order("echo"), Order("miss")], listen)
        await runner.run(OBEY, [Order("echo")])

    run_job(JobSetting("echoing", settings, in_process=True), work)
    assert told == ["0: 0 of 2 tasks", "1: 1 of 2 tasks", "1: 2 of 2 tasks", "0: 2 of 3 tasks", "1: 3 of 3 tasks"]
    assert sorted(heard) == [0, 1]


def command(as_json: AsJson = False, master: Master = None, in_process: InProcess = False, empty: bool = False) -> None:
    numbers = [] if empty else [1, 2]
    print_report({"numbers": numbers}, as_json, ("number",), [(str(n),) for n in numbers])


def test_a_report_is_a_table_or_one_json_document() -> None:
    app = typer.Typer()
    app.command()(command)
    run = CliRunner().invoke
    assert json.loads(run(app, ["--json", "--master", "local[2]", "--in-process"]).stdout) == {"numbers": [1, 2]}
    assert [line.strip() for line in run(app, []).stdout.splitlines()][::2] == ["number", "1"]
    assert run(app, ["--empty"]).stdout == "nothing to do\n"
    assert json.loads(run(app, ["--empty", "--json"]).stdout) == {"numbers": []}


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
