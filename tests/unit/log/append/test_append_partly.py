"""A flush of several logs of which the store answers for some."""

from __future__ import annotations

import time

import pytest

from llog.errors import AppendNotCommitted, MetadataStoreError
from llog.log.append.append import Appended, Appender
from llog.log.keys import Log
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import Key, Record
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.log_suite import ORDERS, contents, context_on, group

OTHER = Log("orders", 1)


class PartlyDeaf(MemoryStore):
    """Answers no request for one log's keys."""

    deaf_to: str = "nothing"

    async def get(self, key: Key, *, strict: bool = False) -> Record | None:
        if self.deaf_to in key.path:
            raise MetadataStoreError("get", key.path, "permission denied")
        return await super().get(key, strict=strict)


async def test_a_log_that_cannot_be_read_does_not_fail_its_neighbours() -> None:
    store = PartlyDeaf(MemoryBacking(shards=1, atomic_groups=False))
    context = context_on(store, MemoryObjectStore(f"memory://partly-{time.time_ns()}"), 1)
    store.deaf_to = context.keys.control(OTHER).path
    appender = Appender(context)
    landed, refused = await appender.append([group(ORDERS, b"a"), group(OTHER, b"b")])
    assert isinstance(landed, Appended)
    assert isinstance(refused, AppendNotCommitted)
    assert "permission denied" in str(refused)
    with pytest.raises(MetadataStoreError):
        await appender.append([group(OTHER, b"alone")])
    store.deaf_to = "nothing"
    [landed] = await appender.append([group(OTHER, b"c")])
    assert isinstance(landed, Appended)
    await appender.close()
    assert await contents(context, ORDERS) == [(1, b"a")]
    assert await contents(context, OTHER) == [(1, b"c")]
