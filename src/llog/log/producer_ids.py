"""Producer ids that no other producer of the cluster has.

One record counts the ids given so far; a process takes a block of them by compare-and-set and hands them out one by
one. Two producers with one id would take each other's batches for repeats, and acknowledge records that are stored
nowhere (h33). So a block belongs to a process only if its write was acknowledged: after a write without an answer it
takes another block, and the ids of the first are never used. A restore lets the count leap ahead (protocol section 12).
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from llog.errors import MetadataStoreError, MetadataUnavailable
from llog.formats.values import ProducerIdBlock, decode_value, encode_value
from llog.log.change import lost_race_or_unavailable
from llog.log.context import LogContext
from llog.stores.metadata.port import ABSENT

# Ids below are for clients that choose their own (HTTP).
PRODUCER_ID_FIRST: Final = 2**32
# Ids that a process takes at a time. Those left when it ends are lost, of 2⁶³.
PRODUCER_IDS_PER_BLOCK: Final = 1_000
PRODUCER_IDS_ROUNDS_MAX: Final = 32


async def take_ids(context: LogContext, count: int, *, strict: bool) -> range:
    """One attempt to take that many ids. Raises `VersionConflict` if another process was faster; after any error the
    ids are not ours."""
    key = context.keys.producer_ids()
    record = await context.metadata.get(key, strict=strict)
    block = ProducerIdBlock(next_producer_id=PRODUCER_ID_FIRST)
    if record is not None:
        block = decode_value(ProducerIdBlock, record.value, key.path)
    first = block.next_producer_id
    taken = replace(block, next_producer_id=first + count)
    version = ABSENT if record is None else record.version
    await context.metadata.put(key, encode_value(taken, key.path), expected=version)
    return range(first, first + count)


class ProducerIds:
    """The ids of one process; used on one event loop."""

    def __init__(self, context: LogContext, *, block_ids: int = PRODUCER_IDS_PER_BLOCK) -> None:
        self._context, self._block_ids = context, block_ids
        self._left = range(0)
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        """Raises `MetadataStoreError` when no block could be taken."""
        if not self._left:
            async with self._taking:
                if not self._left:  # else another caller has just taken a block
                    self._left = await self._take_block()
        producer_id, self._left = self._left[0], self._left[1:]
        return producer_id

    async def _take_block(self) -> range:
        reason = "other processes were faster"
        async for round_number in self._context.rounds(PRODUCER_IDS_ROUNDS_MAX):
            try:
                return await take_ids(self._context, self._block_ids, strict=round_number > 0)
            except MetadataStoreError as error:
                if not lost_race_or_unavailable(error):
                    raise
                reason = str(error)
        key = self._context.keys.producer_ids()
        raise MetadataUnavailable("take producer ids", key.path, f"gave up after {PRODUCER_IDS_ROUNDS_MAX}: {reason}")
