"""What is checked in is what the table says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from llog.settings import Settings, settings_table
from llog.settings.pages import describe, env_example, markdown

ROOT = Path(__file__).resolve().parents[3]


def test_the_env_example_is_in_step_with_the_table() -> None:
    assert (ROOT / ".env.example").read_text() == env_example(), "run `make docs`"


def test_the_reference_page_is_in_step_with_the_table() -> None:
    assert (ROOT / "docs/reference/settings.md").read_text() == markdown(), "run `make docs`"


def test_a_copy_of_the_env_example_changes_nothing() -> None:
    assert all(line.startswith("#") or not line for line in env_example().splitlines())


def test_the_env_example_loads_in_a_shell_and_gives_the_defaults(tmp_path: Path) -> None:
    names = {row.variable for row in settings_table()}
    lines = env_example().splitlines()
    uncommented = [line[1:] if line[1:].partition("=")[0] in names else line for line in lines]
    assert sum(not line.startswith("#") for line in uncommented if line) == len(names)
    file = tmp_path / ".env"
    file.write_text("\n".join(uncommented) + "\n")
    shell = subprocess.run(
        ["bash", "-euc", f"set -a; source {file}; set +a; env -0"],
        capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", "HOME": "/h"},
    )  # fmt: skip
    environ = dict(item.split("=", 1) for item in shell.stdout.split("\0") if item.startswith(("LLOG_", "HOME=")))
    assert names <= set(environ)
    assert Settings.from_env(environ) == Settings.from_env({"HOME": "/h"})


def test_every_fallback_and_secret_is_on_the_reference_page() -> None:
    page = markdown()
    for row in settings_table():
        [line] = [line for line in page.splitlines() if line.startswith(f"| `{row.variable}` |")]
        assert all(f"`{name}`" in line for name in row.fallbacks)
        assert ("Secret: never shown." in line) == row.secret


def test_only_settings_of_the_user_count_as_changed() -> None:
    settings = Settings.from_env({"HOME": "/h", "LLOG_S3_BUCKET": "bucket", "AWS_REGION": "eu-west-1"})
    changed = {row["variable"] for row in describe(settings, changed_only=True)}
    follows = {"LLOG_OBJECTS_URL", "LLOG_WAL_URL", "LLOG_BATCH_MAX_DELAY_MS"}
    assert changed == {"LLOG_S3_BUCKET", "LLOG_S3_REGION_NAME", *follows}


def test_rows_hold_plain_values_and_no_secret() -> None:
    settings = Settings.from_env({"HOME": "/h", "LLOG_OXIA_TOKEN": "hunter2", "LLOG_BATCH_MAX_BYTES": "1MiB"})
    rows = {row["variable"]: row for row in describe(settings)}
    assert (rows["LLOG_BATCH_MAX_BYTES"]["value"], rows["LLOG_BATCH_MAX_BYTES"]["text"]) == (1_048_576, "1MiB")
    assert rows["LLOG_OXIA_TOKEN"]["value"] == "***"
    assert rows["LLOG_S3_BUCKET"]["value"] is None
    assert rows["LLOG_AUTO_CREATE_TOPICS"]["value"] is True
