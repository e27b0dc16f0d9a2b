"""One long-lived Spark session per process, configured for Python workers.

    spark = llog.spark.session()                             # LLOG_SPARK_MASTER, else all cores of this machine
    spark = llog.spark.session(master="sc://host:15002")     # a Spark Connect server

Starting a session takes seconds, a small job on a running one tens of milliseconds; so there is one per process. A
session that the program created is used unchanged. (The function is `llog.spark.session`; a module of that name would
hide it.)

A process never starts two sessions. A request that the running session cannot satisfy is an error. No port is open to
other machines unless the master is a cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llog.errors import InvalidArgument, SparkJobFailed, SparkNotInstalled, SparkSessionFailed
from llog.limits import MIB
from llog.pipeline.compact.plan import Resize, Sizing
from llog.settings import Settings
from llog.settings.urls import mask_url
from llog.spark.sessions.java import find_java
from llog.spark.sessions.launch import Launch, forget_dead_jvm, reason_in
from llog.spark.sessions.preflight import CONNECT, VARIABLE, check_master, cluster_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One Arrow batch between Spark and a Python worker, either way.
SPARK_ARROW_BATCH_BYTES_MAX: Final = 4 * MIB

APP_NAME: Final = "llog"
CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""pyspark sets it in the environment of a process that uses Connect sessions."""
PYSPARK_MIN: Final = (4, 3)

SQL_CONFIG: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(SPARK_ARROW_BATCH_BYTES_MAX),
}
"""May be set on a session of either kind while it runs."""

# Arrow's Java code compares every access to a column with the column's bounds and its nulls. What it reads here was
# written by our own workers, and Spark asks for nulls itself.
_ARROW_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

STATIC_CONFIG: Final[Mapping[str, str]] = {
    # Spark puts these before options from elsewhere.
    "spark.driver.defaultJavaOptions": _ARROW_UNCHECKED,
    "spark.executor.defaultJavaOptions": _ARROW_UNCHECKED,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "llog.spark.sessions.daemon",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.scheduler.mode": "FAIR",
    # A stream's two commits per batch take 22 ms each with it, 55 with the default one (a local disk).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Fixed when the session starts."""

LOCAL_CONFIG: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For masters on this machine."""

_starting: Final = threading.Lock()


def running_or_new(
    settings: Settings | None = None,
    *,
    master: str | None = None,
    app_name: str = APP_NAME,
    config: Mapping[str, str] | None = None,
    launch: Launch | None = None,
) -> SparkSession:
    """This process's session, started if there is none. `config` is Spark's own and overrides ours. With
    `launch` another thread can end the JVM being started."""
    with _starting:
        running = running_session()
        if running is not None:
            return _checked(running, master, config or {})
        settings = Settings.from_env() if settings is None else settings
        launch = Launch() if launch is None else launch
        return _start(master or settings.spark_master, app_name, config or {}, launch)


async def started_in_background(settings: Settings, *, master: str | None = None) -> SparkSession:
    """As `running_or_new`, without blocking the event loop. Cancellation ends the JVM being launched; neither caller
    nor process exit waits for it (it starts in a daemon thread)."""
    loop, launch = asyncio.get_running_loop(), Launch()
    started: asyncio.Future[SparkSession] = loop.create_future()

    def settle(session: SparkSession | None, error: BaseException | None) -> None:
        if started.done():
            return  # given up
        if error is not None:
            started.set_exception(error)
        elif session is not None:
            started.set_result(session)

    def start() -> None:
        session, failed = None, None
        try:
            session = running_or_new(settings, master=master, launch=launch)
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed: it was given up
            loop.call_soon_threadsafe(settle, session, failed)

    threading.Thread(target=start, name="llog-spark-start", daemon=True).start()
    try:
        return await started
    except asyncio.CancelledError:
        await asyncio.to_thread(launch.end)
        raise


def running_session() -> SparkSession | None:
    """The session of this process, of any origin."""
    spark_session = _session_class()
    forget_dead_jvm()
    if CONNECT_MODE in os.environ:
        # One that another thread made counts too; and a server in this process has a session that is not ours.
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        return ConnectSession.getActiveSession() or ConnectSession._get_default_session()  # type: ignore[return-value]
    # First the one that was made first: others of its context (`newSession`) may be the active one of a thread.
    classic: SparkSession | None = getattr(spark_session, "_instantiatedSession", None)
    context = None if classic is None else getattr(classic, "_sc", None)
    if context is not None and context._jsc is not None:
        return classic
    return spark_session.getActiveSession()


def make_active(spark: SparkSession) -> None:
    """In this thread. A classic session looks up the source of a write in the session that is active in the thread, not
    in its own."""
    if not is_connect(spark):
        kind = type(spark)
        kind._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@contextmanager
def own_interpreter(spark: SparkSession) -> Iterator[None]:
    """Data sources registered in this block run in this process's Python, if the session is local and PYSPARK_PYTHON is
    not set. Spark would take `python3` of the PATH, which has no llog if the environment is not activated."""
    if is_connect(spark) or not is_local(master_of(spark)) or "PYSPARK_PYTHON" in os.environ:
        yield
        return
    context = spark.sparkContext
    before, context.pythonExec = context.pythonExec, sys.executable
    try:
        yield
    finally:
        context.pythonExec = before


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def master_of(spark: SparkSession) -> str:
    """Where its tasks run; a Connect session knows only its server's answer."""
    return str(spark.conf.get("spark.master", "")) if is_connect(spark) else str(spark.sparkContext.master)


def warm_config(master: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a session on `master` is started with."""
    if master.startswith(CONNECT):
        return dict(SQL_CONFIG)
    config = {**SQL_CONFIG, **STATIC_CONFIG}
    if is_local(master):
        config |= LOCAL_CONFIG
        # Two tasks per core: Spark's 200 are 200 state stores per batch of a stream.
        config["spark.sql.shuffle.partitions"] = str(2 * local_cores(master))
        config["spark.pyspark.python"] = environ.get("PYSPARK_PYTHON") or sys.executable
    if not _has_log_config(environ):
        log_config = resources.files("llog.spark.sessions") / "log4j2.properties"
        # In quotation marks: the options are split at spaces, which a path may hold.
        config["spark.driver.defaultJavaOptions"] += f' "-Dlog4j2.configurationFile={log_config}"'
    return config


def _has_log_config(environ: Mapping[str, str]) -> bool:
    """An operator's own, beside Spark's settings."""
    directory = environ.get("SPARK_CONF_DIR")
    return bool(directory) and any(Path(directory or "").glob("log4j2*.*"))


def is_local(master: str) -> bool:
    return master == "local" or master.startswith(("local[", "local-cluster["))


def local_cores(master: str) -> int:
    numbers = re.findall(r"\d+", master)
    if master.startswith("local-cluster"):
        return int(numbers[0]) * int(numbers[1])
    if master.startswith("local[*"):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(numbers[0]) if numbers else 1


def _session_class() -> type[SparkSession]:
    try:
        from pyspark import __version__
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkNotInstalled(str(error)) from error
    if tuple(int(part) for part in re.findall(r"\d+", __version__)[:2]) < PYSPARK_MIN:
        raise SparkNotInstalled(f"pyspark {__version__} is older than {'.'.join(map(str, PYSPARK_MIN))}")
    return SparkSession


def _start(master: str, app_name: str, config: Mapping[str, str], launch: Launch) -> SparkSession:
    builder = _session_class().builder.appName(app_name)
    check_master(master)
    if master.startswith(CONNECT):
        builder = builder.remote(master)
    else:
        prepare_environment(master)
        builder = builder.master(master)
    for name, value in {**warm_config(master, os.environ), **config}.items():
        builder = builder.config(name, value)
    try:
        with launch.noted():
            return builder.getOrCreate()
    except Exception as error:
        reason = "; ".join(filter(None, [reason_in(str(error)) or type(error).__name__, launch.ending]))
        launch.end()  # or the next start would be in this JVM, whatever was mended since: its memory is what it is
        forget_dead_jvm()
        raise SparkSessionFailed(mask_url(master), reason) from error


def prepare_environment(master: str) -> None:
    """What Spark's scripts, and the processes they start, read. Also for programs that make their own session."""
    java_home = find_java().home(os.environ)
    if java_home is not None:
        os.environ["JAVA_HOME"] = java_home
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ[VARIABLE] = cluster_python(os.environ)


def _checked(spark: SparkSession, master: str | None, config: Mapping[str, str]) -> SparkSession:
    running = master_of(spark)
    # Of a Connect session's server only the master behind it is known.
    same = master is None or (is_connect(spark) if master.startswith(CONNECT) else master == running)
    if not same:
        raise InvalidArgument("master", f"this process has a session on {running}: stop it first, or use it unchanged")
    for name, value in config.items():
        if spark.conf.get(name, None) == value:
            continue
        if not spark.conf.isModifiable(name):
            raise InvalidArgument(f"config {name}", "can only be set when a session starts, and there is one already")
        spark.conf.set(name, value)
    return spark


# -- executors --------------------------------------------------------------------------------------------------------

# A job that waits for an executor: how often it checks, when it warns, and when it fails. A scheduler that starts
# machines first needs minutes.
SPARK_STARVED_POLL_MS: Final = 5_000
SPARK_STARVED_WARN_MS: Final = 20_000
SPARK_STARVED_MS_MAX: Final = 300_000

_log: Final = logging.getLogger("llog.spark")
Count = Callable[[], int]
Sleep = Callable[[float], Awaitable[object]]


def count_of(spark: SparkSession) -> Count | None:
    """A function that counts executors; None on Connect, which cannot count them, and on local masters."""
    if is_connect(spark):
        return None
    master = master_of(spark)
    if master == "local" or master.startswith("local["):
        return None  # the driver itself
    context = spark.sparkContext
    # One of them is the driver.
    return lambda: int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


async def until_starved(count: Count, master: str, place: str, *, sleep: Sleep = asyncio.sleep) -> SparkJobFailed:
    """Returns the error to raise after SPARK_STARVED_MS_MAX in a row without an executor."""
    without_ms, warned = 0, False
    why = f"{master} has no executor for it: are there workers with free cores and memory?"
    while without_ms < SPARK_STARVED_MS_MAX:
        await sleep(SPARK_STARVED_POLL_MS / 1_000)
        if await asyncio.to_thread(count) > 0:
            without_ms, warned = 0, False
            continue
        without_ms += SPARK_STARVED_POLL_MS
        if without_ms >= SPARK_STARVED_WARN_MS and not warned:
            warned = True
            _log.warning("the Spark job of %s waits: %s", place, why)
    return SparkJobFailed(place, f"{why} None came within {SPARK_STARVED_MS_MAX // 1_000} s")


# -- task sizes --------------------------------------------------------------------------------------------------------

COMPACT_CORES_UNKNOWN: Final = 4
"""Assumed where the session does not say how many cores it has."""


def sizing_of(spark: SparkSession) -> Sizing:
    """Windows for the cores that the session has now; a Connect server does not report its cores, and a cluster may not
    have granted any yet."""
    if is_connect(spark):
        return Sizing(COMPACT_CORES_UNKNOWN)
    cores = int(spark.sparkContext.defaultParallelism)
    return Sizing(max(cores, COMPACT_CORES_UNKNOWN) if count_of(spark) is not None else cores)


def resize_of(spark: SparkSession) -> Resize | None:
    """Executors of a cluster come after the session, and may come and go; a machine's cores stay."""
    if count_of(spark) is None:
        return None

    async def resize() -> Sizing:
        try:
            return await asyncio.to_thread(sizing_of, spark)
        except Exception:  # a session that is gone: the job fails, and says why
            return Sizing(COMPACT_CORES_UNKNOWN)

    return resize
