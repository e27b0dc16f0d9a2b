"""What a run was made with: `git.json` and `environment.json`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import msgspec
import psutil

from llog import __version__
from llog.loadtest.run_directory import RunDirectory
from llog.settings import Settings
from llog.settings.pages import describe

GIT: Final = "git.json"
ENVIRONMENT: Final = "environment.json"
GIT_SECONDS_MAX: Final = 10.0


class GitSnapshot(msgspec.Struct, frozen=True):
    commit: str
    branch: str
    """`HEAD` if none is checked out."""
    dirty: bool
    """Files differ from the commit."""


class EnvironmentSnapshot(msgspec.Struct, frozen=True):
    machine: str
    kernel: str
    processor: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    python: str
    llog: str
    packages: Mapping[str, str]
    settings: Mapping[str, str]
    """Of the run's processes, as `llog settings` shows them: secrets are masked."""


def write_snapshots(run: RunDirectory, environment: Mapping[str, str]) -> None:
    git = git_snapshot(Path(__file__).parent)
    if git is not None:
        run.write(GIT, git)
    run.write(ENVIRONMENT, environment_snapshot(environment))


def git_snapshot(directory: Path) -> GitSnapshot | None:
    """None where the package is not part of a checkout, or git is not installed."""
    commit = _git(directory, "rev-parse", "HEAD")
    branch = _git(directory, "rev-parse", "--abbrev-ref", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    tracked = _git(directory, "ls-files", "--error-unmatch", Path(__file__).name)
    if commit is None or branch is None or changes is None or tracked is None:
        return None
    return GitSnapshot(commit, branch, bool(changes))


def environment_snapshot(environment: Mapping[str, str]) -> EnvironmentSnapshot:
    settings = Settings.from_env(environment)
    return EnvironmentSnapshot(
        machine=platform.machine(),
        kernel=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        memory_bytes=psutil.virtual_memory().total,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        llog=__version__,
        packages={found.name: found.version for found in sorted(distributions(), key=lambda one: one.name.lower())},
        settings={row["variable"]: row["text"] for row in describe(settings, changed_only=True)},
    )


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=GIT_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
