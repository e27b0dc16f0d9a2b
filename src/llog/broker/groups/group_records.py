"""Reading and writing the records of groups: the head and the pages that it names.

A write ends in one of three ways: it is stored, another writer has the group (`VersionConflict`), or nobody knows
(another `StoreError`). An uncertain write is resolved by strict reads: a head with this edition of this writer is the
own one; a head at the former version is written again at the same version, so that a late copy of the first attempt can
win at most once (rules G3, G9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from llog.broker.groups.positions import POSITION_PREFIX, POSITION_PREFIX_END
from llog.errors import FormatError, MetadataStoreError, MetadataUncertain, VersionConflict
from llog.formats.values import GroupOffset, decode_value
from llog.groups.records import (
    PAGE_PREFIX,
    GroupHead,
    GroupPage,
    decode_head,
    decode_page,
    encode_record,
    from_records,
    leftover_pages,
    simple_head,
    to_records,
)
from llog.log.context import LogContext, get_all, write_all
from llog.stores.metadata.port import ABSENT, Delete, Key, Put, Record, last_segment

GROUP_WRITE_ROUNDS_MAX: Final = 8
"""Attempts to write a head whose outcome is unknown, or that the store did not take."""
GROUP_READ_ROUNDS_MAX: Final = 8
"""Attempts to read a head together with its pages while they change."""
GROUP_DELETE_ROUNDS_MAX: Final = 8

_PAGES_END: Final = PAGE_PREFIX[:-1] + ";"


class StoredHead(NamedTuple):
    """A head with all its members, as it was stored."""

    head: GroupHead | None
    version: int
    """`ABSENT` if there is none."""
    pages: tuple[str, ...] = ()


async def load_group(context: LogContext, group: str, now_ms: int) -> StoredHead:
    """The group as of now, by strict reads. A group that has only positions counts as one without members, whose
    generation is the highest among them: else their fence would refuse the commits of its first members."""
    key = context.keys.group(group)
    for round_number in range(GROUP_READ_ROUNDS_MAX):
        record = await context.metadata.get(key, strict=True)
        if record is None:
            return StoredHead(await _head_of_positions(context, key, now_ms), ABSENT)
        head = decode_head(record.value, key.path)
        names = head.pages
        found = await get_all(context.metadata, [context.keys.group_item(group, name) for name in names], strict=True)
        pages: dict[str, GroupPage] = {
            name: decode_page(page.value, page.key.path)
            for name, page in zip(names, found, strict=True)
            if page is not None
        }
        if len(pages) == len(names) or round_number + 1 == GROUP_READ_ROUNDS_MAX:
            return StoredHead(from_records(head, pages, key.path), record.version, names)
        await context.back_off(round_number)
    raise FormatError(key.path, "its pages keep changing")


async def _head_of_positions(context: LogContext, key: Key, now_ms: int) -> GroupHead | None:
    generation = None
    async for record in context.metadata.scan_all(key, start=POSITION_PREFIX, stop=POSITION_PREFIX_END, strict=True):
        value = decode_value(GroupOffset, record.value, record.key.path)
        generation = max(generation or 0, value.generation)
    if generation is None:
        return None
    return simple_head("", now_ms, generation)


async def write_head(
    context: LogContext, group: str, head: GroupHead, before: StoredHead, may_write: Callable[[], bool]
) -> StoredHead:
    """Store a head with all its members over `before`: its pages first, then itself, and then the pages that only
    `before` named are deleted. `may_write` is asked before each attempt."""
    stored = to_records(head)
    keys = context.keys
    pages = [
        Put(keys.group_item(group, name), encode_record(page, name), ABSENT) for name, page in stored.pages.items()
    ]
    if pages:
        await _write_pages(context, pages, may_write)
    key = keys.group(group)
    version = await _compare_and_set(context, Put(key, encode_record(stored.head, key.path), before.version), may_write)
    gone = [name for name in before.pages if name not in stored.pages]
    # A page that stays is found by `clean_pages`.
    await write_all(context.metadata, [(Delete(keys.group_item(group, name)),) for name in gone])
    return StoredHead(head, version, tuple(stored.pages))


async def _write_pages(context: LogContext, pages: Sequence[Put], may_write: Callable[[], bool]) -> None:
    """Nobody else uses their names, so a page that exists already was written by an attempt of this call."""
    left = list(pages)
    last: MetadataStoreError | None = None
    for round_number in range(GROUP_WRITE_ROUNDS_MAX):
        _check(may_write, left[0].key)
        outcomes = await write_all(context.metadata, [(page,) for page in left])
        failed = []
        for page, outcome in zip(left, outcomes, strict=True):
            if isinstance(outcome, MetadataStoreError) and not isinstance(outcome, VersionConflict):
                if not outcome.retriable:
                    raise outcome
                last = outcome
                failed.append(page)
        if not failed:
            return
        left = failed
        await context.back_off(round_number)
    assert last is not None
    raise last


async def _compare_and_set(context: LogContext, put: Put, may_write: Callable[[], bool]) -> int:
    uncertain: MetadataStoreError | None = None
    for round_number in range(GROUP_WRITE_ROUNDS_MAX):
        _check(may_write, put.key)
        try:
            return await context.metadata.put(put.key, put.value, expected=put.expected)
        except VersionConflict:
            if uncertain is None:
                raise
            version = await _own_version(context, put)
            if version is None:
                raise
            return version
        except MetadataStoreError as error:
            if not error.retriable:
                raise
            uncertain = error
        await context.back_off(round_number)
        if isinstance(uncertain, MetadataUncertain):
            version = await _own_version(context, put)
            if version is not None:
                return version
    assert uncertain is not None
    raise uncertain


async def _own_version(context: LogContext, put: Put) -> int | None:
    """The version of our head if the store has it; None if it has the former one. Raises `VersionConflict` if it has
    another one: edition and writer name a write."""
    record = await context.metadata.get(put.key, strict=True)
    if (ABSENT if record is None else record.version) == put.expected:
        return None
    if record is not None:
        ours, found = decode_head(put.value, put.key.path), decode_head(record.value, put.key.path)
        if (found.edition, found.writer) == (ours.edition, ours.writer):
            return record.version
    raise VersionConflict("put", put.key.path, ABSENT if put.expected is None else put.expected)


def _check(may_write: Callable[[], bool], key: Key) -> None:
    if not may_write():
        raise VersionConflict("put", key.path, ABSENT)


# -- deleting ----------------------------------------------------------------------------------------------------------


async def delete_group(
    context: LogContext, group: str, before: StoredHead, may_write: Callable[[], bool], *, with_positions: bool = True
) -> None:
    """Delete pages and, unless they shall stay, positions; then the head. `load_group` begins a later group of that
    name above the generation of a position that outlives the head (rule G5)."""
    key = context.keys.group(group)
    for round_number in range(GROUP_DELETE_ROUNDS_MAX):
        _check(may_write, key)
        start = "" if with_positions else PAGE_PREFIX
        items = [record async for record in context.metadata.scan_all(key, start=start, strict=True)]
        if not items:
            break
        await write_all(context.metadata, [(Delete(key_of(context, group, item), item.version),) for item in items])
        await context.back_off(round_number)
    else:
        raise MetadataUncertain("delete", key.path, "its positions keep coming back")
    if before.version == ABSENT:
        return
    try:
        await context.metadata.delete(key, expected=before.version)
    except MetadataUncertain:
        if await context.metadata.get(key, strict=True) is not None:
            raise


async def clean_pages(context: LogContext, group: str) -> None:
    """Delete the pages that a crash left and no head will ever name."""
    key = context.keys.group(group)
    names = {
        last_segment(record.key.path): record
        async for record in context.metadata.scan_all(key, start=PAGE_PREFIX, stop=_PAGES_END)
    }
    if not names:
        return
    record = await context.metadata.get(key, strict=True)
    if record is not None:
        left = leftover_pages(names, decode_head(record.value, key.path))
        await write_all(context.metadata, [(Delete(key_of(context, group, names[name])),) for name in left])


def key_of(context: LogContext, group: str, record: Record) -> Key:
    """The key of an item that a scan returned."""
    return Key(record.key.path, context.keys.group(group).route)


async def settle(task: asyncio.Task[None] | None) -> None:
    """Wait for a task, however it ends."""
    if task is not None:
        await asyncio.gather(task, return_exceptions=True)
