"""The Python of a cluster is one that works on this machine too, or is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llog.errors import InvalidArgument
from llog.spark.sessions.preflight import SPARKS_OWN, VARIABLE, cluster_python


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_one_that_is_named_and_works_is_used() -> None:
    assert cluster_python({VARIABLE: sys.executable}) == sys.executable


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("echo 3 6 True", "is Python 3.6, and this is 3."),
        ("echo {here} False", "has no llog here"),
        ("exit 3", "cannot be used here (it ended with 3)"),
        ("echo hello", "cannot be used here (it ended with 0)"),
    ],
)
def test_one_that_is_named_and_cannot_work_is_refused_by_name(tmp_path: Path, text: str, wrong: str) -> None:
    program = script(tmp_path / "python", text.format(here=" ".join(map(str, sys.version_info[:2]))))
    with pytest.raises(InvalidArgument) as raised:
        cluster_python({VARIABLE: program})
    assert f"PYSPARK_PYTHON: {program} {wrong}" in str(raised.value)
    assert "jobs are planned on this machine" in str(raised.value)


def test_one_that_is_only_on_executors_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"\./environment/bin/python cannot be started here \(No such file"):
        cluster_python({VARIABLE: "./environment/bin/python"})


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}])
def test_where_none_is_named_sparks_own_is_used_if_it_works(elsewhere: Path, environ: dict[str, str]) -> None:
    assert cluster_python(environ) == sys.executable, "there is no python3"
    script(elsewhere / SPARKS_OWN, f'exec {sys.executable} "$@"')
    assert cluster_python(environ) == SPARKS_OWN
    script(elsewhere / SPARKS_OWN, "echo 2 7 False")
    assert cluster_python(environ) == sys.executable
