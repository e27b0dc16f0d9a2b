"""The parent of Python workers (`spark.python.daemon.module`): Spark's own, with the slow imports done before it forks.

Why it exists: a worker is forked for the first task of a slot, and again whenever one died; each would spend seconds on
importing numpy, pyarrow, numba and llog and on loading kernels. Here that is done once, and the heap is frozen so that
the collector of a child does not touch (and so copy) the pages it shares.

What must stay true: nothing starts a thread and nothing opens a client, a loop or a store before the fork: a child
would inherit locks that nobody releases. So the two libraries that start threads when they are imported are told not
to. What cannot be imported is told on stderr and left to the worker, which fails by name where it is used.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import redirect_stdout
from typing import Final

from llog.spark.sessions.quiet import quiet_worker

# Read when the libraries are loaded: OpenBLAS makes threads for products of matrices, jemalloc one to give back pages.
SINGLE_THREADED: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
PRELOADED: Final = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "msgspec",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "llog.formats.arrow",
    "llog.formats.records.batch_kernels",
    "llog.formats.records.decode_kernels",
    "llog.formats.records.encode_kernels",
    "llog.formats.segment",
    "llog.formats.shared_blob",
    "llog.formats.warm_up",
    # Tasks: those that every worker meets sooner or later. The others take 10 to 40 ms of their first worker's time.
    "llog.pipeline.compact.task",
    "llog.pipeline.sink.task",
    "llog.pipeline.runtime.tasks",
    "llog.spark.source.worker",
    "llog.spark.runner.task_source",
    "llog.spark.runner.worker",
    "llog.spark.sink.writer",
    "llog.stores.objects.file",
    "llog.stores.objects.s3",
    "llog.wiring",
)

loaded_by: int | None = None
"""The process that imported them; a worker finds its parent's number here."""


def preload() -> list[str]:
    """Import what workers need, and load every kernel's machine code; returns what could not be, with its error."""
    global loaded_by
    for variable, value in SINGLE_THREADED.items():
        os.environ.setdefault(variable, value)
    missing = []
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing.append(f"{name}: {error}")
    try:
        importlib.import_module("llog.formats.warm_up").warm_up()
    except Exception as error:
        missing.append(f"kernels: {error}")
    loaded_by = os.getpid()
    return missing


def main() -> None:
    from pyspark import daemon as sparks_own

    # Spark reads the port from stdout: nothing else may be written there.
    with redirect_stdout(sys.stderr):
        for line in preload():
            print(f"llog: not loaded before the workers fork: {line}")
    gc.collect()
    gc.freeze()
    sparks_own.worker = quiet_worker(sparks_own.worker)  # type: ignore[assignment]
    sparks_own.manager()


if __name__ == "__main__":
    # The module Spark runs is `__main__`; workers look the number up in the module of the right name.
    from llog.spark.sessions import daemon

    daemon.main()
