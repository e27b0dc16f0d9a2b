"""Try the stores in force, one small step after another, and say what to do about the first that fails.

Why it exists: a wrong address, a missing bucket, a read-only key or an extra that is not installed should be found by
one command before a broker meets it, not in a stack trace at the first produce.

What must stay true: only names drawn here are written, below `@cluster/probes` of the root; they are removed again
even when a step fails; every step is bounded in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from llog import errors
from llog.settings import Settings
from llog.settings.urls import mask_url
from llog.stores.metadata.port import ABSENT, Key, MetadataStore
from llog.stores.objects.port import ObjectStore
from llog.wiring import open_metadata_store, open_object_store

# `llog stores check` waits this many request timeouts for one step before it calls the store silent.
STORES_CHECK_STEP_TIMEOUTS: Final = 3


T = TypeVar("T")

# What to do, by error; the first class that fits.
ADVICE: Final[tuple[tuple[type[errors.LlogError], str], ...]] = (
    (errors.ObjectStoreDenied, "check LLOG_S3_ACCESS_KEY_ID, LLOG_S3_SECRET_ACCESS_KEY and what they may do, or the"
     " directory's owner"),
    (errors.ObjectStoreMisconfigured, "the bucket must exist and LLOG_S3_ENDPOINT_URL and LLOG_S3_REGION_NAME must be"
     " its own; a directory must be writable"),
    (errors.ObjectStoreFull, "free space, or point LLOG_OBJECTS_URL or LLOG_WAL_URL elsewhere"),
    (errors.ObjectStoreError, "is the server of LLOG_S3_ENDPOINT_URL running and reachable from here?"),
    (errors.MetadataDenied, "check the user and password in LLOG_METADATA_URL, or LLOG_OXIA_TOKEN"),
    (errors.MetadataMisconfigured, "the store answers, but not as set up: check LLOG_METADATA_URL and"
     " LLOG_OXIA_NAMESPACE"),
    (errors.MetadataFull, "free space, or point LLOG_METADATA_URL elsewhere"),
    (errors.MetadataStoreError, "is the server of LLOG_METADATA_URL running and reachable from here?"),
    (errors.StoreNotInstalled, "do what the message says, in the environment llog runs in"),
    (errors.LlogError, "mend the setting the message names; `llog settings` shows what is in force"),
)  # fmt: skip


class Step(NamedTuple):
    store: str
    url: str
    step: str
    ok: bool
    ms: float
    error: str = ""
    advice: str = ""


class _Failed(Exception):
    """A step failed; it is on record. `uncertain`: it may have happened all the same."""

    def __init__(self, *, uncertain: bool) -> None:
        super().__init__()
        self.uncertain = uncertain


class _Steps:
    """Runs the steps of one store, one after the other, and keeps what came of them."""

    def __init__(self, store: str, url: str, timeout_ms: int) -> None:
        self.store, self.url, self.timeout_ms = store, mask_url(url), timeout_ms
        self.done: list[Step] = []

    async def run(self, name: str, work: Awaitable[T]) -> T:
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_ms / 1_000):
                answer = await work
        except TimeoutError as error:
            wait = f"no answer within {self.timeout_ms} ms"
            advice = "is the server there, and does nothing drop its packets? LLOG_REQUEST_TIMEOUT_MS sets the patience"
            self._add(name, start, wait, advice)
            raise _Failed(uncertain=True) from error
        except errors.LlogError as error:
            self._add(name, start, mask_url(str(error)), advice_on(error))
            raise _Failed(uncertain=isinstance(error, errors.UncertainOutcome)) from error
        self._add(name, start)
        return answer

    def _add(self, name: str, start: float, error: str = "", advice: str = "") -> None:
        ms = round((time.perf_counter() - start) * 1_000, 1)
        self.done.append(Step(self.store, self.url, name, not error, ms, error, advice))


def advice_on(error: errors.LlogError) -> str:
    return next(advice for kind, advice in ADVICE if isinstance(error, kind))


async def check_stores(settings: Settings) -> list[Step]:
    """Every step taken, store after store; a store's steps end at its first failure."""
    timeout_ms = settings.request_timeout_ms * STORES_CHECK_STEP_TIMEOUTS
    places = {"objects": settings.objects_url, "wal": settings.wal_url}
    if settings.wal_url == settings.objects_url:
        del places["wal"]
    done = await _check_metadata(_Steps("metadata", settings.metadata_url, timeout_ms), settings)
    for store, url in places.items():
        done += await _check_objects(_Steps(store, url, timeout_ms), url, settings)
    return done


async def _check_metadata(steps: _Steps, settings: Settings) -> list[Step]:
    key = Key(f"{settings.root_prefix}/@cluster/probes/{uuid.uuid4().hex}", "@cluster")
    with contextlib.suppress(_Failed):
        store = await steps.run("open", open_metadata_store(settings.metadata_url, settings))
        try:
            await _probe_metadata(steps, store, key)
        finally:
            await steps.run("close", store.close())
    return steps.done


async def _probe_metadata(steps: _Steps, store: MetadataStore, key: Key) -> None:
    value = key.path.encode()
    async with _removed_after(steps, lambda: store.delete(key)):
        await steps.run("put", store.put(key, value, expected=ABSENT))
        record = await steps.run("get", store.get(key, strict=True))
        await steps.run("compare", _require(record is not None and record.value == value, key.path))


async def _check_objects(steps: _Steps, url: str, settings: Settings) -> list[Step]:
    name = f"{settings.root_prefix}/@cluster/probes/{uuid.uuid4().hex}"
    with contextlib.suppress(_Failed):
        store = await steps.run("open", open_object_store(url, settings))
        try:
            await steps.run("check", store.check())
            await _probe_objects(steps, store, name)
        finally:
            await steps.run("close", store.close())
    return steps.done


async def _probe_objects(steps: _Steps, store: ObjectStore, name: str) -> None:
    content = name.encode()
    async with _removed_after(steps, lambda: store.delete(name)):
        await steps.run("put", store.put(name, [content], if_absent=True))
        whole = await steps.run("get", store.get(name))
        middle = await steps.run("get a range", store.get_range(name, 1, 8))
        await steps.run("compare", _require(bytes(whole) == content and bytes(middle) == content[1:9], name))


@contextlib.asynccontextmanager
async def _removed_after(steps: _Steps, remove: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """The probe goes, unless its put was refused outright and there is nothing to remove."""
    try:
        yield
    except _Failed as failed:
        if failed.uncertain or steps.done[-1].step != "put":
            await steps.run("delete", remove())
        raise
    await steps.run("delete", remove())


async def _require(reads_back: bool, subject: str) -> None:
    if not reads_back:
        raise errors.StoreError("compare", subject, "reads back otherwise than it was written")
