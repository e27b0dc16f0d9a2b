"""A claim: an ephemeral record that keeps two compactors from doing the same work.

It only saves work (R12). A claim that is lost with its session, or ignored, does no harm: the compaction record alone
guards the publishing of a run.
"""

from __future__ import annotations

from llog.errors import MetadataUncertain, VersionConflict
from llog.formats.values import CompactorClaim, decode_value, encode_value
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.stores.metadata.port import ABSENT, Session


async def claim(context: LogContext, log: Log, session: Session, *, compactor_id: str, incarnation: int) -> bool:
    """Whether this compactor holds the claim on the log."""
    key = context.keys.claim(log)
    value = CompactorClaim(incarnation=incarnation, compactor_id=compactor_id, claimed_at_ms=context.now_ms())
    try:
        await context.metadata.put(key, encode_value(value), expected=ABSENT, session=session)
        return True
    except (VersionConflict, MetadataUncertain):
        held = await holder(context, log)
        return held is not None and held.compactor_id == compactor_id


async def holder(context: LogContext, log: Log) -> CompactorClaim | None:
    found = await context.metadata.get(context.keys.claim(log))
    return None if found is None else decode_value(CompactorClaim, found.value, found.key.path)


async def release(context: LogContext, log: Log, *, compactor_id: str) -> None:
    """Remove our claim; another compactor's claim stays."""
    found = await context.metadata.get(context.keys.claim(log), strict=True)
    if found is None or decode_value(CompactorClaim, found.value, found.key.path).compactor_id != compactor_id:
        return
    try:
        await context.metadata.delete(found.key, expected=found.version)
    except (VersionConflict, MetadataUncertain):
        return
