"""An export that dies in the middle: `python -m tests.system.export_crasher DIRECTORY…`.

Directories are named by kind (`parquet`, `iceberg`) and by where their job ends itself, as `crashing` says: at a call
of the metadata store, of the log's objects, of the target's objects, or of the Iceberg library (its catalogue, its
files).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyiceberg.catalog.sql import SqlCatalog

from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.iceberg import IcebergTarget, open_catalogue
from llog.pipeline.export.iceberg_files import DurableFileIO
from llog.pipeline.export.job import ExportReport, export, export_tools
from llog.pipeline.export.parquet import ParquetTarget
from llog.pipeline.export.plan import ExportTarget, Sizes
from llog.pipeline.runtime.tasks import LocalTasks
from llog.wiring import OpenedLog, opened_log
from tests.system.crashing import Countdown, play, settings_at

SIZES: Final = Sizes(split_bytes=64 * 1_024, commit_bytes=90_000)
"""Several commits of several tasks each."""
OBJECT_CALLS: Final = ("put", "get", "get_ranges")
CATALOGUE_CALLS: Final = ("commit_table", "create_table", "load_table")


async def target_at(opened: OpenedLog, directory: Path, kind: str) -> ExportTarget:
    settings = settings_at(directory)
    if kind == "parquet":
        return ParquetTarget(await opened.objects.at(f"file://{directory}/out"), "orders")
    schema = Decoder(Decoding()).schema
    return await IcebergTarget.open(open_catalogue(settings), "shop.orders", schema, opened.context.random_bits)


async def run_export(opened: OpenedLog, directory: Path, kind: str) -> ExportReport:
    runner = LocalTasks(export_tools(opened.context, opened.objects))
    return await export(opened.context, runner, "orders", await target_at(opened, directory, kind), sizes=SIZES)


async def run_job(directory: Path, kind: str, countdown: Countdown) -> bool:
    async with opened_log(settings_at(directory)) as opened:
        countdown.watch(opened.context.metadata, "get", "get_many", "scan")
        countdown.watch(await opened.objects.at(settings_at(directory).objects_url, writing=False), *OBJECT_CALLS)
        if kind == "parquet":
            countdown.watch(await opened.objects.at(f"file://{directory}/out"), *OBJECT_CALLS)
        for name in CATALOGUE_CALLS:
            setattr(SqlCatalog, name, countdown.around_blocking(getattr(SqlCatalog, name)))
        DurableFileIO.new_output = countdown.around_blocking(DurableFileIO.new_output)  # type: ignore[method-assign]
        await run_export(opened, directory, kind)
        return True


if __name__ == "__main__":
    play(run_job)
