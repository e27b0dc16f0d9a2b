"""A claim saves work and guards nothing."""

from __future__ import annotations

import time

from llog.log.keys import Log
from llog.pipeline.runtime.log_choice import claim, holder, release
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.log_suite import context_on

ORDERS = Log("orders", 0)


async def test_one_compactor_holds_a_claim_until_it_releases_it_or_its_session_ends() -> None:
    store = MemoryStore(MemoryBacking(shards=1, atomic_groups=True))
    context = context_on(store, MemoryObjectStore(f"memory://claim-{time.time_ns()}"), 1)
    first, second = [await store.open_session(timeout_ms=10_000) for _ in range(2)]
    assert await claim(context, ORDERS, first, compactor_id="one", incarnation=1)
    assert await claim(context, ORDERS, first, compactor_id="one", incarnation=1), "its own claim is no obstacle"
    assert not await claim(context, ORDERS, second, compactor_id="two", incarnation=1)
    await release(context, ORDERS, compactor_id="two")
    held = await holder(context, ORDERS)
    assert held is not None
    assert held.compactor_id == "one"
    await release(context, ORDERS, compactor_id="one")
    assert await claim(context, ORDERS, second, compactor_id="two", incarnation=1)
    await second.close()
    assert await holder(context, ORDERS) is None
