"""Calls to the metadata store for any number of logs, cut to what one call may carry. A store that is away is an
answer for every log, never an error for all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from llog.errors import MetadataStoreError
from llog.limits import METADATA_GET_MANY_MAX, METADATA_WRITE_GROUPS_MAX
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Write

T = TypeVar("T")


async def write_all(metadata: MetadataStore, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
    async def write(chunk: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        try:
            return await metadata.write(chunk)
        except MetadataStoreError as error:
            return [error] * len(chunk)

    if len(groups) <= METADATA_WRITE_GROUPS_MAX:
        return await write(groups) if groups else []
    answers = await asyncio.gather(*(write(chunk) for chunk in _chunks(groups, METADATA_WRITE_GROUPS_MAX)))
    return [outcome for chunk in answers for outcome in chunk]


async def get_all(metadata: MetadataStore, keys: Sequence[Key], *, strict: bool) -> list[Record | None]:
    """Raises what `get_many` raises."""
    found: list[Record | None] = []
    for chunk in _chunks(keys, METADATA_GET_MANY_MAX):
        found += await metadata.get_many(chunk, strict=strict)
    return found


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
