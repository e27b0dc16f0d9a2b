"""Claims about watches: every change below the prefix, in order per key, or a RESYNC in place of what was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from llog.errors import InvalidArgument, StoreClosed
from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.port import VERSION_UNKNOWN, Change, ChangeKind, MetadataStore, Put
from llog.testing.metadata_contract.base import (
    OpenStore,
    StoreClaims,
    StoreLink,
    below,
    in_time,
    patiently,
    soon,
    versions_of,
)


async def changes_until(changes: AsyncIterator[Change], path: str) -> list[Change]:
    """What comes up to and including the first change of `path` (or a RESYNC)."""
    seen: list[Change] = []
    while True:
        change = await in_time(anext(changes))
        seen.append(change)
        if change.path == path or change.kind is ChangeKind.RESYNC:
            return seen


def kinds_at(changes: list[Change], path: str) -> list[ChangeKind]:
    return [change.kind for change in changes if change.path == path]


def require_watch(store: MetadataStore) -> None:
    if not store.capabilities.watch:
        pytest.skip("this store has no watch")


class WatchClaims(StoreClaims):
    @pytest.fixture
    async def watcher(self, open_store: OpenStore) -> MetadataStore:
        store = await open_store()
        require_watch(store)
        return store

    @pytest.fixture
    async def writer(self, open_store: OpenStore) -> MetadataStore:
        return await open_store()

    async def test_watch_is_refused_where_it_is_not_claimed(self, store: MetadataStore, root: str) -> None:
        if store.capabilities.watch:
            pytest.skip("this store has a watch")
        with pytest.raises(InvalidArgument):
            async with store.watch(root):
                pass

    async def test_a_watcher_sees_changes_in_order_per_key(
        self, watcher: MetadataStore, writer: MetadataStore, root: str
    ) -> None:
        key = below(root, "a")
        async with watcher.watch(root, route=root) as changes:
            versions = [await writer.put(key, b"1"), await writer.put(key, b"2")]
            await writer.delete(key)
            versions.append(await writer.put(key, b"3"))
            await writer.put(below(root, "end"), b"1")
            seen = await changes_until(changes, below(root, "end").path)
        own = [change for change in seen if change.path == key.path]
        # "At least once": a repeat is allowed, a step back to an older state after a newer one is not.
        steps = [change for i, change in enumerate(own) if i == 0 or change != own[i - 1]]
        put, deleted = ChangeKind.PUT, ChangeKind.DELETED
        assert [change.kind for change in steps] in ([put, put, deleted, put], [put, deleted, put])
        known = [change.version for change in steps if change.kind is put and change.version != VERSION_UNKNOWN]
        assert known in (versions, [])

    async def test_a_watcher_sees_only_its_prefix(
        self, watcher: MetadataStore, writer: MetadataStore, root: str
    ) -> None:
        paths = ["p", "p/a", "p/a/b/c", "p!", "p0", "pp/a", "o", "q/p"]
        async with watcher.watch(f"{root}/p", route=root) as changes:
            for path in [*paths, "p/end"]:
                await writer.put(below(root, path), b"1")
            seen = await changes_until(changes, below(root, "p/end").path)
        assert {change.path for change in seen} == {f"{root}/{path}" for path in ("p", "p/a", "p/a/b/c", "p/end")}

    async def test_a_watcher_without_a_route_sees_every_shard(
        self, watcher: MetadataStore, writer: MetadataStore, root: str
    ) -> None:
        expected = {f"{root}/{i}" for i in range(20)}
        async with watcher.watch(root) as changes:
            for path in expected:
                await writer.put(below(path), b"1")
            seen: set[str] = set()
            while not expected <= seen:
                seen.add((await in_time(anext(changes))).path)
        assert seen == expected

    async def test_a_watcher_sees_only_what_comes_after_it(
        self, watcher: MetadataStore, writer: MetadataStore, root: str
    ) -> None:
        await writer.put(below(root, "before"), b"1")
        async with watcher.watch(root, route=root) as changes:
            await writer.put(below(root, "after"), b"1")
            seen = await changes_until(changes, below(root, "after").path)
        assert kinds_at(seen, below(root, "after").path) == [ChangeKind.PUT]
        assert kinds_at(seen, below(root, "before").path) == []

    async def test_a_watcher_sees_the_end_of_ephemeral_records(
        self, watcher: MetadataStore, writer: MetadataStore, root: str
    ) -> None:
        key = below(root, "claim")
        session = await writer.open_session(timeout_ms=60_000)
        async with watcher.watch(root, route=root) as changes:
            await writer.put(key, b"1", session=session)
            await session.close()
            seen = [await in_time(anext(changes))]
            while seen[-1].kind is not ChangeKind.DELETED:
                seen.append(await in_time(anext(changes)))
        assert {change.path for change in seen} == {key.path}

    async def test_two_watchers_of_one_client_see_the_same(self, store: MetadataStore, root: str) -> None:
        require_watch(store)
        async with store.watch(root) as one, store.watch(root) as two:
            await store.put(below(root, "a"), b"1")
            for changes in (one, two):
                assert (await changes_until(changes, below(root, "a").path))[-1].kind is ChangeKind.PUT

    async def test_a_slow_watcher_misses_nothing_or_gets_a_resync(
        self, watcher: MetadataStore, writer: MetadataStore, root: str
    ) -> None:
        keys = [below(root, f"{i:04d}") for i in range(2_000)]
        latest: dict[str, int] = {}
        async with watcher.watch(root, route=root) as changes:
            for _ in range(METADATA_WATCH_QUEUE_MAX // len(keys) + 2):
                outcomes = await writer.write([(Put(key, b"1"),) for key in keys])
                latest = {key.path: versions_of(o)[0] for key, o in zip(keys, outcomes, strict=True)}
                await asyncio.sleep(0)
            await writer.put(below(root, "end"), b"1")
            seen: list[Change] = []
            while not seen or seen[-1].path != below(root, "end").path:
                seen.append(await in_time(anext(changes)))
        if not any(change.kind is ChangeKind.RESYNC for change in seen):
            last = {change.path: change.version for change in seen}
            assert last.keys() >= latest.keys()
            wrong = {path: version for path, version in latest.items() if last[path] not in (version, VERSION_UNKNOWN)}
            assert not wrong, "the last change of each record is reported last"

    async def test_a_watcher_cut_off_sees_later_changes_or_a_resync(
        self, link: StoreLink, writer: MetadataStore, root: str
    ) -> None:
        require_watch(link.store)
        if not link.networked:
            pytest.skip("this store has no connections")
        async with AsyncExitStack() as stack:
            changes = await patiently(lambda: stack.enter_async_context(link.store.watch(root, route=root)))
            for turn in range(3):
                await link.cut()
                await writer.put(below(root, f"during-{turn}"), b"1")
                seen = await changes_until(changes, below(root, f"during-{turn}").path)
                if seen[-1].kind is not ChangeKind.RESYNC:
                    continue

                # After a RESYNC, later changes must arrive.
                async def heard(turn: int = turn) -> bool:
                    await writer.put(below(root, f"later-{turn}"), b"1")
                    try:
                        change = await asyncio.wait_for(anext(changes), 1)
                    except TimeoutError:
                        return False
                    return change.path == below(root, f"later-{turn}").path

                await soon("changes after a RESYNC arrive", heard)

    async def test_a_watch_ends_with_its_store(self, store: MetadataStore, root: str) -> None:
        require_watch(store)
        async with store.watch(root) as changes:
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.05)
            await store.close()
            with pytest.raises((StoreClosed, StopAsyncIteration)):
                await in_time(waiting)
