"""Notifications: resumed where they broke off, or an honest gap."""

from __future__ import annotations

import asyncio

from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.oxia.client import Changed, Event, Gap, OxiaClient
from llog.stores.metadata.oxia.client.notifications import OXIA_NOTIFICATIONS_RESUME_MS_MAX, ShardNotifications
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.store import OxiaStore
from llog.stores.metadata.port import Change, ChangeKind
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.oxia.fake_server import FakeOxia


class Heard:
    """Awaitable events of a shard."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    async def count(self, count: int) -> list[Event]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.events) < count:
                self._more.clear()
                await self._more.wait()
        return self.events


async def test_a_broken_stream_is_resumed_behind_the_last_batch(server: FakeOxia, client: OxiaClient) -> None:
    heard = Heard()
    server.notify("before", 1)
    notifications = client.notifications(0, heard)
    await notifications.started()
    server.notify("a", 2)
    await heard.count(1)
    server.break_notifications()
    server.notify("during", 3)
    await until(lambda: len(server.notification_requests) > 1, "an attempt while the stream is broken")
    server.notifications_break.clear()
    assert await heard.count(2) == [Changed("a", 2), Changed("during", 3)]
    assert server.notification_requests[-1].start_offset_exclusive == 2
    await notifications.close()


async def test_a_break_too_long_is_a_gap(server: FakeOxia, client: OxiaClient) -> None:
    now, heard = [0.0], Heard()
    notifications = ShardNotifications(0, client.options, client._directory, heard, lambda: now[0])
    await notifications.started()
    server.notify("a", 1)
    await heard.count(1)
    server.break_notifications()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(heard.events) == 1:
            # Again, because an hour that passes while an attempt is under way looks like an hour that it lived.
            now[0] += OXIA_NOTIFICATIONS_RESUME_MS_MAX / 1_000 + 1
            await asyncio.sleep(0.01)
    assert isinstance(heard.events[1], Gap)
    server.notifications_break.clear()

    def hears_again() -> bool:
        # A stream that begins after a gap begins behind the newest batch, so one notification might come too early.
        server.notify("later", 2)
        return len(heard.events) > 2

    await until(hears_again, "notifications after the gap")
    assert heard.events[2] == Changed("later", 2)
    assert any(not request.HasField("start_offset_exclusive") for request in server.notification_requests[1:])
    await notifications.close()


async def test_a_deleted_range_is_a_gap(server: FakeOxia, client: OxiaClient) -> None:
    heard = Heard()
    notifications = client.notifications(0, heard)
    await notifications.started()
    batch = pb.NotificationBatch(offset=1)
    batch.notifications.add(key="a/", value=pb.Notification(type=pb.KEY_RANGE_DELETED, key_range_last="a//"))
    server.batches.append(batch)
    server.notifications_new.set()
    [event] = await heard.count(1)
    assert isinstance(event, Gap)
    await notifications.close()


async def test_a_watcher_that_does_not_read_gets_a_resync(server: FakeOxia) -> None:
    store = OxiaStore(await server.client(), "oxia://fake")
    async with store.watch("a") as changes:
        batch = pb.NotificationBatch(offset=1)
        for i in range(METADATA_WATCH_QUEUE_MAX + 5):
            batch.notifications.add(key=f"a/{i}", value=pb.Notification(type=pb.KEY_MODIFIED, version_id=i))
        server.batches.append(batch)
        server.notifications_new.set()
        # The watch queues a whole batch before its reader gets a turn.
        seen = [await asyncio.wait_for(anext(changes), PATIENCE_SECONDS) for _ in range(6)]
    assert seen[0] == Change(ChangeKind.RESYNC)
    assert [change.path for change in seen[1:]] == [f"a/{METADATA_WATCH_QUEUE_MAX + i}" for i in range(5)]
    await store.close()


async def test_new_shards_are_followed_after_a_resync(server: FakeOxia) -> None:
    store = OxiaStore(await server.client(), "oxia://fake")
    async with store.watch("a") as changes:
        server.lead({1: server.address, 2: server.address})
        assert await asyncio.wait_for(anext(changes), PATIENCE_SECONDS) == Change(ChangeKind.RESYNC)
        await until(lambda: {request.shard for request in server.notification_requests} == {0, 1, 2})
    await store.close()
