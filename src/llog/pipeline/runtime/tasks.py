"""Tasks and the runners that execute them. A task is a coroutine function from a work item to a result.

    REWRITE_WINDOW = Task("llog.pipeline.compact.task:rewrite_window", Window, Written)
    outcomes = await runner.run(REWRITE_WINDOW, windows)      # one per item, in order

`LocalTasks` executes them in this process, `llog.spark.runner.tasks.SparkTasks` in Spark. So a task is named by its
import path, items and results are msgspec structs (they travel as MessagePack), and everything else a task needs
arrives as `TaskTools`.

- A task may run twice, concurrently with its duplicate, or stop half-way. It writes only objects with new names, and
  these count for nothing until the driver commits them.
- A task has no access to the metadata store.
- An expected error (`LlogError`) becomes the outcome of its item, `TaskFailed`; any other error fails the whole run.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from llog.errors import InvalidArgument, LlogError, SparkJobFailed
from llog.log.context import FindObject, LogContext, wall_clock_ms
from llog.stores.metering import OnRequests, RequestCounts
from llog.stores.objects.port import ObjectStore

LOCAL_TASKS_AT_ONCE: Final = 4
"""Tasks that one process executes at a time, unless the task or the caller says otherwise."""

Item = TypeVar("Item", bound=msgspec.Struct)
Result = TypeVar("Result", bound=msgspec.Struct)
OpenStore = Callable[[str], Awaitable[ObjectStore]]
"""Opens the store at a URL for writing."""
OnProgress = Callable[[int, str], None]
"""Receives the number of tasks completed since the last call, and a text such as "3 of 8 tasks"."""


class TaskTools(NamedTuple):
    """What a task works with, in the process that executes it."""

    find_object: FindObject
    """From the URI in an index entry to its object store and its name there."""
    open_store: OpenStore
    now_ms: Callable[[], int] = wall_clock_ms
    on_part: Callable[[int, Any], None] = lambda _number, _part: None
    """A task may announce finished parts of its result. Only `LocalTasks` passes them on to the driver."""


def tools_of(context: LogContext) -> TaskTools:
    """Tools on the stores of this process."""

    async def open_store(url: str) -> ObjectStore:
        for store in context.stores():
            if store.url.rstrip("/") == url.rstrip("/"):
                return store
        raise InvalidArgument("store", f"{url} is not a store that this process opened for writing")

    return TaskTools(context.find_object, open_store, context.now_ms)


@dataclass(frozen=True, slots=True)
class Task(Generic[Item, Result]):
    place: str
    """`module:function` of an `async def function(tools: TaskTools, item: Item) -> Result`."""
    item: type[Item]
    result: type[Result]
    at_once: int = LOCAL_TASKS_AT_ONCE
    """How many of these one process executes at a time."""

    def function(self) -> Callable[[TaskTools, Item], Awaitable[Result]]:
        module, _, name = self.place.partition(":")
        function: Callable[[TaskTools, Item], Awaitable[Result]] = getattr(importlib.import_module(module), name)
        return function


class TaskFailed(msgspec.Struct, frozen=True):
    """The outcome of an item that failed with an expected error."""

    error_type: str
    """Class name of the `LlogError`. On `ObjectNotFound` the driver plans again (R10)."""
    error: str
    retriable: bool = False


OnDone = Callable[[int, Result | TaskFailed], None]
"""Receives the number of an item, and its outcome."""
OnPart = Callable[[int, int, Any], None]
"""Receives the number of an item, the number of a part of it, and that part of the result."""


class TaskRunner(Protocol):
    async def run(
        self,
        task: Task[Item, Result],
        items: Sequence[Item],
        on_done: OnDone[Result] | None = None,
        *,
        on_part: OnPart | None = None,
    ) -> list[Result | TaskFailed]:
        """One outcome per item, in order. The runner calls `on_done` on the event loop as soon as it knows an outcome,
        once per item even where a task ran twice. `on_part` receives parts of results early, where the runner can."""

    async def close(self) -> None: ...


class TaskProgress:
    """Counts the tasks of one runner, for people who watch a job."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress, self._done, self._planned = on_progress, 0, 0

    def planned(self, count: int) -> None:
        self._planned += count
        self._report(0)

    def done(self) -> None:
        self._done += 1
        self._report(1)

    def _report(self, advance: int) -> None:
        if self._on_progress is not None:
            self._on_progress(advance, f"{self._done} of {self._planned} tasks")


class LocalTasks:
    """Executes tasks on this event loop, `at_once` at a time (default: the task's own limit)."""

    def __init__(self, tools: TaskTools, *, at_once: int | None = None, on_progress: OnProgress | None = None) -> None:
        self._tools, self._at_once, self._progress = tools, at_once, TaskProgress(on_progress)

    async def run(
        self,
        task: Task[Item, Result],
        items: Sequence[Item],
        on_done: OnDone[Result] | None = None,
        *,
        on_part: OnPart | None = None,
    ) -> list[Result | TaskFailed]:
        function, slots = task.function(), asyncio.Semaphore(self._at_once or task.at_once)
        self._progress.planned(len(items))

        async def one(number: int, item: Item) -> Result | TaskFailed:
            tools = self._tools if on_part is None else self._tools._replace(on_part=partial(on_part, number))
            async with slots:
                outcome = await attempted(function, tools, item)
            self._progress.done()
            if on_done is not None:
                on_done(number, outcome)
            return outcome

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, item)) for number, item in enumerate(items)]
        return [task.result() for task in tasks]

    async def close(self) -> None:
        """Closes nothing: the stores belong to the creator of the tools."""


async def attempted(
    function: Callable[[TaskTools, Item], Awaitable[Result]], tools: TaskTools, item: Item
) -> Result | TaskFailed:
    try:
        return await function(tools, item)
    except LlogError as error:
        return TaskFailed(type(error).__name__, str(error), getattr(error, "retriable", False))


# -- through another process -------------------------------------------------------------------------------------------


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """An encoded result or a failure, and the requests to object stores that the task made."""

    result: msgspec.Raw
    failed: TaskFailed | None = None
    requests: RequestCounts = {}


_ENCODER: Final = msgspec.msgpack.Encoder()
_NOTHING: Final = msgspec.Raw(_ENCODER.encode(None))
_ENVELOPES: Final = msgspec.msgpack.Decoder(_Envelope)


def encoded_item(item: msgspec.Struct) -> bytes:
    return _ENCODER.encode(item)


async def perform(
    task: Task[Any, Any], tools: TaskTools, item: bytes, take_requests: Callable[[], RequestCounts] = dict
) -> bytes:
    """Execute one encoded item in a worker process; the encoded outcome. `take_requests` returns those of the item."""
    outcome = await attempted(task.function(), tools, msgspec.msgpack.decode(item, type=task.item))
    if isinstance(outcome, TaskFailed):
        return _ENCODER.encode(_Envelope(_NOTHING, outcome, take_requests()))
    return _ENCODER.encode(_Envelope(msgspec.Raw(_ENCODER.encode(outcome)), requests=take_requests()))


def decoded_outcome(
    task: Task[Any, Result], outcome: bytes, on_requests: OnRequests | None = None
) -> Result | TaskFailed:
    """`on_requests` receives the requests to object stores that the task made."""
    envelope = _ENVELOPES.decode(outcome)
    if on_requests is not None and envelope.requests:
        on_requests(envelope.requests)
    if envelope.failed is not None:
        return envelope.failed
    return msgspec.msgpack.decode(envelope.result, type=task.result)


# -- probe_task --------------------------------------------------------------------------------------------------------


class Probe(msgspec.Struct, frozen=True):
    store_url: str


class Probed(msgspec.Struct, frozen=True):
    pass


async def probe(tools: TaskTools, item: Probe) -> Probed:
    await tools.open_store(item.store_url)
    return Probed()


PROBE: Final = Task(f"{__name__}:probe", Probe, Probed)


async def prove(runner: TaskRunner, store_url: str) -> None:
    """Raises what the runner raises, and `SparkJobFailed` where the task failed."""
    [outcome] = await runner.run(PROBE, [Probe(store_url)])
    if isinstance(outcome, TaskFailed):
        raise SparkJobFailed(PROBE.place, f"{outcome.error_type}: {outcome.error}")
