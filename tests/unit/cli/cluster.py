"""A small cluster in a directory, and the command line on it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llog.api.aio import AsyncLeaderlessLogCompactor, AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.settings import Settings
from tests.unit.cli.test_commands import llog


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = Settings.from_env(
            {}, metadata_url=f"lmdb://{directory}/metadata", objects_url=f"file://{directory}/objects"
        )

    def run(self, *arguments: str, metadata: str | None = None) -> Any:
        environ = {
            "LLOG_METADATA_URL": metadata or self.settings.metadata_url,
            "LLOG_OBJECTS_URL": self.settings.objects_url,
        }
        return llog(*arguments, **environ)

    def write(self, count: int, *, compact: bool = False) -> None:
        asyncio.run(self._write(count, compact))

    async def _write(self, count: int, compact: bool) -> None:
        async with await AsyncLeaderlessLogWriter.open(self.settings) as writer:
            for number in range(count):
                await writer.append_shared([SharedAppendGroup("orders", p, [b"%d" % number, b"x"]) for p in (0, 1)])
        if compact:
            async with await AsyncLeaderlessLogCompactor.open(self.settings) as compactor:
                assert await compactor.compact_once("orders", 0, max_offsets=6) is not None

    def blobs(self) -> list[Path]:
        return sorted(path for path in (self.directory / "objects").rglob("wal-shared/*") if path.is_file())
