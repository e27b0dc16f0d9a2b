"""The suites' packages, by name and version from the package registries, kept in the servers' cache.

Nothing of them enters the checkout. A package that cannot be had raises `ServerUnavailable`, and its suite is skipped
with that reason.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from llog.testing.servers import ServerUnavailable, cache_directory

BUILD_SECONDS_MAX: Final = 1_200
HERE: Final = Path(__file__).parent
JVMS: Final = Path("/usr/lib/jvm")
MAVEN_DEPENDENCY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The directory of that name in the cache; where it is missing, `make` fills it under another name first."""
    target = cache_directory() / "conformance" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        print(f"conformance: fetching {name} (minutes, once)", flush=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        try:
            make(stage)
            stage.rename(target)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return target


def call(
    *command: str | Path,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = BUILD_SECONDS_MAX,
) -> str:
    """Standard output of a package manager or a compiler."""
    program = str(command[0])
    if shutil.which(program) is None and not Path(directory, program).exists():
        raise ServerUnavailable(f"{program} is not installed")
    parts = [str(part) for part in command]
    try:
        ended = subprocess.run(
            parts,
            cwd=directory,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(f"`{' '.join(parts[:3])} …` took more than {seconds} s") from None
    if ended.returncode != 0:
        raise ServerUnavailable(f"`{' '.join(parts[:3])} …` failed: {(ended.stdout + ended.stderr).strip()[-500:]}")
    return ended.stdout


def go_environment() -> dict[str, str]:
    """Only the first module proxy is asked, as in servers/build.sh."""
    proxy = call("go", "env", "GOPROXY", directory=HERE).split(",")[0].strip()
    return {"GOPROXY": proxy, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}


def go_module(module: str, version: str, stage: Path) -> Path:
    """A copy of the module's sources below `stage`, in a module of its own."""
    environment = go_environment()
    call("go", "mod", "init", "conformance", directory=stage, environment=environment)
    call("go", "mod", "download", f"{module}@{version}", directory=stage, environment=environment)
    found = Path(call("go", "env", "GOMODCACHE", directory=stage).strip()) / f"{module}@{version}"
    sources = stage / "sources"
    shutil.copytree(found, sources)
    for path in [sources, *sources.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)  # the module cache is read-only
    return sources


def python_sources(name: str, version: str, stage: Path) -> None:
    """The source package, unpacked into `stage`."""
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:")
    call(*pip, f"{name}=={version}", "-d", stage, directory=stage)
    _unpack_only(stage, "*.tar.gz")


def npm_package(name: str, version: str, stage: Path) -> None:
    """The package, unpacked into `stage`."""
    call("npm", "pack", "--silent", f"{name}@{version}", directory=stage)
    _unpack_only(stage, "*.tgz")


def maven_archive(artifact: str, stage: Path) -> None:
    """An archive (`group:artifact:version:packaging:classifier`), unpacked into `stage`."""
    call("mvn", "-q", "-B", f"{MAVEN_DEPENDENCY}:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={stage}",
         directory=stage)  # fmt: skip
    _unpack_only(stage, "*.tar.gz")


def maven_packages(name: str) -> Path:
    """The directory with the jars of `packages/<name>/pom.xml`."""
    pom = HERE / name / "pom.xml"

    def make(stage: Path) -> None:
        options = ("-DincludeScope=runtime", f"-DoutputDirectory={stage}")
        call("mvn", "-q", "-B", "-f", pom, f"{MAVEN_DEPENDENCY}:copy-dependencies", *options, directory=stage)

    return kept(f"{name}-{_version_of(pom)}", make)


def java_class(source: Path, packages: Path) -> Path:
    """The directory with the classes of one source file of ours, compiled into a new scratch directory."""
    classes = Path(tempfile.mkdtemp(prefix="llog-conformance-classes-"))
    call("javac", "-d", classes, "-cp", f"{packages}/*", source, directory=source.parent)
    return classes


def _version_of(pom: Path) -> str:
    text = pom.read_text()
    return text.split("<kafka.version>")[1].split("<")[0]


def _unpack_only(stage: Path, pattern: str) -> None:
    [archive] = stage.glob(pattern)
    with tarfile.open(archive) as packed:
        packed.extractall(stage, filter="data")
    archive.unlink()


def java_program(version_min: int) -> str:
    """A `java` of that version or newer: the one of the path, of JAVA_HOME, or another that is installed."""
    home = os.environ.get("JAVA_HOME")
    candidates = [shutil.which("java"), home and f"{home}/bin/java", *sorted(map(str, JVMS.glob("*/bin/java")))]
    for candidate in candidates:
        if candidate and _java_version(candidate) >= version_min:
            return candidate
    raise ServerUnavailable(f"Java {version_min} or newer is not installed")


def _java_version(program: str) -> int:
    try:
        shown = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return 0
    match = re.search(r'version "(\d+)', shown)
    return int(match[1]) if match else 0


def programs(names: Sequence[str]) -> None:
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise ServerUnavailable(f"{', '.join(missing)} not installed")
