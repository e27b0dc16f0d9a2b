"""Commands that change something write an audit line to stderr, and nothing else there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from llog.audit_log import os_user
from tests.patience import PATIENCE_SECONDS


def run(tmp_path: Path, *arguments: str, stdin: str = "", code: int = 0) -> list[dict[str, Any]]:
    """The lines on stderr that are JSON."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLOG_", "AWS_"))}
    done = subprocess.run(
        [sys.executable, "-m", "llog", *arguments],
        env=kept | {"LLOG_DATA_DIR": str(tmp_path), "LLOG_LOG_LEVEL": "error"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert '"audit"' not in done.stdout
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def test_changes_by_commands_name_the_user_of_the_system(tmp_path: Path) -> None:
    [created] = run(tmp_path, "topic", "create", "orders")
    assert (created["action"], created["object"], created["outcome"]) == ("topic.create", "orders", "done")
    assert created["principal"] == f"os-user:{os_user()}"
    [made] = run(tmp_path, "produce", "visits", stdin="one\n")
    assert (made["action"], made["object"], made["after"]["by"]) == ("topic.create", "visits", "first use")
    [moved] = run(tmp_path, "group", "commit", "reports", "--topic", "visits", "--to", "latest")
    assert (moved["action"], moved["object"], moved["after"]) == ("group.commit", "reports", {"visits:0": 2})
    assert run(tmp_path, "consume", "visits") == []
    [refused] = run(tmp_path, "fence", "none", "0", code=5)
    assert (refused["action"], refused["object"], refused["outcome"]) == ("log.fence", "none:0", "refused")
    assert refused["error_type"] == "PartitionNotInitialized"
