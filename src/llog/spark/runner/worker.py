"""What runs in a Python worker of Spark: one item, on the event loop and the stores of this process.

A worker process executes one task after the other, for many jobs. Opening stores costs connections and round trips, so
the stores and their loop stay open from task to task.

The loop and the stores are created by the first task, never earlier, because the parent forks. The number of kept store
sets is bounded. An unexpected error reaches the driver as itself, through the text of Spark's error.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import os
import re
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from llog.errors import InvalidArgument
from llog.limits import MIB, SPARK_WORKER_TOOLS_MAX
from llog.pipeline.runtime.tasks import Task, TaskTools, perform
from llog.process_memory import keep_freed_memory
from llog.settings import Settings, settings_table
from llog.settings.urls import mask_url, scheme_of
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.wrappers import ObjectMeter, RetryingObjectStore
from llog.wiring import ObjectStores

SENT: Final = (
    "objects_url",
    "wal_url",
    "root_prefix",
    "client_identifier",
    "request_timeout_ms",
    "s3_endpoint_url",
    "s3_region_name",
)


def sent_settings(settings: Settings) -> dict[str, str | int]:
    """What a job carries. Raises `InvalidArgument` for stores that no other process could open."""
    for name in ("objects_url", "wal_url"):
        url = getattr(settings, name)
        if scheme_of(url) == "memory":
            raise InvalidArgument(name, "memory:// is seen by this process only, not by Spark's: run in process")
        if mask_url(url) != url:
            raise InvalidArgument(name, "a secret in a URL would be shown in Spark's plans: give it by environment")
    values = {name: getattr(settings, name) for name in SENT}
    return {name: value for name, value in values.items() if value is not None}


def settings_in_worker(sent: Mapping[str, str | int], environ: Mapping[str, str]) -> Settings:
    """Exactly what was sent, with the secrets of this process. The metadata store is one that holds nothing."""
    secrets = {name: environ[name] for name in secret_variables() if name in environ}
    return Settings.from_env(secrets, metadata_url="memory://", **sent)


def secret_variables() -> list[str]:
    rows = [row for row in settings_table() if row.secret and row.name.startswith("s3_")]
    return [name for row in rows for name in (f"LLOG_{row.name.upper()}", *row.fallbacks)]


def tools_on(objects: ObjectStores) -> TaskTools:
    """Tools for tasks, on stores that retry. (A retrying wrapper has no state, so each call makes its own.)"""

    async def find_object(uri: str) -> tuple[ObjectStore, str]:
        store, name = await objects.find(uri)
        return RetryingObjectStore(store), name

    async def open_store(url: str) -> ObjectStore:
        return RetryingObjectStore(objects.wrapped(url, await objects.at(url)))

    return TaskTools(find_object, open_store)


# Freed memory that a Python worker of Spark keeps for the next item or split.
SPARK_WORKER_FREE_BYTES_KEPT: Final = 256 * MIB


def keep_worker_memory() -> None:
    kept = SPARK_WORKER_FREE_BYTES_KEPT
    keep_freed_memory(pooled_bytes_max=kept, free_bytes_kept=kept, arenas_max=1)


# -- worker ------------------------------------------------------------------------------------------------------------

# Characters of the message and of the traceback of an unexpected error that reach the driver.
SPARK_ERROR_CHARS_MAX: Final = 2_000
SPARK_TRACE_CHARS_MAX: Final = 8_000


class JobHead(msgspec.Struct, frozen=True):
    """What all items of a job have in common."""

    place: str
    item: str
    """`module:name` of the struct."""
    sent: dict[str, str | int]


class Unforeseen(msgspec.Struct, frozen=True):
    """An error of a task, on its way through Spark."""

    error_type: str
    error: str
    trace: str


class TaskBroke(Exception):
    """Makes Spark try the task again, and fail the job in the end; its text carries an `Unforeseen`."""


_MARK: Final = "llog-task-error"
_MARKED: Final = re.compile(rf"<{_MARK}:([A-Za-z0-9+/=]*)>")


class _Worker:
    def __init__(self) -> None:
        self.process = os.getpid()
        keep_worker_memory()
        self.loop = asyncio.new_event_loop()
        self._opened: OrderedDict[bytes, tuple[ObjectStores, TaskTools, ObjectMeter]] = OrderedDict()

    def run(self, head: JobHead, item: bytes) -> bytes:
        return self.loop.run_until_complete(self._run(head, item))

    async def _run(self, head: JobHead, item: bytes) -> bytes:
        task = Task(head.place, located(head.item), msgspec.Struct)
        tools, meter = await self._tools(head)
        meter.take()  # what an item left that broke
        return await perform(task, tools, item, meter.take)

    async def _tools(self, head: JobHead) -> tuple[TaskTools, ObjectMeter]:
        key = msgspec.msgpack.encode(head.sent, order="sorted")
        if key in self._opened:
            self._opened.move_to_end(key)
            return self._opened[key][1:]
        while len(self._opened) >= SPARK_WORKER_TOOLS_MAX:
            _, (objects, _, _) = self._opened.popitem(last=False)
            await objects.close()
        meter = ObjectMeter()
        objects = ObjectStores(settings_in_worker(head.sent, os.environ), wrap=meter.wrap)
        tools = tools_on(objects)
        self._opened[key] = objects, tools, meter
        return tools, meter


_worker: _Worker | None = None


def run_item(head: JobHead, item: bytes) -> bytes:
    """From an encoded item to its encoded outcome. Raises `TaskBroke` for an unexpected error."""
    global _worker
    if _worker is None or _worker.process != os.getpid():
        _worker = _Worker()
    try:
        return _worker.run(head, item)
    except Exception as error:
        raise TaskBroke(marked(error)) from None


def located(place: str) -> Any:
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


# -- errors through text ---------------------------------------------------------------------------------------------


def marked(error: BaseException) -> str:
    """For people, who read Spark's log, and for `unmarked`."""
    trace = "".join(traceback.format_exception(error))[-SPARK_TRACE_CHARS_MAX:]
    unforeseen = Unforeseen(type(error).__name__, str(error)[:SPARK_ERROR_CHARS_MAX], trace)
    packed = base64.b64encode(msgspec.msgpack.encode(unforeseen)).decode()
    return f"{unforeseen.error_type}: {unforeseen.error} <{_MARK}:{packed}>"


def unmarked(text: str) -> Unforeseen | None:
    match = _MARKED.search(text)
    return None if match is None else msgspec.msgpack.decode(base64.b64decode(match[1]), type=Unforeseen)
