"""What a session is started with, decided without starting one; and llog without pyspark."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llog.settings import Settings
from llog.spark.sessions.session import is_local, local_cores, own_interpreter, warm_config


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("local[*,4]", len(os.sched_getaffinity(0))),
        ("local-cluster[2,3,1024]", 6),
    ],
)
def test_cores_are_read_from_a_local_master(master: str, cores: int) -> None:
    assert is_local(master)
    assert local_cores(master) == cores


def test_a_local_session_listens_on_this_machine_only_and_runs_this_python() -> None:
    config = warm_config("local[*,4]", {})
    assert config["spark.driver.bindAddress"] == "127.0.0.1"
    assert config["spark.pyspark.python"] == sys.executable
    assert config["spark.ui.enabled"] == "false"
    assert warm_config("local[2]", {"PYSPARK_PYTHON": "/other"})["spark.pyspark.python"] == "/other"


class Session:
    """As much of one as is asked for its interpreter."""

    def __init__(self, master: str) -> None:
        self.sparkContext = SimpleNamespace(master=master, pythonExec="python3")
        self.dataSource = self
        self.registered_with: list[str] = []

    def register(self, source: type) -> None:
        self.registered_with.append(self.sparkContext.pythonExec)


@pytest.mark.parametrize(
    ("master", "named", "expected"),
    [("local[2]", None, sys.executable), ("local[2]", "/mine", "python3"), ("spark://host:7077", None, "python3")],
)
def test_a_source_runs_in_this_python_where_a_session_of_the_caller_s_was_told_of_none(
    monkeypatch: pytest.MonkeyPatch, master: str, named: str | None, expected: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if named is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", named)
    session: Any = Session(master)
    with own_interpreter(session):
        assert session.sparkContext.pythonExec == expected
    assert session.sparkContext.pythonExec == "python3", "what else the caller runs stays as it is"


def test_jobs_on_a_session_of_the_caller_s_run_in_this_python_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr("llog.spark.runner.tasks.own_session", lambda spark: spark)
    from llog.spark.runner.key_aggregate import SparkKeyAggregate
    from llog.spark.runner.tasks import SparkTasks

    session: Any = Session("local[2]")
    tools: Any = None
    SparkTasks(session, Settings.from_env({}))._session()
    SparkKeyAggregate(session, Settings.from_env({}), tools)
    assert session.registered_with == [sys.executable] * 2


def test_a_cluster_is_reached_by_its_own_network_and_python() -> None:
    config = warm_config("spark://host:7077", {})
    assert not {"spark.driver.bindAddress", "spark.pyspark.python", "spark.sql.shuffle.partitions"} & config.keys()
    assert config["spark.python.daemon.module"] == "llog.spark.sessions.daemon"


def test_connect_is_only_sent_what_may_be_set_while_it_runs() -> None:
    assert all(name.startswith("spark.sql.") for name in warm_config("sc://host:15002", {}))


OURS = "-Dlog4j2.configurationFile="


@pytest.mark.parametrize("named", [False, True])
def test_the_jvm_is_quiet_unless_an_operator_says_otherwise(tmp_path: Path, named: bool) -> None:
    environ = {"SPARK_CONF_DIR": str(tmp_path)} if named else {}
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dmine=1")
    config = warm_config("local[2]", environ)
    [option] = [one for one in shlex.split(config["spark.driver.defaultJavaOptions"]) if one.startswith(OURS)]
    assert Path(option.removeprefix(OURS)).is_file()
    assert "spark.driver.extraJavaOptions" not in config, "the operator's would not count"
    (tmp_path / "log4j2.properties").write_text("")
    assert (OURS in warm_config("local[2]", environ)["spark.driver.defaultJavaOptions"]) is not named


WITHOUT_PYSPARK = """
import sys
sys.modules["pyspark"] = None
import llog, llog.spark, llog.cli.app, llog.spark.sessions.session, llog.spark.runner.tasks, llog.spark.sessions.java
from llog.errors import SparkNotInstalled
for use in (llog.spark.session, lambda: llog.spark.register(None)):
    try:
        use()
    except SparkNotInstalled as error:
        print(error)
"""


def test_without_pyspark_everything_imports_and_using_it_says_what_to_install() -> None:
    told = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], capture_output=True, text=True, check=True)
    lines = told.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith('pip install "leaderless-log[spark]"') for line in lines)


WITHOUT_JAVA = """
import llog.spark
from llog.errors import JavaUnusable
try:
    llog.spark.session()
except JavaUnusable as error:
    print(error)
"""


def test_without_java_a_session_is_refused_in_a_sentence() -> None:
    pytest.importorskip("pyspark")
    environ = {**os.environ, "JAVA_HOME": "/nonexistent"}
    told = subprocess.run([sys.executable, "-c", WITHOUT_JAVA], env=environ, capture_output=True, text=True, check=True)
    [line] = told.stdout.splitlines()
    assert line.startswith("Spark needs Java 17 or newer (JAVA_HOME: /nonexistent/bin/java: No such file or directory)")
