"""Change one metadata value by compare-and-set: read, decide, write at the version that was read, and repeat (R5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llog.errors import LlogError, MetadataStoreError, MetadataUncertain, VersionConflict
from llog.formats.values import Value, decode_value, encode_value
from llog.log.context import LogChange, LogContext
from llog.stores.metadata.port import ABSENT, Key

V = TypeVar("V", bound=Value)


def lost_race(error: MetadataStoreError) -> bool:
    """Retry when another process changed the value first, or the write's own outcome is uncertain."""
    return isinstance(error, VersionConflict | MetadataUncertain)


def lost_race_or_unavailable(error: MetadataStoreError) -> bool:
    """Retry also while the store is unavailable."""
    return error.retriable or isinstance(error, VersionConflict)


async def change_value(
    context: LogContext,
    key: Key,
    kind: type[V],
    decide: Callable[[V | None], V | None],
    *,
    rounds_max: int,
    busy: LlogError,
    retry: Callable[[MetadataStoreError], bool] = lost_race,
    describe: Callable[[V | None, V], LogChange] | None = None,
) -> tuple[V | None, int]:
    """Replace the value at `key` by what `decide` makes of it; return the value and version that stand there then.

    `decide` gets the current value (None: absent) and decides anew in every round; None leaves the value unchanged.
    Raises `busy` after `rounds_max` rounds. A write without an answer is settled by the next round's read, so `decide`
    must recognise its own change (R4). With `describe`, the change from one value to the other is reported to
    `context.on_change`.
    """
    unanswered: tuple[V | None, V] | None = None

    def report(change: tuple[V | None, V] | None, *, certain: bool = True) -> None:
        if describe is not None and change is not None:
            context.on_change(describe(*change)._replace(certain=certain))

    async for _ in context.rounds(rounds_max):
        current = changed = None
        try:
            record = await context.metadata.get(key, strict=True)
            version = ABSENT
            if record is not None:
                current, version = decode_value(kind, record.value, key.path), record.version
            changed = decide(current)
            if changed is None:
                report(unanswered)
                return current, version
            version = await context.metadata.put(key, encode_value(changed, key.path), expected=version)
            report((current, changed))
            return changed, version
        except MetadataStoreError as error:
            if changed is not None and isinstance(error, MetadataUncertain):
                unanswered = (current, changed)
            if not retry(error):
                report(unanswered, certain=False)
                raise
    report(unanswered, certain=False)
    raise busy
