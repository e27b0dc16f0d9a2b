"""From settings and URLs to open stores: the only module that reaches concrete adapters. The public API, commands and
services begin at `open_log`.

The scheme of a URL names an entry point (groups `llog.metadata_stores`, `llog.object_stores`): an
`async def open_from_url(url, settings)` that returns a store. Other packages add stores by declaring one. Object stores
are checked when they are opened (`ObjectStore.check`), for writing or only for reading. A scheme that two packages
claim is refused. No message shows a password.

Index entries name objects by full URI, possibly in several stores (a WAL directory and a bucket, an earlier bucket).
`ObjectStores` finds the store of a URI:
- A URI below `LLOG_WAL_URL` or `LLOG_OBJECTS_URL` belongs to that store, the longer root first.
- Any other `file://` URI is split before its last `/{LLOG_ROOT_PREFIX}/`, or else at its directory.
- Any other scheme is split after the authority: `s3://bucket/some/prefix/name` is `some/prefix/name` in `s3://bucket`.
Root and name together are always the same URI, so every split names the same object. A store that may be in use is not
closed to make room for another.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from importlib.metadata import EntryPoint, entry_points
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from llog.audit_log import write_change
from llog.errors import (
    InvalidArgument,
    ObjectStoreMisconfigured,
    StoreClosed,
    StoreNotInstalled,
    StoreSchemeConflict,
    UnknownStoreScheme,
)
from llog.log.cluster import join_cluster
from llog.log.context import LogContext, LogOptions, wall_clock_ms
from llog.log.keys import Keys
from llog.settings import Settings
from llog.settings.urls import mask_url, normalise_url, scheme_of
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.port import ObjectStore, checked
from llog.stores.objects.wrappers import RetryingObjectStore

# Object stores that a process keeps open for the URIs in index entries. A cluster has two or three.
OBJECT_STORES_OPEN_MAX: Final = 64
# A store that was not requested for this long has no request in progress and may be closed to make room.
OBJECT_STORES_IDLE_MS_MIN: Final = 15 * 60 * 1_000

METADATA_STORES: Final = "llog.metadata_stores"
OBJECT_STORES: Final = "llog.object_stores"

# Stores with optional client libraries, and the extra that installs them.
_EXTRA_OF: Final = {"oxia": "oxia", "oxia+tls": "oxia", "postgresql": "postgres", "postgres": "postgres"}

Opener = Callable[[str, Settings], Awaitable[Any]]


async def open_metadata_store(url: str, settings: Settings) -> MetadataStore:
    """The metadata store at `url`, open and ready."""
    store = await _open("metadata", METADATA_STORES, _checked(url), settings)
    if not isinstance(store, MetadataStore):
        raise _not_a_store(url, store, MetadataStore)
    return store


async def open_object_store(url: str, settings: Settings, *, writing: bool = True) -> ObjectStore:
    """The object store at `url`, open and checked; `writing=False` needs only the right to read."""
    store = await _open("object", OBJECT_STORES, _checked(url), settings)
    if not isinstance(store, ObjectStore):
        raise _not_a_store(url, store, ObjectStore)
    return await checked(store, writing=writing)


def installed_schemes(group: str) -> list[str]:
    return sorted({entry.name for entry in entry_points(group=group)})


async def _open(kind: str, group: str, url: str, settings: Settings) -> object:
    entry = find_entry(kind, group, url)
    try:
        opener: Opener = entry.load()
    except (ImportError, AttributeError) as error:
        raise _cannot_load(url, entry, error) from error
    try:
        return await opener(url, settings)
    except ModuleNotFoundError as error:  # a client library that is imported on first use
        raise _cannot_load(url, entry, error) from error


def find_entry(kind: str, group: str, url: str) -> EntryPoint:
    """The entry point for `url`. Raises `UnknownStoreScheme` or `StoreSchemeConflict`."""
    scheme = scheme_of(url)
    # A package may be found twice (an editable install and a wheel); only different claims conflict.
    claims = {entry.value: entry for entry in entry_points(group=group, name=scheme)}
    if not claims:
        raise UnknownStoreScheme(mask_url(url), kind, installed_schemes(group))
    if len(claims) > 1:
        raise StoreSchemeConflict(scheme, sorted(_describe(entry) for entry in claims.values()))
    [entry] = claims.values()
    return entry


def _checked(url: str) -> str:
    try:
        return normalise_url(url)
    except ValueError as reason:
        raise InvalidArgument(f"store URL {mask_url(url)!r}", str(reason)) from None


def _cannot_load(url: str, entry: EntryPoint, error: Exception) -> StoreNotInstalled:
    extra = _EXTRA_OF.get(entry.name)
    if extra is not None and isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("llog"):
        return StoreNotInstalled(mask_url(url), str(error), f'pip install "leaderless-log[{extra}]"')
    return StoreNotInstalled(mask_url(url), str(error), f"install {_describe(entry)} again")


def _describe(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
    return f"{package} ({entry.value})"


def _not_a_store(url: str, store: object, port: type) -> StoreNotInstalled:
    reason = f"it opened a {type(store).__name__}, which is not a {port.__name__}"
    return StoreNotInstalled(mask_url(url), reason, "mend or remove the package that claims this scheme")


class _Slot:
    """A store being opened, or open."""

    def __init__(self, opening: asyncio.Task[ObjectStore], used_ms: float, pinned: bool) -> None:
        self.opening, self.used_ms, self.pinned = opening, used_ms, pinned
        self.proven_writable = False
        self.wrapped: ObjectStore | None = None


class ObjectStores:
    """The object stores of a process by root; opened on first use, closed together."""

    def __init__(
        self,
        settings: Settings,
        *,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        clock_ms: Callable[[], float] = lambda: time.monotonic() * 1_000,
    ) -> None:
        """`wrap`: puts meters and retries around a store, once for as long as it is open."""
        self._settings, self._wrap = settings, wrap
        self._clock_ms = clock_ms
        self._roots = sorted({settings.wal_url, settings.objects_url}, key=len, reverse=True)
        self._slots: dict[str, _Slot] = {}
        self._closed = False

    async def at(self, root: str, *, writing: bool = True) -> ObjectStore:
        """The store with this root (for example `settings.wal_url`), the same one for every caller.

        The first call of a writer checks write access; a reader does not need it.
        """
        root = _checked(root)
        store = await self._store(root, making=writing)
        slot = self._slots.get(root)
        if writing and slot is not None and not slot.proven_writable:
            await store.check()
            slot.proven_writable = True
        return store

    async def find(self, uri: str) -> tuple[ObjectStore, str]:
        """The store that holds `uri`, wrapped, and the object's name in it."""
        root = self.root_of(uri)
        return self._wrapped(root, await self._store(root)), uri[len(root) + 1 :]

    def wrapped(self, root: str, store: ObjectStore) -> ObjectStore:
        """The wrapper of the store at this root. Stores of the settings keep theirs, since their health is watched on
        it; another store gets a new one when it is opened again."""
        return self._wrapped(_checked(root), store)

    def _wrapped(self, root: str, store: ObjectStore) -> ObjectStore:
        slot = self._slots.get(root)
        if slot is None:  # closed meanwhile
            return self._wrap(store)
        if slot.wrapped is None:
            slot.wrapped = self._wrap(store)
        return slot.wrapped

    def root_of(self, uri: str) -> str:
        """Split the URI; see the docstring of the module. Raises `InvalidArgument` if no name is left."""
        for root in self._roots:
            if uri.startswith(root + "/") and len(uri) > len(root) + 1:
                return root
        scheme, separator, rest = uri.partition("://")
        if scheme == "file":
            cut = rest.rfind(f"/{self._settings.root_prefix}/")
            cut = cut if cut > 0 else rest.rfind("/")
        else:
            cut = rest.find("/")
        # Only memory:// may have an empty root: elsewhere that is no bucket, or the root of the file system.
        if not separator or not rest[cut + 1 :] or cut < (0 if scheme == "memory" else 1):
            raise InvalidArgument("uri", f"{mask_url(uri)!r} does not name an object in a store")
        return f"{scheme}://{rest[:cut]}"

    async def close(self) -> None:
        """Close every store. Idempotent; a failure to close one store does not keep the others open."""
        self._closed = True
        slots, self._slots = list(self._slots.values()), {}
        closed = await asyncio.gather(*(self._close(slot) for slot in slots), return_exceptions=True)
        for outcome in closed:
            if isinstance(outcome, BaseException):
                raise outcome

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _store(self, root: str, *, making: bool = False) -> ObjectStore:
        if self._closed:
            raise StoreClosed("open", mask_url(root))
        slot, evicted = self._slots.get(root), None
        if slot is None:
            # No await from here until the slot is taken, so that the limit holds.
            evicted = self._evict_one() if len(self._slots) >= OBJECT_STORES_OPEN_MAX else None
            opening = asyncio.ensure_future(open_object_store(root, self._settings, writing=making))
            slot = self._slots[root] = _Slot(opening, self._clock_ms(), root in self._roots)
            slot.proven_writable = making
            opening.add_done_callback(lambda task: self._opened(root, task))
        slot.used_ms = self._clock_ms()
        if evicted is not None:
            await self._close(evicted)
        # Shielded: a cancelled caller must not cancel the opening for the other callers.
        try:
            return await asyncio.shield(slot.opening)
        except asyncio.CancelledError:
            if _is_cancelled() or not slot.opening.cancelled():
                raise
            raise StoreClosed("open", mask_url(root), "closed while it was being opened") from None

    def _opened(self, root: str, task: asyncio.Task[ObjectStore]) -> None:
        """Forget a store that could not be opened, so that the next caller tries again."""
        failed = task.cancelled() or task.exception() is not None
        if failed and root in self._slots and self._slots[root].opening is task:
            del self._slots[root]

    def _evict_one(self) -> _Slot:
        idle_since = self._clock_ms() - OBJECT_STORES_IDLE_MS_MIN
        idle = [
            (slot.used_ms, root) for root, slot in self._slots.items() if not slot.pinned and slot.used_ms < idle_since
        ]
        if not idle:
            reason = f"{len(self._slots)} other stores are open and in use; do index entries name the right places?"
            raise ObjectStoreMisconfigured("open", "another object store", reason)
        return self._slots.pop(min(idle)[1])

    async def _close(self, slot: _Slot) -> None:
        if not slot.opening.done():
            slot.opening.cancel()
        try:
            store = await slot.opening
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return
        except Exception:
            return  # it never opened, and its callers got this error
        await store.close()


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, not something that it waited for."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


# -- the stores of the settings ----------------------------------------------------------------------------------------


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
            on_change=lambda change: write_change(*change),
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
        auto_partitions_max=settings.auto_partitions_max,
    )
