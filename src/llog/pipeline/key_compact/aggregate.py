"""From the keys of all segments to the offsets that survive: the last of each key, over the whole range of a log.

    KeyAggregate        what the job asks for; `llog.spark.runner.key_aggregate` answers with a DataFrame aggregation
    LocalKeyAggregate  the same in this process, for logs whose distinct keys fit in memory

What must stay true: a key is its bytes; of each key of a log exactly one offset survives, the highest in any of the
log's segments; survivors are handed on per segment, in rising order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from llog.errors import InvalidArgument
from llog.limits import GIB, KEY_SCAN_PART_BYTES_MAX
from llog.pipeline.key_compact.scan_task import last_offsets
from llog.pipeline.key_compact.scratch import Longs, ScratchPart, ScratchPlace, get_keys, put_survivors
from llog.pipeline.runtime.tasks import TaskTools

# Distinct keys of one log, in bytes, that are aggregated without Spark.
KEY_AGGREGATE_BYTES_MAX: Final = 2 * GIB


class SegmentKeys(msgspec.Struct, frozen=True):
    """What the first pass found in one segment."""

    log: int
    """Which of the job's logs; keys of different logs have nothing to do with each other."""
    segment: int
    """Its number in the job; within a log they rise with the offsets."""
    end_offset: int
    parts: tuple[ScratchPart, ...]


class KeyAggregate(Protocol):
    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> Mapping[int, ScratchPart]:
        """By segment number, the offsets that survive in it; a segment in which none does is left out."""


class LocalKeyAggregate:
    """One log after the other; a log with more distinct keys than memory should hold is refused."""

    def __init__(self, tools: TaskTools, *, bytes_max: int = KEY_AGGREGATE_BYTES_MAX) -> None:
        self._tools, self._bytes_max = tools, bytes_max

    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> dict[int, ScratchPart]:
        found: dict[int, ScratchPart] = {}
        for log in dict.fromkeys(keys.log for keys in scanned):
            segments = [keys for keys in scanned if keys.log == log]
            offsets = await self._of_log(place, segments)
            for keys, part in zip(segments, split_by_segment(offsets, segments), strict=True):
                if len(part):
                    found[keys.segment] = await put_survivors(self._tools, place, part)
        return found

    async def _of_log(self, place: ScratchPlace, segments: Sequence[SegmentKeys]) -> Longs:
        known: list[pa.Table] = []
        waiting_bytes = combined_bytes = 0
        for keys in segments:
            for part in keys.parts:
                table = await get_keys(self._tools, place, part)
                known.append(table)
                waiting_bytes += table.nbytes
                # Combining costs what is there, so it waits until that much has come on top.
                if waiting_bytes > max(combined_bytes, KEY_SCAN_PART_BYTES_MAX):
                    known = [await asyncio.to_thread(_combined, known)]
                    waiting_bytes, combined_bytes = 0, known[0].nbytes
                    self._check(combined_bytes)
        if not known:
            return np.empty(0, np.int64)
        offsets = (await asyncio.to_thread(_combined, known))["offset"].to_numpy()
        return np.sort(offsets)

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._bytes_max:
            reason = f"{size_bytes} bytes of distinct keys in one log, at most {self._bytes_max} without Spark"
            raise InvalidArgument("keys", f"{reason}: run the job on Spark")


def _combined(tables: Sequence[pa.Table]) -> pa.Table:
    return last_offsets(pa.concat_tables([_wide(table) for table in tables]))


def _wide(table: pa.Table) -> pa.Table:
    return table.set_column(0, "key", table["key"].cast(pa.large_binary()))


def split_by_segment(offsets: Longs, segments: Sequence[SegmentKeys]) -> list[Longs]:
    """Offsets of a log, rising, cut where its segments end."""
    ends = [keys.end_offset for keys in segments]
    return np.split(offsets, np.searchsorted(offsets, ends[:-1], side="right"))
