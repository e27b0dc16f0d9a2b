"""The aggregation of key compaction: from the keys of all segments of a log to the offsets that survive.

    KeyAggregate        the port; `llog.spark.runner.key_aggregate` implements it with a DataFrame aggregation
    LocalKeyAggregate   in this process, for logs with distinct keys that fit in memory

Keys are compared as bytes. Exactly one offset of each key of a log survives, the highest in any of its segments.
Survivors are handed on per segment, in rising order, as objects in the scratch prefix of the pass.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llog.errors import ChecksumMismatch, InvalidArgument, InvalidField, ObjectStoreError, ValueTooLarge
from llog.formats.buffers import Buffer, crc32c
from llog.limits import GIB, KEY_SCAN_PART_BYTES_MAX
from llog.log.ids import created_at_ms_of, is_object_id, new_object_id
from llog.log.keys import SCRATCH_PREFIX
from llog.pipeline.runtime.tasks import TaskTools
from llog.stores.objects.port import ObjectStore

# Objects between the passes go with their job; what a crash left goes with a later job, once it is this old.
KEY_COMPACT_SCRATCH_AGE_MS_MAX: Final = 7 * 24 * 3_600_000
# Survivors that one object between the passes may name.
KEY_SURVIVORS_BYTES_MAX: Final = 4 * GIB

Longs = npt.NDArray[np.int64]
_log: Final = logging.getLogger("llog.pipeline")

KEYS_SCHEMA: Final = pa.schema([pa.field("key", pa.binary()), pa.field("offset", pa.int64())])
_IPC: Final = pa.ipc.IpcWriteOptions(compression="zstd")
_OFFSETS: Final = np.dtype("<i8")
_BELOW_SCRATCH: Final = "key-compact/"


class ScratchPlace(msgspec.Struct, frozen=True):
    """Where the objects of one pass go."""

    store_url: str
    prefix: str


class ScratchPart(msgspec.Struct, frozen=True, array_like=True):
    """One object: its name, number of rows, length and checksum."""

    name: str
    rows: int
    byte_length: int
    crc32c: int


def scratch_root(root: str) -> str:
    """`@` cannot occur in a topic's name, so the prefix never is that of a log."""
    return f"{root}/{SCRATCH_PREFIX}/{_BELOW_SCRATCH}"


async def put_keys(tools: TaskTools, place: ScratchPlace, table: pa.Table) -> ScratchPart:
    """Keys and offsets, as a stream of Arrow record batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, KEYS_SCHEMA, options=_IPC) as writer:
        writer.write_table(table.cast(KEYS_SCHEMA))
    return await _put(tools, place, memoryview(sink.getvalue()), table.num_rows)


async def get_keys(tools: TaskTools, place: ScratchPlace, part: ScratchPart) -> pa.Table:
    return keys_in(await get_part(tools, place, part), part)


def keys_in(data: Buffer, part: ScratchPart) -> pa.Table:
    """The table in an object's bytes; the caller has verified the checksum."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise InvalidField(part.name, f"not the keys of a scan: {error}") from error
    if table.num_rows != part.rows:
        raise InvalidField(part.name, f"{table.num_rows} keys, not the {part.rows} that were written")
    return table


async def get_part(tools: TaskTools, place: ScratchPlace, part: ScratchPart) -> Buffer:
    """The verified bytes of an object."""
    store = await tools.open_store(place.store_url)
    data = await store.get(part.name)
    computed = crc32c(data)
    if memoryview(data).nbytes != part.byte_length or computed != part.crc32c:
        raise ChecksumMismatch(part.name, "scratch object", part.crc32c, computed)
    return data


async def put_survivors(tools: TaskTools, place: ScratchPlace, offsets: Longs) -> ScratchPart:
    """`offsets` in rising order; the object holds them as little-endian integers."""
    if offsets.nbytes > KEY_SURVIVORS_BYTES_MAX:
        raise ValueTooLarge("survivors", offsets.nbytes, KEY_SURVIVORS_BYTES_MAX)
    return await _put(tools, place, offsets.astype(_OFFSETS, copy=False).data.cast("B"), len(offsets))


async def get_survivors(tools: TaskTools, place: ScratchPlace, part: ScratchPart) -> Longs:
    data = await get_part(tools, place, part)
    offsets = np.frombuffer(data, _OFFSETS).astype(np.int64)
    if len(offsets) != part.rows or bool(np.any(offsets[1:] <= offsets[:-1])):
        raise InvalidField(part.name, f"not {part.rows} offsets in rising order")
    return offsets


async def remove_pass(store: ObjectStore, place: ScratchPlace) -> None:
    """Remove all objects of one pass, also those of a task that ran twice. A failure is only logged, because the logs
    are already compacted; `remove_old` removes the objects later."""
    try:
        await store.delete_many([listed.name async for listed in store.list(place.prefix)])
        await store.tidy(place.prefix.partition(f"/{_BELOW_SCRATCH}")[0])
    except ObjectStoreError as error:
        _log.warning("%s is left for a later key compaction to remove: %s", place.prefix, error)


async def remove_old(store: ObjectStore, root: str, now_ms: int) -> int:
    """Remove old objects of passes that crashed; returns their number."""
    prefix = scratch_root(root)
    old = [listed.name async for listed in store.list(prefix) if _is_old(listed.name[len(prefix) :], now_ms)]
    await store.delete_many(old)
    await store.tidy(f"{root}/{SCRATCH_PREFIX}")
    return len(old)


def _is_old(below: str, now_ms: int) -> bool:
    pass_id = below.partition("/")[0]
    return is_object_id(pass_id) and created_at_ms_of(pass_id) < now_ms - KEY_COMPACT_SCRATCH_AGE_MS_MAX


async def _put(tools: TaskTools, place: ScratchPlace, data: memoryview, rows: int) -> ScratchPart:
    store = await tools.open_store(place.store_url)
    # Not chosen by the driver: two runs of one task must not overwrite each other.
    name = place.prefix + new_object_id(tools.now_ms(), secrets.randbits)
    await store.put(name, [data])
    return ScratchPart(name, rows, len(data), crc32c(data))


# -- aggregate ---------------------------------------------------------------------------------------------------------

# Distinct keys of one log, in bytes, that are aggregated without Spark.
KEY_AGGREGATE_BYTES_MAX: Final = 2 * GIB


class SegmentKeys(msgspec.Struct, frozen=True):
    """The key tables of one segment."""

    log: int
    """Number of the log in the job; keys of different logs are independent."""
    segment: int
    """Number of the segment in the job; within a log, numbers rise with the offsets."""
    end_offset: int
    parts: tuple[ScratchPart, ...]


class KeyAggregate(Protocol):
    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> Mapping[int, ScratchPart]:
        """The surviving offsets by segment number, without segments in which no offset survives."""


class LocalKeyAggregate:
    """One log after the other; a log with more distinct keys than memory should hold is refused."""

    def __init__(self, tools: TaskTools, *, bytes_max: int = KEY_AGGREGATE_BYTES_MAX) -> None:
        self._tools, self._bytes_max = tools, bytes_max

    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> dict[int, ScratchPart]:
        survivors: dict[int, ScratchPart] = {}
        for log in dict.fromkeys(keys.log for keys in scanned):
            segments = [keys for keys in scanned if keys.log == log]
            offsets = await self._of_log(place, segments)
            for keys, part in zip(segments, split_by_segment(offsets, segments), strict=True):
                if len(part):
                    survivors[keys.segment] = await put_survivors(self._tools, place, part)
        return survivors

    async def _of_log(self, place: ScratchPlace, segments: Sequence[SegmentKeys]) -> Longs:
        known: list[pa.Table] = []
        waiting_bytes = combined_bytes = 0
        for keys in segments:
            for part in keys.parts:
                table = await get_keys(self._tools, place, part)
                known.append(table)
                waiting_bytes += table.nbytes
                # Combining costs as much as the table holds, so it waits until that much was added.
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
    """With a large binary column, because the keys of all chunks together may exceed 2 GiB."""
    return table.set_column(0, "key", table["key"].cast(pa.large_binary()))


def split_by_segment(offsets: Longs, segments: Sequence[SegmentKeys]) -> list[Longs]:
    """Offsets of a log, rising, cut where its segments end."""
    ends = [keys.end_offset for keys in segments]
    return np.split(offsets, np.searchsorted(offsets, ends[:-1], side="right"))


def last_offsets(table: pa.Table) -> pa.Table:
    """Each key once, with the highest of its offsets. Keys are compared as bytes."""
    last = _wide(table).group_by("key", use_threads=False).aggregate([("offset", "max")])
    return pa.table({"key": last["key"], "offset": last["offset_max"]})
