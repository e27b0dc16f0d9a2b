"""Claims about opening, closing, cancelling and the store's clock."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from llog.errors import StoreClosed
from llog.stores.metadata.port import Key, MetadataStore, Put
from llog.testing.metadata_contract.base import OpenStore, StoreClaims, below, in_time

CLOCK_SKEW_MS_MAX = 3_600_000


class LifecycleClaims(StoreClaims):
    async def test_a_closed_store_refuses_everything(self, store: MetadataStore, root: str) -> None:
        await store.put(below(root, "a"), b"1")
        await store.close()
        await store.close()
        key, parent = below(root, "a"), Key(root, root)
        for call in (
            store.get(key),
            store.get_many([key], strict=True),
            store.put(key, b"2"),
            store.delete(key),
            store.scan(parent),
            store.ceiling(parent, "a"),
            store.open_session(timeout_ms=10_000),
            anext(store.scan_tree(root)),
        ):
            with pytest.raises(StoreClosed):
                await call
        if store.capabilities.watch:
            with pytest.raises(StoreClosed):
                async with store.watch(root):
                    pass

    async def test_closing_one_client_leaves_the_others_alone(self, open_store: OpenStore, root: str) -> None:
        one, two = await open_store(), await open_store()
        await one.put(below(root, "a"), b"1")
        await one.close()
        assert await two.get(below(root, "a"), strict=True) is not None
        await two.put(below(root, "a"), b"2")

    async def test_a_store_is_a_context_manager(self, open_store: OpenStore, root: str) -> None:
        async with await open_store() as store:
            await store.put(below(root, "a"), b"1")
        with pytest.raises(StoreClosed):
            await store.get(below(root, "a"))

    async def test_calls_under_way_at_close_end(self, open_store: OpenStore, root: str) -> None:
        store, witness = await open_store(), await open_store()
        keys = [below(root, f"{i:03d}") for i in range(50)]
        calls = [asyncio.ensure_future(store.put(key, b"1")) for key in keys]
        await asyncio.sleep(0)
        await in_time(store.close())
        answers = await in_time(asyncio.gather(*calls, return_exceptions=True))
        found = await witness.get_many(keys, strict=True)
        for answer, record in zip(answers, found, strict=True):
            if isinstance(answer, int):
                assert record is not None, "an acknowledged write is there"
                assert record.version == answer
            else:
                assert isinstance(answer, StoreClosed), repr(answer)

    async def test_cancelled_calls_leave_the_store_usable(self, store: MetadataStore, root: str) -> None:
        rng = random.Random(5)
        for turn in range(20):
            keys = [below(root, str(turn), str(i)) for i in range(20)]
            calls = [asyncio.ensure_future(store.write([(Put(key, b"1"),)])) for key in keys]
            calls += [asyncio.ensure_future(store.scan(below(root, str(turn)))) for _ in range(3)]  # type: ignore[arg-type]
            await asyncio.sleep(rng.random() * 0.005)
            for call in rng.sample(calls, 12):
                call.cancel()
            answers = await in_time(asyncio.gather(*calls, return_exceptions=True))
            assert all(isinstance(answer, list | asyncio.CancelledError) for answer in answers), answers
        key = below(root, "after")
        version = await in_time(store.put(key, b"1"))
        record = await in_time(store.get(key, strict=True))
        assert record is not None
        assert record.version == version

    async def test_the_stores_clock_is_near_ours_where_it_has_one(self, store: MetadataStore) -> None:
        if not store.capabilities.server_clock:
            assert await store.server_time_ms() is None
            return
        before = await store.server_time_ms()
        after = await store.server_time_ms()
        assert before is not None
        assert after is not None
        assert before <= after
        assert abs(after - time.time() * 1_000) < CLOCK_SKEW_MS_MAX
