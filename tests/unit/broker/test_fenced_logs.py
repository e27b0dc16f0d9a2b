"""Fenced logs on a broker's health page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import httpx
import pytest

import llog.testing
from llog.broker.health import BROKER_FENCED_LOGS_MAX, FencedLogs
from llog.errors import LogFenced, MetadataUnavailable
from llog.log.context import LogContext
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contexts import log_context
from tests.patience import PATIENCE_SECONDS, until, wait_until

ORDERS = Log("orders", 0)


def memory_context() -> LogContext:
    return log_context(MemoryStore(MemoryBacking()), MemoryObjectStore("memory://"))


async def test_a_log_that_refused_an_append_is_shown_with_its_reason_until_it_is_open_again() -> None:
    context = memory_context()
    await create_topic(context, "orders", partitions=1)
    fenced = FencedLogs(context, check_ms=10)
    watching = asyncio.create_task(fenced.run())
    try:
        await fence(context, ORDERS, reason="moving its readers")
        fenced.refused([object(), LogFenced(*ORDERS, "is fenced")])
        await until(lambda: fenced.shown() == ["orders:0: moving its readers"])
        await unfence(context, ORDERS)  # by whomever
        await until(lambda: fenced.shown() == [])
    finally:
        watching.cancel()


async def test_an_open_or_missing_log_is_not_shown() -> None:
    context = memory_context()
    await create_topic(context, "orders", partitions=1)
    fenced = FencedLogs(context)
    fenced.check(ORDERS)
    fenced.check(Log("nowhere", 7))
    await fenced.refresh()
    assert fenced.shown() == []


async def test_an_unreachable_store_keeps_the_page_and_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    context = memory_context()
    await create_topic(context, "orders", partitions=1)
    await fence(context, ORDERS, reason="so")
    fenced = FencedLogs(context, check_ms=10)
    fenced.check(ORDERS)
    await fenced.refresh()
    asked = 0
    found = context.metadata.get_many

    def away(*_: object, **__: object) -> Awaitable[object]:
        nonlocal asked
        asked += 1
        raise MetadataUnavailable("get", "memory://", "away")

    monkeypatch.setattr(context.metadata, "get_many", away)
    watching = asyncio.create_task(fenced.run())
    try:
        await until(lambda: asked >= 2)
        assert fenced.shown() == ["orders:0: so"]
        monkeypatch.setattr(context.metadata, "get_many", found)
        await unfence(context, ORDERS)
        await until(lambda: fenced.shown() == [])
    finally:
        watching.cancel()


async def test_shown_logs_are_bounded() -> None:
    context, count = memory_context(), BROKER_FENCED_LOGS_MAX + 5
    await create_topic(context, "orders", partitions=count)
    for number in range(count):
        await fence(context, Log("orders", number), reason="so")
    fenced = FencedLogs(context)
    fenced.refused([LogFenced("orders", number, "is fenced") for number in range(count)])
    await fenced.refresh()
    assert len(fenced.shown()) == BROKER_FENCED_LOGS_MAX


def test_the_health_page_of_a_broker_names_them() -> None:
    with llog.testing.broker() as running, httpx.Client(base_url=running.url, timeout=PATIENCE_SECONDS) as http:
        assert http.get("/health").json()["fenced"] == []
        running.produce("orders", ["first"])
        assert http.post("/topics/orders/partitions/0/fence", json={"reason": "by hand"}).status_code == 200

        def fenced() -> list[str]:
            page = http.get("/health").json()
            assert page["status"] == "ok", "closed on purpose is no fault"
            return list(page["fenced"])

        wait_until(lambda: fenced() == ["orders:0: by hand"])
        assert http.post("/topics/orders/partitions/0/unfence").status_code == 200
        wait_until(lambda: fenced() == [])
