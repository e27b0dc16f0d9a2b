"""`python -m tests.benchmarks.paths [produce] [consume] [compact]`: which source files a request or a job runs through.

A file counts when one of its functions is called between the first byte of the request and the last byte of the
answer, in every one of several repetitions; what only some of them meet (a timer, a metrics refresh) does not belong
to the path. For a compaction round on Spark, the driver's and the Python workers' files count together.
docs/architecture.md lists the three paths; fewer files mean fewer places to read when one of them misbehaves.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import llog

REPETITIONS = 5
_SOURCE = str(Path(llog.__file__).parent) + os.sep
_OPTIMIZED = 0x1
"""The flag of a function's code; bodies of modules and classes, which run at import, do not carry it."""

# Runs in every Python process that Spark starts: appends the name of each source file whose function is called.
_WORKER_RECORDER = """
import os, sys, threading
_out, _source, _seen = os.environ.get("PATHS_OUT"), os.environ.get("PATHS_SOURCE"), set()
def _record(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and code.co_filename.startswith(_source):
        if code.co_filename not in _seen and os.path.exists(_out + ".on"):
            _seen.add(code.co_filename)
            with open(_out, "a") as out:
                out.write(code.co_filename + chr(10))
if _out:
    threading.setprofile(_record)
    sys.setprofile(_record)
"""


class PathRecorder:
    """Records the source files whose functions run in any thread that starts after `install`."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._recording = False

    def install(self) -> None:
        threading.setprofile(self._profile)

    def record(self, operation: Callable[[], object]) -> set[str]:
        """Run `operation` and return the files it visited, relative to the package."""
        self._files = set()
        self._recording = True
        sys.setprofile(self._profile)
        try:
            operation()
        finally:
            sys.setprofile(None)
            self._recording = False
        return {name.removeprefix(_SOURCE) for name in self._files}

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._recording and event == "call":
            code = frame.f_code
            if code.co_flags & _OPTIMIZED and code.co_filename.startswith(_SOURCE):
                self._files.add(code.co_filename)


def _post(url: str, path: str, body: dict[str, object]) -> dict[str, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        decoded: dict[str, Any] = json.loads(data)
        return decoded
    finally:
        connection.close()


def _produce_body(partition: int) -> dict[str, object]:
    records = [f"record {number}" for number in range(20)]
    return {"topic_partitions": [{"topic": "paths", "partition": partition, "records": records}]}


def _consume_body(partition: int) -> dict[str, object]:
    return {"topic_partitions": [{"topic": "paths", "partition": partition, "fetch_offset": 1}], "max_wait_ms": 0}


def _common(recordings: list[set[str]]) -> list[str]:
    return sorted(set.intersection(*recordings))


def _compile_kernels() -> None:
    """Before anything is recorded: compiling takes minutes under a profiler."""
    threading.setprofile(None)
    with llog.embedded() as broker:
        _post(broker.url, "/produce", _produce_body(0))
        _post(broker.url, "/consume", _consume_body(0))


def produce_path() -> list[str]:
    """From socket to acknowledgement of an HTTP produce to a log that the broker knows."""
    _compile_kernels()
    recorder = PathRecorder()
    recorder.install()
    with llog.embedded() as broker:
        for _ in range(3):
            _post(broker.url, "/produce", _produce_body(0))
        return _common(
            [recorder.record(lambda: _post(broker.url, "/produce", _produce_body(0))) for _ in range(REPETITIONS)]
        )


def consume_path() -> list[str]:
    """An HTTP consume of records that are in no cache of the broker."""
    _compile_kernels()
    with tempfile.TemporaryDirectory() as directory:
        with llog.embedded(directory) as writer:
            for partition in range(REPETITIONS + 1):
                _post(writer.url, "/produce", _produce_body(partition))
        recorder = PathRecorder()
        recorder.install()

        def consume(partition: int) -> None:
            answer = _post(broker.url, "/consume", _consume_body(partition))
            assert "record 19" in json.dumps(answer)

        with llog.embedded(directory) as broker:
            consume(0)
            return _common(
                [recorder.record(lambda p=partition: consume(p)) for partition in range(1, REPETITIONS + 1)]  # type: ignore[misc]
            )


def compact_path() -> list[str]:
    """A compaction round whose tasks run on Spark: the driver's files and the workers'."""
    with tempfile.TemporaryDirectory() as directory:
        stores = {"metadata_url": f"lmdb://{directory}/metadata", "objects_url": f"file://{directory}/objects"}
        out = Path(directory, "worker-files")
        Path(directory, "sitecustomize.py").write_text(_WORKER_RECORDER)
        paths = os.pathsep.join([directory, str(Path(llog.__file__).parent.parent)])
        os.environ.update(PATHS_OUT=str(out), PATHS_SOURCE=_SOURCE, PYTHONPATH=paths)
        from llog import spark
        from llog.settings import Settings
        from llog.spark import jobs

        recorder = PathRecorder()
        recorder.install()
        settings = Settings.from_env({}, **stores)

        def fill() -> None:
            with llog.LeaderlessLogWriter(settings) as writer:
                for number in range(4):
                    writer.append_shared(
                        [llog.SharedAppendGroup("paths", partition, [f"{number}"]) for partition in range(4)]
                    )

        session = spark.session()
        fill()
        jobs.compact("paths", spark=session, settings=settings)
        recordings = []
        for _ in range(2):
            fill()
            Path(f"{out}.on").touch()
            driver = recorder.record(lambda: jobs.compact("paths", spark=session, settings=settings))
            Path(f"{out}.on").unlink()
            recordings.append(driver)
        workers = {name.removeprefix(_SOURCE) for name in out.read_text().split("\n") if name}
        session.stop()
        assert workers, "no worker recorded anything"
        return sorted(set.intersection(*recordings) | workers)


PATHS: dict[str, Callable[[], list[str]]] = {
    "produce": produce_path,
    "consume": consume_path,
    "compact": compact_path,
}


def main() -> int:
    for name in sys.argv[1:] or PATHS:
        files = PATHS[name]()
        adapters = sum(file.startswith("stores/") for file in files)
        print(f"{name}: {len(files)} files, {len(files) - adapters} of them above the stores")
        for file in files:
            print(f"  {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
