"""The LMDB environments of this process, one per directory, shared by all stores of that directory.

LMDB fails if a process opens a directory twice, if an environment crosses a fork, if the map is too small, or if the
directory is on a network file system. This module handles all four.
- Sync is always on: a commit is on disk when it returns.
- The map grows by itself, also after another process grew it, but never while a transaction is open (`MapGate`).
- Use after a fork raises an error. The child does not close what it inherited, because that would free the parent's
  slot in the reader table, so it cannot open that directory either. Start processes with spawn.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from llog.errors import MetadataDenied, MetadataMisconfigured, MetadataStoreError, MetadataUnavailable
from llog.limits import GIB, METADATA_KEY_BYTES_MAX, MIB
from llog.stores.metadata.lmdb.failures import translate
from llog.stores.metadata.lmdb.layout import FORMAT, FORMAT_KEY, SESSION_ID_BYTES, BootClock, check_format
from llog.stores.metadata.lmdb.writer import Writer


class MapGate:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._resizing = False

    def try_enter(self) -> bool:
        with self._changed:
            if self._resizing:
                return False
            self._users += 1
            return True

    def enter(self) -> None:
        with self._changed:
            while self._resizing:
                self._changed.wait()
            self._users += 1

    def leave(self) -> None:
        with self._changed:
            self._users -= 1
            if self._resizing and not self._users:
                self._changed.notify_all()

    @contextmanager
    def using(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until all users have left, while new ones wait, and hold the gate exclusively."""
        with self._changed:
            while self._resizing:
                self._changed.wait()
            self._resizing = True
            while self._users:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._resizing = False
                self._changed.notify_all()


# The map starts small and doubles; it costs address space, not disk.
LMDB_MAP_BYTES_START: Final = 64 * MIB
# Largest growth step: doubling a very large map would take more address space than it needs soon.
LMDB_MAP_GROWTH_BYTES_MAX: Final = 16 * GIB
# Reader slots of the lock file, for all processes together; a process needs one per reader thread and one more.
LMDB_READERS_MAX: Final = 1_024
LMDB_READER_THREADS: Final = 4

T = TypeVar("T")
MAP_ATTEMPTS_MAX: Final = 64
FORK_REASON: Final = "was open when this process was forked; LMDB cannot cross a fork: start a new process (spawn)"

# These file systems do not keep locks and maps coherent between machines, with any mount option.
NETWORK_FILE_SYSTEMS: Final = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.ceph", "lustre", "beegfs", "glusterfs"),
        *("fuse.glusterfs", "fuse.sshfs", "fuse.s3fs"),
    ]
)


class Environment:
    """Everything except `lease_out` and `give_back` may be called from any thread."""

    def __init__(self, directory: Path, url: str, clock: BootClock) -> None:
        self.directory, self.url, self.clock = directory, url, clock
        self.gate = MapGate()
        self.forked = False
        self.users = 0
        self._lmdb = self._open()
        self._check_contents()
        self.readers = ThreadPoolExecutor(LMDB_READER_THREADS, thread_name_prefix="llog-lmdb-read")
        self.writer = Writer(self)

    def _open(self) -> lmdb.Environment:
        refuse_network_file_system(self.directory, self.url)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            return lmdb.open(
                str(self.directory),
                map_size=LMDB_MAP_BYTES_START,
                max_readers=LMDB_READERS_MAX,
                max_spare_txns=LMDB_READER_THREADS + 1,
                sync=True,
                metasync=True,
                writemap=False,
                lock=True,
                mode=0o640,
            )
        except PermissionError as error:
            raise MetadataDenied("open", self.url, str(error)) from error
        except OSError as error:
            raise MetadataMisconfigured("open", self.url, str(error)) from error
        except lmdb.Error as error:
            raise translate(error, "open", self.url) from error

    def _check_contents(self) -> None:
        """Free reader slots of dead processes, write the format into an empty database, refuse another format."""
        try:
            self._lmdb.reader_check()
            assert self._lmdb.max_key_size() >= METADATA_KEY_BYTES_MAX + SESSION_ID_BYTES + 2
            stored = self.read(lambda txn: (txn.get(FORMAT_KEY), txn.stat()["entries"]))
            if stored == (None, 0):
                with self.gate.using(), self.begin_write() as txn:
                    # Another process may have been first; the stored format decides.
                    txn.put(FORMAT_KEY, FORMAT, overwrite=False)
                stored = self.read(lambda txn: (txn.get(FORMAT_KEY), 1))
            check_format(stored[0], self.url)
        except lmdb.Error as error:
            self._lmdb.close()
            raise translate(error, "open", self.url) from error
        except MetadataStoreError:
            self._lmdb.close()
            raise

    # -- transactions -----------------------------------------------------------------------------------------------
    def check_process(self) -> None:
        if self.forked:
            raise MetadataMisconfigured("use", self.url, FORK_REASON)

    def read_now(self, work: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        """A read transaction that waits only for pages. Raises `lmdb.MapResizedError` if the map must change first. The
        caller has passed `gate.try_enter` and leaves the gate."""
        with self._lmdb.begin() as txn:
            return work(txn)

    def read(self, work: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        """The same in a thread, which may wait."""
        for attempt in range(MAP_ATTEMPTS_MAX):
            try:
                with self.gate.using():
                    return self.read_now(work)
            except lmdb.MapResizedError:
                self.adopt_map()
            except (lmdb.ReadersFullError, lmdb.BadRslotError):
                if attempt or not self._lmdb.reader_check():
                    raise
        raise MetadataUnavailable("read", self.url, f"the map changed {MAP_ATTEMPTS_MAX} times while it was read")

    def last_transaction(self) -> int | None:
        """Number of the last transaction of any process that changed something, without a transaction of its own; None
        while the map changes."""
        if not self.gate.try_enter():
            return None
        try:
            return int(self._lmdb.info()["last_txnid"])
        finally:
            self.gate.leave()

    def begin_write(self) -> lmdb.Transaction[bytes]:
        """Waits for the single write lock of the machine. The caller is inside the gate."""
        return self._lmdb.begin(write=True)

    def adopt_map(self) -> None:
        """Adopt the map size that another process set."""
        with self.gate.alone():
            self._lmdb.set_mapsize(0)

    def grow_map(self) -> None:
        """Double a full map, after freeing the slots of dead readers, which may be the cause."""
        with self.gate.alone():
            self._lmdb.reader_check()
            size = int(self._lmdb.info()["map_size"])
            self._lmdb.set_mapsize(size + min(size, LMDB_MAP_GROWTH_BYTES_MAX))

    def map_bytes(self) -> int:
        return int(self._lmdb.info()["map_size"])

    def close(self) -> None:
        self.writer.stop()
        self.readers.shutdown(wait=True)
        self._lmdb.close()


# -- one per directory ----------------------------------------------------------------------------------------------
_registry_lock = threading.Lock()
_open_environments: dict[tuple[int, int], Environment] = {}
_inherited_environments: dict[tuple[int, int], Environment] = {}


def lease_out(directory: Path, clock: BootClock) -> Environment:
    """The environment of a directory, opened if necessary. Blocks on disk; callers must `give_back`."""
    directory = directory.absolute()
    with _registry_lock:
        identity = _identity(directory)
        if identity is not None and identity in _inherited_environments:
            _inherited_environments[identity].check_process()
        environment = _open_environments.get(identity) if identity is not None else None
        if environment is None:
            environment = Environment(directory, f"lmdb://{directory}", clock)
            identity = _identity(directory)
            assert identity is not None
            _open_environments[identity] = environment
        environment.users += 1
        return environment


def give_back(environment: Environment) -> None:
    """The last user closes the environment. Blocks until the writer thread has ended."""
    with _registry_lock:
        environment.users -= 1
        if environment.users or environment.forked:
            return
        for identity, held in list(_open_environments.items()):
            if held is environment:
                del _open_environments[identity]
        environment.close()


def _identity(directory: Path) -> tuple[int, int] | None:
    """Identity of a directory, independent of its name."""
    try:
        stat = os.stat(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return stat.st_dev, stat.st_ino


def _after_fork_in_child() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()
    for environment in _open_environments.values():
        environment.forked = True
    _inherited_environments.update(_open_environments)
    _open_environments.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def refuse_network_file_system(directory: Path, url: str) -> None:
    kind = file_system_of(directory, Path("/proc/self/mountinfo"))
    if kind in NETWORK_FILE_SYSTEMS:
        reason = f"{directory} is on {kind}; LMDB needs a local disk (use PostgreSQL or Oxia to share between machines)"
        raise MetadataMisconfigured("open", url, reason)


def file_system_of(directory: Path, mounts: Path) -> str:
    """The type of the file system that holds `directory` (which need not exist yet); "" if unknown."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    wanted, best, kind = os.path.realpath(directory), "", ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        # Spaces in a mount point are written \\040 and so on.
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields.split()[4])
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind
