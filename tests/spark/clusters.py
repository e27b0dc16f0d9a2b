"""Clusters for the programs that `test_cluster` starts: the one that Spark keeps in the driver's own processes, and a
standalone master with workers, which are processes of their own.

    with cluster_here() as cluster:            # of the kind that the environment names
        llog.spark.session(settings, master=cluster.master)

Both have two executors of one core. What must stay true: a standalone worker's environment, which its executors
inherit, holds the keys of the object store and says nothing of any other server; everything listens on this machine
alone, and ends with the program.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from llog.spark.sessions.java import find_java
from llog.testing.servers import Server, ServerProcess, free_port, port_open
from tests.spark.cluster_stage import BUCKET, ENDPOINT, METADATA_URL
from tests.spark.cluster_watch import executors_of

KIND: Final = "TEST_CLUSTER_KIND"
LOCAL_CLUSTER: Final = "local-cluster"
STANDALONE: Final = "standalone"
EXECUTORS: Final = 2
MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"
START_SECONDS_MAX: Final = 120.0
_NOT_FOR_EXECUTORS: Final = frozenset({METADATA_URL, BUCKET, ENDPOINT})


class Cluster(Protocol):
    @property
    def master(self) -> str: ...

    def executors(self) -> set[int]:
        """Their processes."""

    def lose(self, executor: int) -> None:
        """Kill -9, so that this executor is gone; another takes its place."""


class InTheDriver:
    """`local-cluster`: Spark starts another executor by itself."""

    master = f"local-cluster[{EXECUTORS},1,1024]"

    def executors(self) -> set[int]:
        return executors_of(os.getpid())

    def lose(self, executor: int) -> None:
        os.kill(executor, signal.SIGKILL)


class Standalone(Server):
    """A master and its workers, as they come with pyspark."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, workers: int = EXECUTORS) -> None:
        super().__init__()
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self._environ = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", **_java(), **(environ or {})}
        self._main = self._process("master", MASTER_CLASS, "--port", str(self.port))
        self._workers = [self._worker(number) for number in range(workers)]

    def start(self) -> None:
        self._main.start()
        self._main.wait_ready("Spark master", lambda: port_open(self.port), START_SECONDS_MAX)
        for worker in self._workers:
            worker.start()
        for number, worker in enumerate(self._workers, 1):
            worker.wait_ready("Spark worker", lambda known=number: self._known() >= known, START_SECONDS_MAX)  # type: ignore[misc]

    def stop(self) -> None:
        for process in (*self._workers, self._main):
            process.stop()

    def executors(self) -> set[int]:
        return executors_of(os.getpid())

    def lose(self, executor: int) -> None:
        """Its worker, that is: an executor ends when nobody looks after it any more."""
        import psutil

        parent = psutil.Process(executor).ppid()
        [worker] = [worker for worker in self._workers if worker.running and worker.pid == parent]
        worker.kill()
        another = self._worker(len(self._workers))
        self._workers.append(another)
        another.start()

    def _known(self) -> int:
        return self._main.log.read_text(errors="replace").count(" Registering worker ")

    def _worker(self, number: int) -> ServerProcess:
        place = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / f"work-{number}"), self.master]
        return self._process(f"worker-{number}", WORKER_CLASS, "--port", "0", *place)

    def _process(self, name: str, main_class: str, *arguments: str) -> ServerProcess:
        import pyspark

        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(program), main_class, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        process = ServerProcess(command, log=self.directory / f"{name}.log", env=self._environ, cwd=self.directory)
        process.env = {key: value for key, value in process.env.items() if key not in _NOT_FOR_EXECUTORS}
        return process


def _java() -> dict[str, str]:
    home = find_java().home(os.environ)
    return {} if home is None else {"JAVA_HOME": home}


def environment_of(kind: str) -> dict[str, str]:
    """For the program. Of a cluster that is not the driver's own it must say which Python, and which address, are
    meant: executors are elsewhere."""
    elsewhere = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {KIND: kind, **(elsewhere if kind == STANDALONE else {})}


@contextmanager
def cluster_here() -> Iterator[Cluster]:
    if os.environ[KIND] == LOCAL_CLUSTER:
        yield InTheDriver()
        return
    with Standalone() as cluster:
        yield cluster
