"""What an actor waits for, in words: for runs that cannot go on."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llog.testing.sim.actor import Actor
from llog.testing.sim.calls import Call


def waits_of(actors: Sequence[Actor], waiting: Sequence[Call]) -> list[str]:
    """A line for each thing that each living actor waits for."""
    lines: list[str] = []
    for actor in actors:
        if actor.ended:
            continue
        calls = [call for call in waiting if call.actor is actor]
        lines += [f"{actor.name} ({actor.state}) is held: it {call.words()}" for call in calls]
        if not calls:
            lines += [f"{actor.name} ({actor.state}) waits in {where(t.get_coro())}" for t in actor.unfinished_tasks()]
    return lines


def where(coroutine: Any) -> str:
    """The innermost place at which a coroutine is suspended, and the last one before it outside asyncio."""
    places: list[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            name = getattr(coroutine, "__qualname__", type(coroutine).__name__)
            places.append(f"{name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
        awaited = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
        if awaited is None or not (inspect.iscoroutine(awaited) or inspect.isasyncgen(awaited)):
            break
        coroutine = awaited
    return " → ".join(places[-3:]) or "an unknown place"
