"""`llog stores check`: try each configured store step by step, and give advice about the first step that fails.

It finds a wrong address, a missing bucket, a read-only key or a missing extra before a broker does. Only probes below
`@cluster/probes` are written; they are removed even when a step fails. Every step has a time limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import typer

from llog import errors
from llog.cli.exits import FAILED
from llog.cli.frame import with_stores
from llog.cli.output import AsJson, print_report

if TYPE_CHECKING:
    from llog.settings import Settings
    from llog.stores.metadata.port import Key, MetadataStore
    from llog.stores.objects.port import ObjectStore

app = typer.Typer(help="Check the metadata store and the object stores.", no_args_is_help=True)

# A step fails when the store has not answered within this many LLOG_REQUEST_TIMEOUT_MS.
STEP_REQUEST_TIMEOUTS: Final = 3

T = TypeVar("T")

# The first matching class decides.
ADVICE: Final[tuple[tuple[type[errors.LlogError], str], ...]] = (
    (errors.ObjectStoreClockSkew, "synchronise this machine and the store with a time server (NTP); `llog doctor` says"
     " which clock is wrong"),
    (errors.ObjectStoreDenied, "check LLOG_S3_ACCESS_KEY_ID, LLOG_S3_SECRET_ACCESS_KEY and their permissions, or the"
     " owner of the directory"),
    (errors.ObjectStoreMisconfigured, "the bucket must exist and match LLOG_S3_ENDPOINT_URL and LLOG_S3_REGION_NAME; a"
     " directory must be writable"),
    (errors.ObjectStoreFull, "free space, or point LLOG_OBJECTS_URL or LLOG_WAL_URL elsewhere"),
    (errors.ObjectStoreError, "check that the server at LLOG_S3_ENDPOINT_URL is running and reachable from here"),
    (errors.MetadataDenied, "check the user and password in LLOG_METADATA_URL, or LLOG_OXIA_TOKEN"),
    (errors.MetadataMisconfigured, "the store answers but is not set up as expected: check LLOG_METADATA_URL and"
     " LLOG_OXIA_NAMESPACE"),
    (errors.MetadataFull, "free space, or point LLOG_METADATA_URL elsewhere"),
    (errors.MetadataStoreError, "check that the server at LLOG_METADATA_URL is running and reachable from here"),
    (errors.StoreNotInstalled, "follow the message, in the environment where llog is installed"),
    (errors.LlogError, "correct the setting that the message names; `llog settings` shows all of them"),
)  # fmt: skip


class StoreStep(NamedTuple):
    store: str
    url: str
    step: str
    ok: bool
    ms: float
    error: str = ""
    advice: str = ""


@app.callback()
def _stores() -> None:
    """Keeps `check` a sub-command although it is the only one."""


@app.command()
@with_stores("metadata", "objects", "wal")
def check(settings: Settings, as_json: AsJson = False) -> None:
    """Open each store and write, read and remove a probe; exit code 1 when a step fails."""
    import asyncio

    steps = asyncio.run(check_stores(settings))
    ok = all(step.ok for step in steps)
    rows = [(s.store, s.url, s.step, "ok" if s.ok else "FAILED", f"{s.ms:.1f}") for s in steps]
    document = {"ok": ok, "steps": [step._asdict() for step in steps]}
    print_report(as_json, document, ("store", "url", "step", "result", "ms"), rows)
    for step in steps:
        if not step.ok:
            typer.echo(f"llog: {step.store} store, {step.step}: {step.error}\n  {step.advice}", err=True)
    if not ok:
        raise typer.Exit(FAILED)


class _StepFailed(Exception):
    """A step failed and is recorded. `uncertain`: its change may have happened all the same."""

    def __init__(self, *, uncertain: bool) -> None:
        super().__init__()
        self.uncertain = uncertain


class _Steps:
    """Runs the steps of one store in order and records each result."""

    def __init__(self, store: str, url: str, timeout_ms: int) -> None:
        from llog.settings.urls import mask_url

        self.store, self.url, self.timeout_ms = store, mask_url(url), timeout_ms
        self.done: list[StoreStep] = []

    async def run(self, name: str, work: Awaitable[T]) -> T:
        import asyncio

        from llog.settings.urls import mask_url

        start = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_ms / 1_000):
                answer = await work
        except TimeoutError as error:
            advice = "check that the server is up and no firewall drops packets; LLOG_REQUEST_TIMEOUT_MS sets the limit"
            self._add(name, start, f"no answer within {self.timeout_ms} ms", advice)
            raise _StepFailed(uncertain=True) from error
        except errors.LlogError as error:
            self._add(name, start, mask_url(str(error)), advice_on(error))
            raise _StepFailed(uncertain=isinstance(error, errors.UncertainOutcome)) from error
        self._add(name, start)
        return answer

    def _add(self, name: str, start: float, error: str = "", advice: str = "") -> None:
        ms = round((time.perf_counter() - start) * 1_000, 1)
        self.done.append(StoreStep(self.store, self.url, name, not error, ms, error, advice))


def advice_on(error: errors.LlogError) -> str:
    return next(advice for kind, advice in ADVICE if isinstance(error, kind))


async def check_stores(settings: Settings) -> list[StoreStep]:
    """All steps, store by store. The steps of a store end at its first failure."""
    timeout_ms = settings.request_timeout_ms * STEP_REQUEST_TIMEOUTS
    object_urls = {"objects": settings.objects_url, "wal": settings.wal_url}
    if settings.wal_url == settings.objects_url:
        del object_urls["wal"]
    done = await _check_metadata(_Steps("metadata", settings.metadata_url, timeout_ms), settings)
    for store, url in object_urls.items():
        done += await _check_objects(_Steps(store, url, timeout_ms), url, settings)
    return done


def _probe_name(settings: Settings) -> str:
    import uuid

    return f"{settings.root_prefix}/@cluster/probes/{uuid.uuid4().hex}"


async def _check_metadata(steps: _Steps, settings: Settings) -> list[StoreStep]:
    from llog import wiring
    from llog.stores.metadata.port import Key

    key = Key(_probe_name(settings), "@cluster")
    with contextlib.suppress(_StepFailed):
        store = await steps.run("open", wiring.open_metadata_store(settings.metadata_url, settings))
        try:
            await _probe_metadata(steps, store, key)
        finally:
            await steps.run("close", store.close())
    return steps.done


async def _probe_metadata(steps: _Steps, store: MetadataStore, key: Key) -> None:
    from llog.stores.metadata.port import ABSENT

    value = key.path.encode()
    async with _removed_after(steps, lambda: store.delete(key)):
        await steps.run("put", store.put(key, value, expected=ABSENT))
        record = await steps.run("get", store.get(key, strict=True))
        await steps.run("compare", _require(record is not None and record.value == value, key.path))


async def _check_objects(steps: _Steps, url: str, settings: Settings) -> list[StoreStep]:
    from llog import wiring

    with contextlib.suppress(_StepFailed):
        store = await steps.run("open", wiring.open_object_store(url, settings))
        try:
            await steps.run("check", store.check())
            await _probe_objects(steps, store, _probe_name(settings))
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
    """Remove the probe afterwards, unless the store refused to write it."""
    try:
        yield
    except _StepFailed as failed:
        if failed.uncertain or steps.done[-1].step != "put":
            await steps.run("delete", remove())
        raise
    await steps.run("delete", remove())


async def _require(reads_back: bool, subject: str) -> None:
    if not reads_back:
        raise errors.StoreError("compare", subject, "the store returns other bytes than were written")
