"""The instant before which vacuum may look: the earliest of all clocks it can read, less the grace.

Why several: a clock that runs ahead would raise horizons into the future, and every append would be refused until that
future has come (h17). When they differ by more than a tenth of the grace, nobody knows the time: refuse.
"""

from __future__ import annotations

from collections.abc import Mapping

from llog.errors import VacuumRefused
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.stores.objects.port import ObjectStore


def plan_now(clocks_ms: Mapping[str, int], *, grace_ms: int) -> int:
    """The time vacuum goes by; `clocks_ms` by the name of the clock."""
    earliest, latest = min(clocks_ms, key=clocks_ms.__getitem__), max(clocks_ms, key=clocks_ms.__getitem__)
    apart_ms = clocks_ms[latest] - clocks_ms[earliest]
    if apart_ms > grace_ms // 10:
        raise VacuumRefused(
            f"clocks differ by {apart_ms} ms, more than a tenth of the grace of {grace_ms} ms: "
            f"{latest} is ahead of {earliest}. Set the clocks right"
        )
    return clocks_ms[earliest]


async def read_clocks(context: LogContext) -> dict[str, int]:
    clocks = {"this machine": context.now_ms()}
    told = await context.metadata.server_time_ms()
    if told is not None:
        clocks["the metadata store"] = told
    for store in context.stores():
        clocks[store.url] = await _time_of(context, store)
    return clocks


async def _time_of(context: LogContext, store: ObjectStore) -> int:
    """What the store says of an object just put. A crash leaves the object; the next vacuum takes it."""
    name = context.keys.clock_object(new_object_id(context.now_ms(), context.random_bits))
    await store.put(name, [])  # without a byte: on a disk that is full, nothing else could make room
    try:
        return (await store.head(name)).last_modified_ms
    finally:
        await store.delete(name)
