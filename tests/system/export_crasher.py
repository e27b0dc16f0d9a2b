"""An export that dies in the middle: `python -m tests.system.export_crasher DIRECTORY…`.

Each directory (a data directory of its own) gets a child process that runs the whole export in process and ends by
`os._exit` at a call of a store, as if the machine had stopped: of the metadata store, of the log's objects, of the
target's objects, or of the Iceberg library (its catalogue, its files). Directories are named by kind and call:
`iceberg-at-17-after` dies when call 17 has been done and nobody was told, `parquet-at-17-before` right before it;
`parquet-count` runs to the end and prints how many calls there are.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog

from llog.api.opening import OpenedLog, opened_log
from llog.formats.records import encode_records, warm_up
from llog.pipeline.export import ExportReport, export, export_tools
from llog.pipeline.export_decode import Decoder, Decoding
from llog.pipeline.export_parquet import ParquetTarget
from llog.pipeline.export_plan import Sizes
from llog.pipeline.export_target import ExportTarget
from llog.pipeline.iceberg import IcebergTarget, open_catalogue
from llog.pipeline.iceberg_files import DurableFileIO
from llog.pipeline.work import InProcessRunner
from llog.settings import Settings

DIED: Final = 77
SIZES: Final = Sizes(split_bytes=64 * 1_024, commit_bytes=90_000)
"""Several commits of several tasks each."""
ASYNC_CALLS: Final = ("put", "get", "get_ranges", "get_many", "scan")
CATALOGUE_CALLS: Final = ("commit_table", "create_table", "load_table")


class Countdown:
    """Counts calls, and ends the process at one of them."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.calls, self._at, self._after = 0, at, after

    def _begin(self) -> bool:
        self.calls += 1
        mine = self.calls == self._at
        if mine and not self._after:
            os._exit(DIED)
        return mine

    def around(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            mine = self._begin()
            answer = await call(*arguments, **named)
            if mine:
                os._exit(DIED)
            return answer

        return counted

    def around_blocking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            mine = self._begin()
            answer = call(*arguments, **named)
            if mine:
                os._exit(DIED)
            return answer

        return counted

    def watch(self, store: object) -> None:
        for name in ASYNC_CALLS:
            if hasattr(store, name):
                setattr(store, name, self.around(getattr(store, name)))


def settings_at(directory: Path) -> Settings:
    return Settings.from_env({"LLOG_DATA_DIR": str(directory)})


async def target_at(opened: OpenedLog, directory: Path, kind: str) -> ExportTarget:
    settings = settings_at(directory)
    if kind == "parquet":
        return ParquetTarget(await opened.objects.at(f"file://{directory}/out"), "orders")
    schema = Decoder(Decoding()).schema
    return await IcebergTarget.open(open_catalogue(settings), "shop.orders", schema, opened.context.random_bits)


async def run_export(opened: OpenedLog, directory: Path, kind: str) -> ExportReport:
    runner = InProcessRunner(export_tools(opened.context, opened.objects))
    return await export(opened.context, runner, "orders", await target_at(opened, directory, kind), sizes=SIZES)


async def run_job(directory: Path, kind: str, countdown: Countdown) -> ExportReport:
    async with opened_log(settings_at(directory)) as opened:
        countdown.watch(opened.context.metadata)
        countdown.watch(await opened.objects.at(settings_at(directory).objects_url, writing=False))
        if kind == "parquet":
            countdown.watch(await opened.objects.at(f"file://{directory}/out"))
        for name in CATALOGUE_CALLS:
            setattr(SqlCatalog, name, countdown.around_blocking(getattr(SqlCatalog, name)))
        DurableFileIO.new_output = countdown.around_blocking(DurableFileIO.new_output)  # type: ignore[method-assign]
        return await run_export(opened, directory, kind)


def in_child(directory: Path) -> None:
    kind, *point = directory.name.split("-")
    countdown = Countdown(0, after=False) if point == ["count"] else Countdown(int(point[1]), after=point[2] == "after")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(run_job(directory, kind, countdown))
            print(countdown.calls, flush=True)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    print(directory.name, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    warm_up()
    encode_records([b"warm"], timestamps_ms=0)
    for given in sys.argv[1:]:
        in_child(Path(given))
