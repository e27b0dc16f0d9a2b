"""Executors that do reach for the metadata store: what it comes to, and that it is noticed."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from llog.pipeline.runtime.tasks import Task, TaskFailed, TaskTools
from llog.settings import Settings
from llog.wiring import OpenedLog, open_metadata_store
from tests.spark.cluster_stage import Books, append
from tests.spark.cluster_watch import DIRECTORY, notes, touches
from tests.unit.pipeline.mixed_log import rows_of

if TYPE_CHECKING:
    from llog.spark.runner.tasks import SparkTasks
    from tests.spark.cluster_tables import Tables


class Reach(msgspec.Struct, frozen=True):
    metadata_url: str


class Reached(msgspec.Struct, frozen=True):
    url: str


async def reach(_tools: TaskTools, item: Reach) -> Reached:
    """What no task may do."""
    store = await open_metadata_store(item.metadata_url, Settings.from_env({}, metadata_url=item.metadata_url))
    await store.close()
    return Reached(item.metadata_url)


REACH: Final = Task(f"{__name__}:reach", Reach, Reached)


async def misuse(runner: SparkTasks, tables: Tables, opened: OpenedLog) -> list[str]:
    """A task that opens the store, and a read whose plan is out of date; what the watch noted of them."""
    assert _noted() == []
    [outcome] = await runner.run(REACH, [Reach(tables.settings.metadata_url)])
    assert isinstance(outcome, TaskFailed), "it was let through"
    assert outcome.error_type == "StoreNotInstalled", outcome
    reached = _noted()
    assert "llog.stores.metadata.oxia" in reached or "llog.stores.metadata.oxia.store" in reached, reached
    await _read_out_of_date(tables, opened)
    return sorted(set(_noted()))


async def _read_out_of_date(tables: Tables, opened: OpenedLog) -> None:
    """An executor that finds an object of its plan gone, and cannot plan again, says so; the next read is whole."""
    books, log = Books(), Log("late", 0)
    await append(opened, books, random.Random(5), 0, [log], {})
    frame = tables.frame("late")
    assert await asyncio.to_thread(lambda: frame.rdd.getNumPartitions()) == 1  # which plans
    assert await compact_once(opened.context, log) is not None
    assert opened.context.wal is not None
    blobs = [meta.name async for meta in opened.context.wal.list(opened.context.keys.blobs())]
    await opened.context.wal.delete_many(blobs)
    with pytest.raises(Exception, match="this executor cannot plan again: run the query again"):
        await asyncio.to_thread(frame.toArrow)
    assert await asyncio.to_thread(lambda: rows_of(tables.frame("late").toArrow())) == books.of("late")


def _noted() -> list[str]:
    found = touches(notes(Path(os.environ[DIRECTORY])))
    return [note.name for note in found if note.executor is not None]
