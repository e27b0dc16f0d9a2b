"""Schemes find their stores, URIs find their roots, and what cannot be opened says what to do."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest

import llog
from llog import wiring
from llog.errors import (
    InvalidArgument,
    ObjectStoreMisconfigured,
    ObjectStoreUnavailable,
    StoreClosed,
    StoreNotInstalled,
    StoreSchemeConflict,
    UnknownStoreScheme,
)
from llog.settings import Settings
from llog.stores.metadata.port import Key
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from llog.wiring import OBJECT_STORES_IDLE_MS_MIN, OBJECT_STORES_OPEN_MAX

FAKE_MODULE = "a_third_party_store"
Opening = Callable[[str, Settings], object]


def make_settings(**overrides: object) -> Settings:
    return Settings.from_env(
        {"HOME": "/nonexistent"}, **{"metadata_url": "memory://", "objects_url": "memory://", **overrides}
    )


class FakeEntryPoint(EntryPoint):
    """An entry point of a package that is not installed; the real class keeps its distribution to itself."""

    dist = types.SimpleNamespace(name="other-package", version="1.0")  # type: ignore[assignment]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Declare entry points as another package would, next to those that are really installed."""
    real = entry_points
    added: list[EntryPoint] = []

    def fake(**query: Any) -> EntryPoints:
        return EntryPoints([*real(**query), *(entry for entry in added if entry.matches(**query))])

    monkeypatch.setattr(wiring, "entry_points", fake)
    module = types.ModuleType(FAKE_MODULE)
    monkeypatch.setitem(sys.modules, FAKE_MODULE, module)

    def add(group: str, scheme: str, opener: Opening | None = None, value: str = f"{FAKE_MODULE}:open_it") -> None:
        if opener is not None:
            module.open_it = opener  # type: ignore[attr-defined]
        added.append(FakeEntryPoint(scheme, value, group))

    return add


# -- schemes --------------------------------------------------------------------------------------------------------


async def test_our_own_stores_open_by_url() -> None:
    settings = make_settings()
    async with await wiring.open_metadata_store("memory://wiring", settings) as metadata:
        key = Key("llog/a")
        await metadata.put(key, b"1")
        assert (await metadata.get(key)) is not None
    async with await wiring.open_object_store("memory://wiring", settings) as objects:
        await objects.put("a", [b"1"])
        assert bytes(await objects.get("a")) == b"1"


def test_every_scheme_of_the_documentation_is_registered() -> None:
    metadata = {"memory", "lmdb", "postgresql", "postgres", "oxia", "oxia+tls"}
    assert metadata <= set(wiring.installed_schemes(wiring.METADATA_STORES))
    assert {"memory", "file", "s3"} <= set(wiring.installed_schemes(wiring.OBJECT_STORES))


async def test_another_package_adds_a_scheme_and_gets_url_and_settings(install: Callable[..., None]) -> None:
    seen: list[tuple[str, Settings]] = []

    async def open_it(url: str, settings: Settings) -> ObjectStore:
        seen.append((url, settings))
        return MemoryObjectStore("memory://elsewhere")

    install(wiring.OBJECT_STORES, "tape", open_it)
    settings = make_settings()
    store = await wiring.open_object_store("tape://robot/7/", settings)
    assert isinstance(store, MemoryObjectStore)
    assert seen == [("tape://robot/7", settings)]


async def test_an_unknown_scheme_is_refused_with_those_installed_and_without_the_password() -> None:
    with pytest.raises(UnknownStoreScheme) as caught:
        await wiring.open_metadata_store("etcd://user:hunter2@host", make_settings())
    assert "lmdb" in caught.value.installed
    assert "memory, oxia" in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_metadata_scheme_is_no_object_store() -> None:
    with pytest.raises(UnknownStoreScheme, match="installed: file, memory, s3"):
        await wiring.open_object_store("lmdb:///somewhere", make_settings())


@pytest.mark.parametrize("url", ["", "memory", "file://relative", "oxia://h:0"])
async def test_what_is_not_a_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="store URL"):
        await wiring.open_object_store(url, make_settings())


async def test_a_scheme_that_two_packages_claim_is_refused_naming_both(install: Callable[..., None]) -> None:
    install(wiring.OBJECT_STORES, "memory", value="other.module:open_it")
    with pytest.raises(StoreSchemeConflict) as caught:
        await wiring.open_object_store("memory://", make_settings())
    assert "leaderless-log" in str(caught.value)
    assert "other-package 1.0 (other.module:open_it)" in str(caught.value)


async def test_one_claim_that_is_seen_twice_is_no_conflict(install: Callable[..., None]) -> None:
    install(wiring.OBJECT_STORES, "memory", value="llog.stores.objects.memory:open_from_url")
    async with await wiring.open_object_store("memory://", make_settings()) as store:
        assert store.kind == "memory"


@pytest.mark.parametrize(
    ("scheme", "extra"), [("oxia", "oxia"), ("oxia+tls", "oxia"), ("postgres", "postgres"), ("postgresql", "postgres")]
)
async def test_a_missing_extra_is_named(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]
) -> None:
    monkeypatch.setattr(wiring, "entry_points", lambda **query: [FakeEntryPoint(scheme, "no_such_client:x", "")])
    with pytest.raises(StoreNotInstalled) as caught:
        await wiring.open_metadata_store(f"{scheme}://host", make_settings())
    assert caught.value.remedy == f'pip install "leaderless-log[{extra}]"'


async def test_a_client_library_missing_at_opening_time_is_named_too(install: Callable[..., None]) -> None:
    async def open_it(url: str, settings: Settings) -> ObjectStore:
        raise ModuleNotFoundError("No module named 'tape_robot'", name="tape_robot")

    install(wiring.OBJECT_STORES, "tape", open_it)
    with pytest.raises(StoreNotInstalled, match="tape_robot"):
        await wiring.open_object_store("tape://x", make_settings())


async def test_a_package_that_opens_something_else_is_found_out(install: Callable[..., None]) -> None:
    async def open_it(url: str, settings: Settings) -> object:
        return object()

    install(wiring.OBJECT_STORES, "tape", open_it)
    with pytest.raises(StoreNotInstalled, match="not a ObjectStore"):
        await wiring.open_object_store("tape://x", make_settings())


# -- from URI to root -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("s3://bucket/some/prefix/llog/wal-shared/1", "s3://bucket/some/prefix"),
        ("s3://bucket/llog/wal-shared/1", "s3://bucket"),
        ("s3://other/llog/wal-shared/1", "s3://other"),
        ("file:///fast/llog/wal-shared/1", "file:///fast"),
        ("file:///faster/llog/wal-shared/1", "file:///faster"),
        ("file:///llog/old/llog/wal-shared/1", "file:///llog/old"),
        ("file:///old/another-root/wal-shared/1", "file:///old/another-root/wal-shared"),
        ("memory://name/llog/wal-shared/1", "memory://name"),
        ("memory:///llog/wal-shared/1", "memory://"),
        ("tape://robot/llog/wal-shared/1", "tape://robot"),
    ],
)
def test_a_uri_is_cut_at_its_root(uri: str, root: str) -> None:
    settings = make_settings(objects_url="s3://bucket/some/prefix", wal_url="file:///fast")
    assert wiring.ObjectStores(settings).root_of(uri) == root
    assert uri.startswith(root + "/")


@pytest.mark.parametrize(
    "uri", ["", "bucket/x", "s3://", "s3://bucket", "s3://bucket/", "s3:///x", "file:///x", "memory://"]
)
def test_what_names_no_object_is_refused(uri: str) -> None:
    with pytest.raises(InvalidArgument, match="does not name an object"):
        wiring.ObjectStores(make_settings()).root_of(uri)


async def test_a_uri_leads_to_the_object_it_names(tmp_path: Path) -> None:
    settings = make_settings(objects_url="memory://segments", wal_url=f"file://{tmp_path}/wal")
    async with wiring.ObjectStores(settings) as stores:
        wal, segments = await stores.at(settings.wal_url), await stores.at(settings.objects_url)
        for store in (wal, segments):
            await store.put("llog/wal-shared/1", [store.url.encode()])
            holder, name = await stores.find(store.uri("llog/wal-shared/1"))
            assert (holder, name) == (store, "llog/wal-shared/1")
            assert bytes(await holder.get(name)) == store.url.encode()
    with pytest.raises(StoreClosed):
        await stores.at(settings.wal_url)


async def test_a_reader_without_settings_finds_objects_but_never_makes_a_directory(tmp_path: Path) -> None:
    async with wiring.ObjectStores(make_settings()) as stores:
        with pytest.raises(ObjectStoreMisconfigured, match="mounted"):
            await stores.find(f"file://{tmp_path}/gone/llog/wal-shared/1")
        assert not (tmp_path / "gone").exists()
        (tmp_path / "there/llog/wal-shared").mkdir(parents=True)
        (tmp_path / "there/llog/wal-shared/1").write_bytes(b"bytes")
        holder, name = await stores.find(f"file://{tmp_path}/there/llog/wal-shared/1")
        assert bytes(await holder.get(name)) == b"bytes"


# -- opening once, bounded, closing all -----------------------------------------------------------------------------


class Opened(MemoryObjectStore):
    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_store_is_opened_once_for_many_callers_and_a_cancelled_one_does_not_affect_others(
    install: Callable[..., None],
) -> None:
    opened: list[Opened] = []
    ready = asyncio.Event()

    async def open_it(url: str, settings: Settings) -> ObjectStore:
        opened.append(Opened("memory://x"))
        await ready.wait()
        return opened[-1]

    install(wiring.OBJECT_STORES, "tape", open_it)
    stores = wiring.ObjectStores(make_settings())
    waiting = [asyncio.ensure_future(stores.find(f"tape://robot/{n}")) for n in range(10)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting[0].cancel()
    ready.set()
    found = await asyncio.gather(*waiting[1:])
    assert len(opened) == 1
    assert {store for store, _ in found} == set(opened)
    await stores.close()
    assert opened[0].closed


async def test_a_store_that_could_not_be_opened_is_tried_again(install: Callable[..., None]) -> None:
    attempts = 0

    async def open_it(url: str, settings: Settings) -> ObjectStore:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ObjectStoreUnavailable("open", url)
        return Opened("memory://x")

    install(wiring.OBJECT_STORES, "tape", open_it)
    async with wiring.ObjectStores(make_settings()) as stores:
        with pytest.raises(ObjectStoreUnavailable):
            await stores.at("tape://robot")
        await stores.at("tape://robot")
    assert attempts == 2


async def test_open_stores_are_bounded_and_only_idle_ones_make_room(install: Callable[..., None]) -> None:
    opened: dict[str, Opened] = {}
    now_ms = 0.0

    async def open_it(url: str, settings: Settings) -> ObjectStore:
        opened[url] = Opened("memory://x")
        return opened[url]

    install(wiring.OBJECT_STORES, "tape", open_it)
    settings = make_settings(objects_url="tape://pinned")
    async with wiring.ObjectStores(settings, clock_ms=lambda: now_ms) as stores:
        await stores.at("tape://pinned")
        for n in range(OBJECT_STORES_OPEN_MAX - 1):
            await stores.at(f"tape://robot-{n}")
        with pytest.raises(ObjectStoreMisconfigured, match="open and in use"):
            await stores.at("tape://one-more")
        now_ms = OBJECT_STORES_IDLE_MS_MIN + 1
        await stores.at("tape://robot-0")  # in use again
        await stores.at("tape://one-more")
        assert [url for url, store in opened.items() if store.closed] == ["tape://robot-1"]
    assert all(store.closed for store in opened.values())


async def test_closing_ends_an_opening_under_way(install: Callable[..., None]) -> None:
    begun, ended = asyncio.Event(), False

    async def open_it(url: str, settings: Settings) -> ObjectStore:
        nonlocal ended
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended = True
        raise AssertionError("not reached")

    install(wiring.OBJECT_STORES, "tape", open_it)
    stores = wiring.ObjectStores(make_settings())
    asking = asyncio.ensure_future(stores.at("tape://slow"))
    await begun.wait()
    await stores.close()
    assert ended
    with pytest.raises(StoreClosed):
        await asking


def test_every_public_name_is_importable_from_the_package() -> None:
    missing = [name for name in llog.__all__ if getattr(llog, name, None) is None]
    assert not missing
    assert {"Settings", "LlogError", "OffsetOutOfRange"} <= set(llog.__all__)
