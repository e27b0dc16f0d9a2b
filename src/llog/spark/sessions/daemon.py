"""The parent of Python workers (`spark.python.daemon.module`): Spark's own, with slow imports done before it forks.

A worker is forked for the first task of a slot, and again when one dies; each would spend seconds importing numpy,
pyarrow, numba and llog and loading kernels. The parent does it once and freezes the heap, so that the garbage collector
of a child does not touch, and so copy, the shared pages.

Nothing starts a thread or opens a client, a loop or a store before the fork: a child would inherit locks that no thread
releases. The two libraries that start threads on import are configured not to. A failed import is printed on stderr and
left to the worker, which fails where it needs the module.
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
