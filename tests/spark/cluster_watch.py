"""Which process of a Spark cluster touches a metadata store: told by the processes themselves, and by the kernel.

    watched(directory)     for the environment of a driver: every Python process below it then keeps notes there
    notes(directory)       what they noted
    peers(port)            who has a connection to a server's port now

Why it exists: "executors need the object store alone" is only shown if somebody looks. Every Python process that starts
notes who it is; from then on each import of a metadata adapter, or of a client library that such an adapter needs, is
noted. (An adapter that is not imported cannot be used: all stores are reached by importing the module that their entry
point names.) In an executor the import is refused as well, as on a machine where that client is not installed; so
whoever depends on it fails there and does not merely get noted.

What must stay true: which process is which is read from its ancestors' command lines, never from what it was told; the
watch stands before every other finder of modules, so no import passes it by (an audit hook would not see those of
`importlib`); it is there before anything of llog is imported, and workers inherit it by their fork.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final, NamedTuple

DIRECTORY: Final = "TEST_WATCH_DIRECTORY"
EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
WATCHED: Final = (
    "llog.stores.metadata.lmdb",
    "llog.stores.metadata.memory",
    "llog.stores.metadata.oxia",
    "llog.stores.metadata.postgres",
    "grpc",
    "lmdb",
    "psycopg",
)
_BEGIN: Final = "from tests.spark.cluster_watch import begin\n\nbegin()\n"
_ROOT: Final = Path(__file__).parents[2]


class Note(NamedTuple):
    pid: int
    executor: int | None
    """The process of the executor it belongs to; None: it is the driver's."""
    what: str
    """began, forked or import."""
    name: str


# -- in the driver -----------------------------------------------------------------------------------------------------


def watched(directory: Path) -> dict[str, str]:
    """What the driver's environment needs; Python imports `sitecustomize` before anything else."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_BEGIN)
    path = os.pathsep.join([str(directory), str(_ROOT), str(_ROOT / "src")])
    return {"PYTHONPATH": path, DIRECTORY: str(directory)}


def notes(directory: Path) -> list[Note]:
    return [
        Note(*json.loads(line)) for path in sorted(directory.glob("*.notes")) for line in path.read_text().splitlines()
    ]


def touches(found: list[Note]) -> list[Note]:
    return [note for note in found if note.what == "import"]


def peers(port: int) -> dict[int, int | None]:
    """The processes with a connection to that port of this machine, and the executor of each."""
    import psutil

    found = {}
    for connection in psutil.net_connections("tcp"):
        if connection.raddr and connection.raddr.port == port and connection.pid is not None:
            found[connection.pid] = executor_of(connection.pid)
    return found


def executors_of(driver: int) -> set[int]:
    """Those of the cluster that lives in a driver's own processes."""
    import psutil

    return {child.pid for child in psutil.Process(driver).children(recursive=True) if _is_executor(child.pid)}


# -- in every Python process -------------------------------------------------------------------------------------------


def begin() -> None:
    """Take notes from now on, in this process and in those that it forks."""
    directory = os.environ.get(DIRECTORY)
    if directory is None:
        return
    watch = _Watch(directory, executor_of(os.getpid()))
    watch.note("began", " ".join(sys.orig_argv[1:4]))
    os.register_at_fork(after_in_child=lambda: watch.note("forked", str(os.getppid())))
    sys.meta_path.insert(0, watch)


class _Watch(MetaPathFinder):
    """Asked first for every module that is not there yet; finds none itself."""

    def __init__(self, directory: str, executor: int | None) -> None:
        self._directory, self._executor = directory, executor

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in WATCHED):
            self.note("import", fullname)
            if self._executor is not None:
                raise ModuleNotFoundError(f"No module named {fullname!r} on this executor", name=fullname)

    def note(self, what: str, name: str) -> None:
        pid = os.getpid()
        line = json.dumps(Note(pid, self._executor, what, name)) + "\n"
        file = os.open(f"{self._directory}/{pid}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def executor_of(pid: int) -> int | None:
    return next((parent for parent in _line_of(pid) if _is_executor(parent)), None)


def _line_of(pid: int) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 1:
        yield pid
        try:
            # Behind the name, which may hold anything, come the state and the parent.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return


def _is_executor(pid: int) -> bool:
    try:
        return EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def by_executor(found: list[Note]) -> Mapping[int | None, set[int]]:
    """The Python processes of each executor, and of the driver."""
    grouped: dict[int | None, set[int]] = {}
    for note in found:
        grouped.setdefault(note.executor, set()).add(note.pid)
    return grouped
