"""Discovery adds what is new, drops what is deleted, and knows who was left dying."""

from __future__ import annotations

import random

from llog.compactor.discovery import Catalogue, Discovered, DyingTopic, plan_left_behind, plan_targets
from llog.log.context import LogContext
from llog.log.fence import fence
from llog.log.keys import Log
from llog.log.topics.admin import change_topic, create_topic
from llog.log.topics.delete import delete_topic
from tests.unit.compactor.stage import ORDERS, START_MS, Cluster, Writer


async def discover(context: LogContext, configured: tuple[Log, ...]) -> Discovered:
    return await Catalogue(context, configured).read_all()


async def test_partitions_that_are_there_are_found_and_deleted_topics_dropped() -> None:
    context = Cluster().open()
    await Writer(context).append(ORDERS, Log("visits", 2))
    await create_topic(context, "clicks", partitions=2)
    found = await discover(context, ())
    assert found.logs == (Log("clicks", 0), Log("clicks", 1), ORDERS, Log("visits", 2))
    assert (found.at_ms, found.left_out) == (START_MS, 0)
    await delete_topic(context, "clicks")
    assert (await discover(context, ())).logs == (ORDERS, Log("visits", 2))
    await create_topic(context, "clicks", partitions=1)
    assert Log("clicks", 0) in (await discover(context, ())).logs


async def test_configured_logs_are_targets_whether_they_are_there_or_not() -> None:
    context = Cluster().open()
    await Writer(context).append(ORDERS)
    found = await discover(context, (Log("later", 3), ORDERS))
    assert found.logs == (Log("later", 3), ORDERS)


async def test_fenced_logs_are_counted_and_stay_targets() -> None:
    context = Cluster().open()
    await Writer(context).append(ORDERS, Log("visits", 0))
    await fence(context, ORDERS, expected_epoch=0)
    found = await discover(context, ())
    assert found.fenced == ((ORDERS, "fenced by an operator"),)
    assert ORDERS in found.logs


async def test_a_topic_is_left_behind_when_two_discoveries_saw_it_dying() -> None:
    context = Cluster().open()
    await Writer(context).append(ORDERS)

    def die(there):  # type: ignore[no-untyped-def]
        from msgspec.structs import replace

        return replace(there, state="DELETING")

    await change_topic(context, "orders", die)
    first = await discover(context, ())
    assert first.logs == ()
    assert plan_left_behind(frozenset(), first.dying) == []
    assert plan_left_behind(first.dying, (await discover(context, ())).dying) == [DyingTopic("orders", 1)]
    await delete_topic(context, "orders", 1)
    assert plan_left_behind(first.dying, (await discover(context, ())).dying) == []


def test_of_too_many_logs_others_are_taken_each_time() -> None:
    many, bits = [Log("orders", partition) for partition in range(100)], random.Random(3).getrandbits
    configured = [Log("orders", 7), Log("mine", 0)]
    seen: set[Log] = set()
    for _ in range(60):
        logs, left_out = plan_targets(configured, many, bits, limit=12)
        assert logs[:2] == tuple(configured)
        assert (len(logs), len(set(logs)), left_out) == (12, 12, 89)
        seen |= set(logs)
    assert len(seen) > 95
