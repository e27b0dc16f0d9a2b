"""Bounded concurrency on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["gather_bounded"]

T = TypeVar("T")
R = TypeVar("R")


async def gather_bounded(items: Iterable[T], work: Callable[[T], Awaitable[R]], *, limit: int) -> list[R]:
    """`work(item)` for every item, at most `limit` at a time; the results in the order of the items.

    The first error is raised as it is, not in a group, after the other calls were cancelled and have ended: none is
    left running. A caller that wants every result handles errors inside `work`.
    """
    items = list(items)
    if len(items) == 1:
        return [await work(items[0])]
    slots = asyncio.Semaphore(limit)

    async def bounded(item: T) -> R:
        async with slots:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bounded(item)) for item in items]
        return [task.result() for task in tasks]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    raise first  # outside of the handler, so that the error keeps its own cause and context
