"""Real servers for tests: started on a free loopback port in a temporary directory, ended by process id.

The binaries come from `make servers` (Oxia, versitygw, MinIO, Prometheus: a cache outside the checkout) or from the
system (PostgreSQL). Where one is missing, `ServerUnavailable` says why and the test skips with that reason.
Every server can be killed, paused and started again on the same port and data: that is what the system tests do.
Load tests start the same servers in a `ServerPlace` of their own, and end them by process id.
"""

from __future__ import annotations

import abc
import fcntl
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

PORT_FIRST, PORT_LAST = 11_000, 32_000
# MinIO compares its port with this default of a console that is switched off, and refuses to start.
MINIO_CONSOLE_PORT = 13_333
# Long enough for a busy machine; a start takes much less.
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0

ACCESS_KEY = "llog-test-access"
SECRET_KEY = "llog-test-secret"


class ServerUnavailable(Exception):
    """This machine cannot run that server; the message says why."""


def cache_directory() -> Path:
    """Where `make servers` puts what it builds and fetches."""
    given = os.environ.get("LLOG_SERVERS_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(given) if given else Path(user, "leaderless-log", "servers")


def binary(name: str) -> Path:
    """The newest build of `name` in the servers' cache."""
    found = sorted(cache_directory().glob(f"{name}-*/{name}"))
    if not found:
        raise ServerUnavailable(f"{name} is not built: `make servers` builds it (needs Go 1.24 or newer)")
    return found[-1]


class _Ports:
    """Ports reserved for this process: each is a locked byte of one file, so that no other test process takes the port
    between its choice and the server's start."""

    def __init__(self) -> None:
        self._pid, self._file, self._given = -1, -1, set[int]()

    def take(self, port: int) -> bool:
        if port == MINIO_CONSOLE_PORT:
            return False
        if self._pid != os.getpid():  # a lock does not pass to a forked child
            path = Path(tempfile.gettempdir()) / f"llog-test-ports-{os.getuid()}"
            self._pid, self._file = os.getpid(), os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._given = set()
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        if port in self._given:  # one's own lock is no obstacle
            return False
        self._given.add(port)
        return True


_ports = _Ports()


def free_port() -> int:
    """A free port, below the range from which the system gives ports to outgoing connections: one from
    that range may be taken again between here and the server's start."""
    while True:
        port = random.SystemRandom().randrange(PORT_FIRST, PORT_LAST)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        if _ports.take(port):
            return port


def wait_until(what: str, ready: Callable[[], bool], seconds: float = START_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not ready within {seconds:.0f} s")
        time.sleep(0.02)


def port_open(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def is_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


class ServerProcess:
    """One child process that can be killed, paused and started again with the same command line."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: Path | None = None,
        own_session: bool = False,
    ) -> None:
        """`own_session`: Ctrl-C at the terminal does not reach it, and it outlives the process that started it."""
        self.args, self.log, self.user, self.cwd, self.own_session = list(args), log, user, cwd, own_session
        self.env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        assert not self.running, "already running"
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                self.args,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                user=self.user,
                cwd=self.cwd,
                start_new_session=self.own_session,
            )

    def wait_ready(self, what: str, ready: Callable[[], bool], seconds: float = START_SECONDS_MAX) -> None:
        def ready_or_dead() -> bool:
            if not self.running:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{what} ended while starting; its log ends with:\n{tail}")
            return ready()

        try:
            wait_until(what, ready_or_dead, seconds)
        except TimeoutError as error:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise TimeoutError(f"{error}; its log ends with:\n{tail}") from None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._end(how)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._child is None or self._child.poll() is not None:
            return
        self._child.send_signal(how)
        if how != signal.SIGKILL:
            self._child.send_signal(signal.SIGCONT)  # a paused process does not see SIGTERM
        try:
            self._child.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class ServerPlace(NamedTuple):
    """Where a server keeps its data and writes its logs, instead of a temporary directory; its processes then live in
    sessions of their own."""

    data: Path
    logs: Path


class Server(abc.ABC):
    """A server under test: `with OxiaServer() as server: …`."""

    def __init__(self, place: ServerPlace | None = None) -> None:
        self.placed = place is not None
        if place is None:
            self.directory = self.logs = Path(tempfile.mkdtemp(prefix="llog-server-"))
        else:
            self.directory, self.logs = place
            self.directory.mkdir(parents=True, exist_ok=True)

    def log_of(self, name: str) -> Path:
        """Where a process writes its log: `log` where the server is alone in a temporary directory."""
        return self.logs / (f"{name}.log" if self.placed else "log")

    @property
    def processes(self) -> Mapping[str, ServerProcess]:
        """All processes of the server by name."""
        return {}

    @abc.abstractmethod
    def start(self) -> None: ...

    @abc.abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


class OxiaServer(Server):
    """Oxia standalone: one process, `shards` shards."""

    def __init__(self, *, shards: int = 1, sync: bool = True, place: ServerPlace | None = None) -> None:
        program = str(binary("oxia"))
        super().__init__(place)
        self.port, self._metrics_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        args = [program, "standalone", "-p", self.address, "-m", f"127.0.0.1:{self._metrics_port}"]
        args += ["--data-dir", str(self.directory / "db"), "--wal-dir", str(self.directory / "wal")]
        args += ["--shards", str(shards)] + ([] if sync else ["--wal-sync-data=false"])
        self.process = ServerProcess(args, log=self.log_of("oxia"), own_session=self.placed)

    @property
    def processes(self) -> Mapping[str, ServerProcess]:
        return {"oxia": self.process}

    def start(self) -> None:
        self.process.start()
        # The second port comes last: where it is taken, the server ends after it has served the first.
        self.process.wait_ready("oxia", lambda: port_open(self.port) and port_open(self._metrics_port))

    def stop(self) -> None:
        self.process.stop()


class OxiaCluster(Server):
    """Three Oxia data servers and a coordinator."""

    def __init__(self, *, shards: int = 3, nodes: int = 3, place: ServerPlace | None = None) -> None:
        self.program = str(binary("oxia"))
        super().__init__(place)
        self.public = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]
        self.internal = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]
        self.nodes: list[ServerProcess] = []
        for i, (public, internal) in enumerate(zip(self.public, self.internal, strict=True)):
            args = [self.program, "server", "-p", public, "-i", internal, "-m", f"127.0.0.1:{free_port()}"]
            args += ["--data-dir", str(self.directory / f"db{i}"), "--wal-dir", str(self.directory / f"wal{i}")]
            log = self.log_of(f"oxia-node-{i}") if self.placed else self.directory / f"log{i}"
            self.nodes.append(ServerProcess(args, log=log, own_session=self.placed))
        servers = "".join(
            f"  - public: {public}\n    internal: {internal}\n"
            for public, internal in zip(self.public, self.internal, strict=True)
        )
        config = self.directory / "cluster.yaml"
        config.write_text(
            f"namespaces:\n  - name: default\n    initialShardCount: {shards}\n    replicationFactor: {nodes}\n"
            f"servers:\n{servers}"
        )
        args = [self.program, "coordinator", "-f", str(config), "-i", f"127.0.0.1:{free_port()}"]
        args += ["-m", f"127.0.0.1:{free_port()}", "--metadata", "file"]
        args += ["--file-clusters-status-path", str(self.directory / "status.json")]
        log = self.log_of("oxia-coordinator") if self.placed else self.directory / "coordinator-log"
        self.coordinator = ServerProcess(args, log=log, own_session=self.placed)
        self.address = self.public[0]

    @property
    def processes(self) -> Mapping[str, ServerProcess]:
        return {f"oxia-node-{i}": node for i, node in enumerate(self.nodes)} | {"oxia-coordinator": self.coordinator}

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node, internal in zip(self.nodes, self.internal, strict=True):
            node.wait_ready("oxia node", lambda internal=internal: self._healthy(internal))  # type: ignore[misc]
        self.coordinator.start()

    def _healthy(self, internal: str) -> bool:
        host, port = internal.split(":")
        command = [self.program, "health", "--host", host, "--port", port]
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0

    def node_at(self, address: str) -> ServerProcess:
        """The process that serves clients at `address`."""
        return self.nodes[self.public.index(address)]

    def stop(self) -> None:
        for process in [self.coordinator, *self.nodes]:
            process.kill()


class S3Server(Server):
    """An S3 server with one empty bucket, `llog-test`."""

    bucket = "llog-test"
    name: str
    port: int
    process: ServerProcess

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def processes(self) -> Mapping[str, ServerProcess]:
        return {self.name: self.process}

    def start(self) -> None:
        # Both servers take a directory below their root for a bucket.
        (self.directory / "data" / self.bucket).mkdir(parents=True, exist_ok=True)
        self.process.start()
        self.process.wait_ready(self.name, lambda: port_open(self.port))

    def stop(self) -> None:
        # versitygw would wait 10 s for idle connections; a test's data need not survive.
        self.process.kill()


class VersityGateway(S3Server):
    name = "versitygw"

    def __init__(self, *, place: ServerPlace | None = None) -> None:
        program = str(binary("versitygw"))
        super().__init__(place)
        self.port = free_port()
        args = [program, "--port", f"127.0.0.1:{self.port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--quiet"]
        # Without --disableotmp, listings show the gateway's own temporary files.
        args += ["--keep-alive", "posix", "--disableotmp", str(self.directory / "data")]
        self.process = ServerProcess(args, log=self.log_of(self.name), own_session=self.placed)


class Minio(S3Server):
    name = "minio"

    def __init__(self, *, place: ServerPlace | None = None) -> None:
        program = str(binary("minio"))
        super().__init__(place)
        self.port = free_port()
        args = [program, "server", "--quiet", "--address", f"127.0.0.1:{self.port}"]
        args += ["--console-address", f"127.0.0.1:{free_port()}", str(self.directory / "data")]
        env = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
        env |= {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
        self.process = ServerProcess(args, log=self.log_of(self.name), env=env, own_session=self.placed)

    def start(self) -> None:
        super().start()
        self.process.wait_ready("minio", lambda: is_ok(f"{self.endpoint}/minio/health/ready"))


class PostgresServer(Server):
    """PostgreSQL on a loopback port; runs as an unprivileged user when the tests run as root (it refuses root)."""

    def __init__(self, *, place: ServerPlace | None = None) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
        program = str(found[-1]) if found else shutil.which("postgres")
        if program is None:
            raise ServerUnavailable("PostgreSQL is not installed (package postgresql)")
        self.bin = Path(program).resolve().parent if not found else found[-1].parent
        self.user: str | None = None
        if os.geteuid() == 0:
            for candidate in ("postgres", "nobody"):
                try:
                    pwd.getpwnam(candidate)
                    self.user = candidate
                    break
                except KeyError:
                    continue
            if self.user is None:
                raise ServerUnavailable("PostgreSQL refuses to run as root and there is no user postgres or nobody")
        super().__init__(place)
        self.port = free_port()
        self.data = self.directory / "data"
        self.url = f"postgresql://llog@127.0.0.1:{self.port}/postgres"
        args = [str(self.bin / "postgres"), "-D", str(self.data), "-p", str(self.port), "-h", "127.0.0.1"]
        # The path of a Unix socket is short; a load test's directory may be deep.
        args += ["-k", "" if self.placed else str(self.directory), "-c", "fsync=on"]
        self.process = ServerProcess(
            args, log=self.log_of("postgresql"), user=self.user, cwd=self.directory, own_session=self.placed
        )

    @property
    def processes(self) -> Mapping[str, ServerProcess]:
        return {"postgresql": self.process}

    def start(self) -> None:
        if not self.data.exists():
            self.directory.chmod(0o755)
            self.data.mkdir()
            if self.user is not None:
                shutil.chown(self.directory, self.user)
                shutil.chown(self.data, self.user)
            self.data.chmod(0o700)
            command = [str(self.bin / "initdb"), "-D", str(self.data), "-U", "llog", "-A", "trust", "-E", "UTF8"]
            subprocess.run(
                [*command, "--locale=C"], check=True, capture_output=True, user=self.user, cwd=self.directory
            )
        self.process.start()
        check = [str(self.bin / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        self.process.wait_ready("postgres", lambda: subprocess.run(check, check=False, timeout=10).returncode == 0)

    def stop(self) -> None:
        self.process.stop(signal.SIGINT)  # "fast" shutdown: does not wait for clients


def prometheus_program() -> Path:
    """Its own tool, promtool, lies beside it."""
    installed = shutil.which("prometheus")
    if installed is not None:
        return Path(installed)
    try:
        return binary("prometheus")
    except ServerUnavailable:
        reason = "Prometheus is not installed: `make servers` fetches it (package prometheus, by apt)"
        raise ServerUnavailable(reason) from None


class PrometheusServer(Server):
    """Prometheus that scrapes `targets` (`host:port`, at `path`) every `interval_ms`, by the rules in `rules`."""

    def __init__(
        self,
        targets: Sequence[str],
        *,
        path: str = "/metrics/prometheus",
        interval_ms: int = 1_000,
        rules: Path | None = None,
    ) -> None:
        program = str(prometheus_program())
        super().__init__()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        interval = f"{interval_ms}ms"
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [] if rules is None else [str(rules.resolve())],
            "scrape_configs": [
                {"job_name": "llog", "metrics_path": path, "static_configs": [{"targets": list(targets)}]}
            ],
        }
        # JSON is YAML too.
        (self.directory / "prometheus.yml").write_text(json.dumps(config))
        args = [program, f"--config.file={self.directory / 'prometheus.yml'}"]
        args += [f"--storage.tsdb.path={self.directory / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        self.process = ServerProcess(args, log=self.directory / "log")

    def start(self) -> None:
        self.process.start()
        self.process.wait_ready("prometheus", lambda: is_ok(f"{self.url}/-/ready"))

    def stop(self) -> None:
        self.process.kill()  # a test's data need not survive
