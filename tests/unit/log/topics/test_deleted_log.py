"""A writer that knew a log before its topic was deleted."""

from __future__ import annotations

import time

import pytest

from llog.errors import LogDeleted
from llog.log.append.append import Appended, Appender
from llog.log.topics.delete import delete_topic
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.log_suite import ORDERS, contents, context_on, group


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_writer_refused_by_a_tombstone_creates_the_topic_again_with_its_next_append(atomic: bool) -> None:
    store = MemoryStore(MemoryBacking(shards=1, atomic_groups=atomic))
    context = context_on(store, MemoryObjectStore(f"memory://deleted-{time.time_ns()}"), 1)
    appender = Appender(context)
    await appender.append([group(ORDERS, b"old")])
    await delete_topic(context, ORDERS.topic)
    [refused] = await appender.append([group(ORDERS, b"refused")])
    assert isinstance(refused, LogDeleted)
    [landed] = await appender.append([group(ORDERS, b"new")])
    assert isinstance(landed, Appended), landed
    await appender.close()
    assert await contents(context, ORDERS) == [(1, b"new")]
