"""pyiceberg's metadata files: durable on a local disk, and one request per file on S3.

A catalogue in a database keeps its commits through a power cut, so the files that a commit names must be on disk before
it; pyarrow's local file system does not ensure that. pyarrow's S3 file system takes three requests for a small file
unless it delays opening the file. A catalogue's property `py-io-impl` names this class.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

IMPLEMENTATION = f"{__name__}.DurableFileIO"
_DELAYED = "allow_delayed_open"


class DurableFileIO(PyArrowFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        if scheme in ("s3", "s3a", "s3n"):
            return PyArrowFile(fs=_delayed_open(self.fs_by_scheme(scheme, host)), location=location, path=path)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(fs=self.fs_by_scheme(scheme, host), location=location, path=path)


def _delayed_open(files: Any) -> Any:
    """The same file system, with one request per small file if this version of pyarrow supports it."""
    make, [options] = files.__reduce__()
    return make({**options, _DELAYED: True}) if _DELAYED in options else files


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return _DurableStream(super().create(overwrite), self._path)


class _DurableStream:
    """A stream with a `close` that returns once the file and its directory entry are on disk."""

    def __init__(self, inner: Any, path: str) -> None:
        self._inner, self._path = inner, path

    def write(self, data: bytes) -> int:
        written: int = self._inner.write(data)
        return written

    def tell(self) -> int:
        position: int = self._inner.tell()
        return position

    def close(self) -> None:
        if self._inner.closed:
            return
        self._inner.close()
        directory = os.path.dirname(self._path)
        # The parent directory too, because the first file of a table creates the directory.
        for path in (self._path, directory, os.path.dirname(directory)):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @property
    def closed(self) -> bool:
        return bool(self._inner.closed)

    def flush(self) -> None:
        self._inner.flush()

    def __enter__(self) -> _DurableStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
