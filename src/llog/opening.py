"""Opens the stores that the settings name. The public API, commands and services begin here."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import NamedTuple

from llog.errors import ObjectStoreMisconfigured
from llog.log.cluster import join_cluster
from llog.log.context import LogContext, LogOptions, wall_clock_ms
from llog.log.keys import Keys
from llog.settings import Settings
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.retrying import RetryingObjectStore
from llog.wiring import ObjectStores, open_metadata_store


class Use(Enum):
    """What a process does with an object store."""

    NOTHING = "nothing"
    """Nothing but reading objects that entries name, which needs no setting."""
    LIST = "list"
    PUT = "put"


class Wrapping(NamedTuple):
    """Wrappers that a process puts around its stores to count their calls. They sit below the retries, so that every
    attempt is counted."""

    metadata: Callable[[MetadataStore], MetadataStore]
    objects: Callable[[ObjectStore], ObjectStore]


class OpenedLog(NamedTuple):
    context: LogContext
    objects: ObjectStores

    async def close(self) -> None:
        try:
            await self.objects.close()
        finally:
            await self.context.metadata.close()


async def open_log(
    settings: Settings, *, blobs: Use = Use.NOTHING, segments: Use = Use.NOTHING, wrapping: Wrapping | None = None
) -> OpenedLog:
    """Open the stores and check that they allow these uses. A process that puts objects joins the cluster: stores of
    different clusters are refused here (`ClusterMismatch`)."""
    metadata = await open_metadata_store(settings.metadata_url, settings)
    keys = Keys(settings.root_prefix)
    # Metered below the retries, so that every attempt is counted.
    count = (lambda store: store) if wrapping is None else wrapping.objects
    objects = ObjectStores(settings, wrap=lambda store: RetryingObjectStore(count(store)))
    try:
        founded = functools.partial(metadata.get, keys.cluster_id(), strict=True)
        wal = await _store(objects, settings.wal_url, blobs, founded)
        segment_store = await _store(objects, settings.objects_url, segments, founded)
        context = LogContext(
            metadata=metadata if wrapping is None else wrapping.metadata(metadata),
            wal=None if wal is None else objects.wrapped(settings.wal_url, wal),
            segments=None if segment_store is None else objects.wrapped(settings.objects_url, segment_store),
            find_object=objects.find,
            now_ms=wall_clock_ms,
            random_bits=secrets.randbits,
            sleep=asyncio.sleep,
            keys=keys,
            options=_options(settings),
        )
        if Use.PUT in (blobs, segments):
            await join_cluster(context)
    except BaseException:
        await objects.close()
        await metadata.close()
        raise
    return OpenedLog(context, objects)


@asynccontextmanager
async def opened_log(
    settings: Settings, *, blobs: Use = Use.NOTHING, segments: Use = Use.NOTHING, wrapping: Wrapping | None = None
) -> AsyncIterator[OpenedLog]:
    opened = await open_log(settings, blobs=blobs, segments=segments, wrapping=wrapping)
    try:
        yield opened
    finally:
        await opened.close()


async def _store(
    objects: ObjectStores, url: str, use: Use, founded: Callable[[], Awaitable[object | None]]
) -> ObjectStore | None:
    if use is Use.NOTHING:
        return None
    try:
        return await objects.at(url, writing=use is Use.PUT)
    except ObjectStoreMisconfigured:
        # A missing directory means a disk that is not mounted, unless the cluster was never founded.
        if use is Use.PUT or await founded() is not None:
            raise
        return await objects.at(url)


def _options(settings: Settings) -> LogOptions:
    return LogOptions(
        writer_id=settings.client_identifier,
        encoding=settings.encoding,
        vacuum_grace_ms=settings.vacuum_grace_ms,
        wal_grace_ms=settings.vacuum_grace_ms if settings.wal_url == settings.objects_url else settings.wal_grace_ms,
        auto_create_topics=settings.auto_create_topics,
        topic_partitions_max=settings.topic_partitions_max,
    )
