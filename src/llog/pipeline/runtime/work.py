"""Tasks and those who run them: a plain coroutine function from a work item to a result.

    COMPACT_WINDOW = Task("llog.pipeline.compact.task:compact_window", Window, Written)
    outcomes = await runner.run(COMPACT_WINDOW, windows)      # one per item, in order

Why it exists: the same function runs in this process and in a Spark executor. So a task is named by its place, items
and results are msgspec structs (they travel as MessagePack), and what a task needs besides (object stores, opened in
the process that uses them) comes as `TaskTools`.

What must stay true
- A task may run twice, or at the same time as its double, and half-way: it writes objects of new names only, and what
  it wrote counts for nothing until the driver has committed it.
- A task has no access to the metadata store.
- What a task foresees (`LlogError`) is an outcome of its item, `TaskFailed`; anything else fails the whole run.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from llog.errors import InvalidArgument, LlogError
from llog.log.context import FindObject, LogContext
from llog.stores.objects.port import ObjectStore

# Tasks that one process runs at a time on its event loop.
PIPELINE_TASKS_IN_PROCESS_MAX: Final = 4


Item = TypeVar("Item", bound=msgspec.Struct)
Result = TypeVar("Result", bound=msgspec.Struct)
OpenStore = Callable[[str], Awaitable[ObjectStore]]
"""From a store's URL to the store, open for writing."""


class TaskTools(NamedTuple):
    """What a task works with, in whichever process it runs."""

    find_object: FindObject
    """From the URI in an index entry to the store that holds it and its name there."""
    open_store: OpenStore
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


def tools_of(context: LogContext) -> TaskTools:
    """For tasks in the driver's own process: its stores."""

    async def open_store(url: str) -> ObjectStore:
        for store in context.stores():
            if store.url.rstrip("/") == url.rstrip("/"):
                return store
        raise InvalidArgument("store", f"{url} is none that this process puts objects into")

    return TaskTools(context.find_object, open_store, context.now_ms)


@dataclass(frozen=True, slots=True)
class Task(Generic[Item, Result]):
    place: str
    """`module:function` of an `async def function(tools: TaskTools, item: Item) -> Result`."""
    item: type[Item]
    result: type[Result]

    def function(self) -> Callable[[TaskTools, Item], Awaitable[Result]]:
        module, _, name = self.place.partition(":")
        found: Callable[[TaskTools, Item], Awaitable[Result]] = getattr(importlib.import_module(module), name)
        return found


class TaskFailed(msgspec.Struct, frozen=True):
    """An item that came to nothing, for a reason that was foreseen."""

    error_type: str
    """The name of the `LlogError`: for `ObjectNotFound` the driver plans again (R10)."""
    error: str
    retriable: bool = False


OnDone = Callable[[int, Result | TaskFailed], None]
"""Takes the number of an item, and its outcome."""


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A result or a failure, on its way back."""

    result: msgspec.Raw
    failed: TaskFailed | None = None


class Runner(Protocol):
    async def run(
        self, task: Task[Item, Result], items: Sequence[Item], on_done: OnDone[Result] | None = None
    ) -> list[Result | TaskFailed]:
        """One outcome per item, in order. `on_done` is told of each as soon as it is known: on the event loop, and,
        where a task ran twice, of one of them."""

    async def close(self) -> None: ...


class InProcessRunner:
    """Runs tasks on this event loop, a few at a time."""

    def __init__(self, tools: TaskTools, *, at_once: int = PIPELINE_TASKS_IN_PROCESS_MAX) -> None:
        self._tools, self._at_once = tools, at_once

    async def run(
        self, task: Task[Item, Result], items: Sequence[Item], on_done: OnDone[Result] | None = None
    ) -> list[Result | TaskFailed]:
        function, slots = task.function(), asyncio.Semaphore(self._at_once)
        outcomes: dict[int, Result | TaskFailed] = {}

        async def one(number: int, item: Item) -> None:
            async with slots:
                outcome = outcomes[number] = await attempted(function, self._tools, item)
            if on_done is not None:
                on_done(number, outcome)

        async with asyncio.TaskGroup() as group:
            for number, item in enumerate(items):
                group.create_task(one(number, item))
        return [outcomes[number] for number in range(len(items))]

    async def close(self) -> None:
        """The stores belong to whoever made the tools."""


async def attempted(
    function: Callable[[TaskTools, Item], Awaitable[Result]], tools: TaskTools, item: Item
) -> Result | TaskFailed:
    try:
        return await function(tools, item)
    except LlogError as error:
        return TaskFailed(type(error).__name__, str(error), getattr(error, "retriable", False))


# -- through another process -------------------------------------------------------------------------------------------

_ENCODER: Final = msgspec.msgpack.Encoder()
_NOTHING: Final = msgspec.Raw(_ENCODER.encode(None))
_ENVELOPES: Final = msgspec.msgpack.Decoder(_Envelope)


def encoded_item(item: msgspec.Struct) -> bytes:
    return _ENCODER.encode(item)


async def perform(task: Task[Any, Any], tools: TaskTools, item: bytes) -> bytes:
    """In the process that works: from an item's bytes to its outcome's."""
    outcome = await attempted(task.function(), tools, msgspec.msgpack.decode(item, type=task.item))
    if isinstance(outcome, TaskFailed):
        return _ENCODER.encode(_Envelope(_NOTHING, outcome))
    return _ENCODER.encode(_Envelope(msgspec.Raw(_ENCODER.encode(outcome))))


def decoded_outcome(task: Task[Any, Result], outcome: bytes) -> Result | TaskFailed:
    envelope = _ENVELOPES.decode(outcome)
    if envelope.failed is not None:
        return envelope.failed
    return msgspec.msgpack.decode(envelope.result, type=task.result)
