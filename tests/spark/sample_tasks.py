"""Tasks that show what a runner does with them; Spark's workers import them from here."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec

from llog.errors import ObjectNotFound
from llog.pipeline.runtime.tasks import Task, TaskTools
from llog.spark.sessions import daemon


class Order(msgspec.Struct, frozen=True):
    """What to do: `what` in `directory`, and `number` to say it back."""

    what: str
    number: int = 0
    directory: str = ""
    text: str = ""


class Told(msgspec.Struct, frozen=True):
    number: int
    process: int
    facts: dict[str, str] = {}


async def obey(tools: TaskTools, order: Order) -> Told:
    facts = await _ACTIONS[order.what](tools, order)
    return Told(order.number, os.getpid(), facts)


async def _echo(_tools: TaskTools, order: Order) -> dict[str, str]:
    return {"text": order.text}


async def _nap(_tools: TaskTools, order: Order) -> dict[str, str]:
    """As many tenths of a second as its number."""
    await asyncio.sleep(order.number / 10)
    return {}


async def _miss(_tools: TaskTools, order: Order) -> dict[str, str]:
    raise ObjectNotFound("file:///nowhere", order.text)


async def _break(_tools: TaskTools, order: Order) -> dict[str, str]:
    _note_attempt(order)
    raise ZeroDivisionError(f"by {order.text}")


async def _break_once(_tools: TaskTools, order: Order) -> dict[str, str]:
    if _note_attempt(order) == 1:
        raise ZeroDivisionError("only the first time")
    return {"attempts": str(_attempts(order))}


async def _die_once(_tools: TaskTools, order: Order) -> dict[str, str]:
    if _note_attempt(order) == 1:
        os.kill(os.getpid(), 9)
    return {"attempts": str(_attempts(order))}


async def _linger(_tools: TaskTools, order: Order) -> dict[str, str]:
    """Leaves a sign of life ten times a second, for a minute."""
    for _ in range(600):
        (Path(order.directory) / f"alive-{order.number}").write_text(str(time.time()))
        await asyncio.sleep(0.1)
    return {}


async def _describe(_tools: TaskTools, _order: Order) -> dict[str, str]:
    """What this worker found when it began."""
    return {
        "parent": str(os.getppid()),
        "loaded_by": str(daemon.loaded_by),
        "kernels": str("llog.formats.records.decode_kernels" in sys.modules),
        "pyarrow": str("pyarrow" in sys.modules),
        "threads_of_parent": str(len(os.listdir(f"/proc/{os.getppid()}/task"))),
        "executable": sys.executable,
    }


async def _copy(tools: TaskTools, order: Order) -> dict[str, str]:
    """From one object to another, in the stores that were sent; says which store it used."""
    store, name = await tools.find_object(order.text)
    data = await store.get(name)
    target = await tools.open_store(order.directory)
    await target.put(f"copies/{order.number}", [data])
    again, _ = await tools.find_object(order.text)
    return {"bytes": str(len(data)), "same": str(store.url == again.url), "loop": str(id(asyncio.get_running_loop()))}


async def _settings(_tools: TaskTools, _order: Order) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("LLOG_")}


def _note_attempt(order: Order) -> int:
    path = Path(order.directory) / f"attempts-{order.number}"
    with path.open("a") as file:
        file.write("x")
    return len(path.read_text())


def _attempts(order: Order) -> int:
    return len((Path(order.directory) / f"attempts-{order.number}").read_text())


_ACTIONS = {
    "echo": _echo,
    "nap": _nap,
    "miss": _miss,
    "break": _break,
    "break-once": _break_once,
    "die-once": _die_once,
    "linger": _linger,
    "describe": _describe,
    "copy": _copy,
    "settings": _settings,
}

OBEY = Task(f"{__name__}:obey", Order, Told)
