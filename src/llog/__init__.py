"""llog: a diskless Kafka in Python. A leaderless log on object storage, ordered by a metadata store."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("leaderless-log")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
