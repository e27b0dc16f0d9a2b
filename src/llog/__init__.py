"""llog: a diskless Kafka in Python. A leaderless log on object storage, ordered by a metadata store."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from llog import errors as errors
from llog.errors import *  # noqa: F403  # every error class: the module imports nothing else

if TYPE_CHECKING:
    from llog.api.aio import AsyncLeaderlessLogCompactor, AsyncLeaderlessLogReader, AsyncLeaderlessLogWriter
    from llog.api.groups import AppendResult, SharedAppendGroup
    from llog.api.sync import LeaderlessLogCompactor, LeaderlessLogReader, LeaderlessLogWriter
    from llog.embedding import embedded  # for its type alone: the import contract lets this one line point upwards
    from llog.formats.partitioner import partition_of_key
    from llog.log.read.records import LogRecord
    from llog.pipeline.scan.scan import scan
    from llog.settings import Settings

try:
    __version__ = version("leaderless-log")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = [
    "AppendResult",
    "AsyncLeaderlessLogCompactor",
    "AsyncLeaderlessLogReader",
    "AsyncLeaderlessLogWriter",
    "LeaderlessLogCompactor",
    "LeaderlessLogReader",
    "LeaderlessLogWriter",
    "LogRecord",
    "Settings",
    "SharedAppendGroup",
    "__version__",
    "embedded",
    "partition_of_key",
    "scan",
]
__all__ += errors.__all__

# Imported on first use: `llog --version` and a Spark worker need none of these modules.
_HOMES = {
    "AppendResult": "llog.api.groups",
    "AsyncLeaderlessLogCompactor": "llog.api.aio",
    "AsyncLeaderlessLogReader": "llog.api.aio",
    "AsyncLeaderlessLogWriter": "llog.api.aio",
    "LeaderlessLogCompactor": "llog.api.sync",
    "LeaderlessLogReader": "llog.api.sync",
    "LeaderlessLogWriter": "llog.api.sync",
    "LogRecord": "llog.log.read.records",
    "Settings": "llog.settings",
    "SharedAppendGroup": "llog.api.groups",
    "embedded": "llog.embedding",
    "partition_of_key": "llog.formats.partitioner",
    "scan": "llog.pipeline.scan.scan",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'llog' has no attribute {name!r}")
