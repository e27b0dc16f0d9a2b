"""The real program, as a shell starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from llog import __version__
from tests.patience import PATIENCE_SECONDS

LLOG = Path(sys.executable).parent / "llog"


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLOG_", "AWS_", "_LLOG"))}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env={**kept, **environ}
    )


def test_version_is_printed_without_loading_a_command_line_library() -> None:
    shown = run(sys.executable, "-X", "importtime", str(LLOG), "--version")
    assert shown.stdout == f"llog {__version__}\n"
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert not {
        name for name in imported if name.split(".")[0] in ("typer", "rich", "numpy", "pyarrow", "obstore", "grpc")
    }


def test_the_module_is_the_program() -> None:
    assert run(sys.executable, "-m", "llog", "--version").stdout == f"llog {__version__}\n"
    assert "Usage: llog " in run(sys.executable, "-m", "llog", "--help").stdout


def test_the_distribution_has_a_script_of_its_own_name_and_links() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"][project["name"]] == project["scripts"]["llog"], (
        "uvx runs the script named like the package"
    )
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(project["urls"])


def test_a_wrong_setting_ends_with_code_2_and_a_typo_is_pointed_out() -> None:
    shown = run(str(LLOG), "settings", LLOG_BATCH_MAX_BYTES="x", LLOG_ENCODIGN="y")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert "LLOG_BATCH_MAX_BYTES='x'" in shown.stderr
    assert "did you mean LLOG_ENCODING?" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_an_unknown_command_ends_with_code_2() -> None:
    assert run(str(LLOG), "sttings").returncode == 2


def test_a_dead_server_fails_the_check_without_a_traceback(tmp_path: Path) -> None:
    shown = run(
        str(LLOG), "stores", "check", "--objects-url", "s3://bucket", "--metadata-url", "memory://",
        LLOG_S3_ENDPOINT_URL="http://127.0.0.1:9", LLOG_S3_ACCESS_KEY_ID="a", LLOG_S3_SECRET_ACCESS_KEY="b",
        LLOG_REQUEST_TIMEOUT_MS="500",
    )  # fmt: skip
    assert shown.returncode == 1
    assert "objects store, open" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_shell_completes_commands() -> None:
    shown = run(str(LLOG), _LLOG_COMPLETE="complete_bash", COMP_WORDS="llog set", COMP_CWORD="1")
    assert shown.stdout.split() == ["settings"]
