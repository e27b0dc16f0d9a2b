"""What a watcher's queue keeps, and when it gives up keeping."""

from __future__ import annotations

import pytest

from llog.errors import StoreClosed
from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.changes import RESYNC, ChangeQueue
from llog.stores.metadata.port import Change, ChangeKind
from llog.stores.metadata.postgres.watch import parse_payload


def test_a_payload_is_a_line_per_change() -> None:
    assert parse_payload("7 a/b\n0 c d\n8 é") == [
        Change(ChangeKind.PUT, "a/b", 7),
        Change(ChangeKind.DELETED, "c d"),
        Change(ChangeKind.PUT, "é", 8),
    ]


@pytest.mark.parametrize("payload", ["", "hello", "x a/b", "7 a\n\n"])
def test_a_strangers_payload_is_not_understood(payload: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_payload(payload)


async def test_an_overflow_becomes_one_resync_and_what_came_after() -> None:
    watcher = ChangeQueue("url", "a")
    for version in range(METADATA_WATCH_QUEUE_MAX + 5):
        watcher.offer(Change(ChangeKind.PUT, "a/b", version + 1))
    assert await anext(watcher) == RESYNC
    rest = [await anext(watcher) for _ in range(5)]
    assert [change.version for change in rest] == [METADATA_WATCH_QUEUE_MAX + i for i in range(1, 6)]


async def test_a_closed_watcher_ends_behind_what_it_still_has() -> None:
    watcher = ChangeQueue("url", "")
    watcher.offer(Change(ChangeKind.DELETED, "x"))
    watcher.end()
    assert (await anext(watcher)).path == "x"
    with pytest.raises(StoreClosed):
        await anext(watcher)
