from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from llog.errors import LlogError, MetadataUnavailable, TopicNotFound
from llog.log.context import LogContext
from llog.log.topics import known_topics
from llog.log.topics.admin import Topic, alter_topic, create_topic
from llog.log.topics.create import load_topic
from llog.log.topics.delete import delete_topic
from llog.log.topics.known_topics import KNOWN_TOPIC_FRESH_MS, KnownTopic, KnownTopics
from tests.patience import until
from tests.unit.http.broker_double import memory_context

DEFAULT = 1_048_588


class Looked:
    """A context that counts reads of topic records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context, self.now_ms = memory_context(), 0.0
        self.configs = KnownTopics(self.context, lambda: self.now_ms)
        self.reads = 0
        self.failing = False
        self.gate: asyncio.Event | None = None

        async def counted(context: LogContext, topic: str, **strict: bool) -> Any:
            self.reads += 1
            found = await load_topic(context, topic, **strict)
            if self.gate is not None:
                await self.gate.wait()
            if self.failing:
                raise MetadataUnavailable("memory", "get", "no answer")
            return found

        monkeypatch.setattr(known_topics, "load_topic", counted)

    async def limits(self, topics: Iterable[str]) -> dict[str, int | LlogError]:
        found = await self.configs.of(topics)
        return {topic: one if isinstance(one, LlogError) else one.max_message_bytes for topic, one in found.items()}

    async def create(self, topic: str, limit: int) -> None:
        await create_topic(self.context, topic, config={"max.message.bytes": str(limit)})


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(monkeypatch)


async def test_a_topic_has_its_own_limit_and_a_missing_one_the_default(looked: Looked) -> None:
    await looked.create("t", 1_000)
    assert await looked.limits(["t", "new"]) == {"t": 1_000, "new": DEFAULT}


async def test_a_limit_is_read_again_when_it_is_old_and_not_before(looked: Looked) -> None:
    await looked.create("t", 1_000)
    await looked.limits(["t"])
    await alter_topic(looked.context, "t", put={"max.message.bytes": "2000"})
    looked.now_ms = KNOWN_TOPIC_FRESH_MS - 1
    assert (await looked.limits(["t"]), looked.reads) == ({"t": 1_000}, 1)
    looked.now_ms = KNOWN_TOPIC_FRESH_MS
    assert (await looked.limits(["t"]), looked.reads) == ({"t": 2_000}, 2)


async def test_a_forgotten_config_is_read_at_once(looked: Looked) -> None:
    await looked.create("t", 1_000)
    await looked.limits(["t"])
    await delete_topic(looked.context, "t")
    looked.configs.forget("t")
    assert await looked.limits(["t"]) == {"t": DEFAULT}


async def test_concurrent_requests_cost_one_read_and_survive_a_cancelled_one(looked: Looked) -> None:
    looked.gate = asyncio.Event()
    asked = [asyncio.create_task(looked.limits(["t"])) for _ in range(10)]
    await asyncio.sleep(0)
    asked[0].cancel()
    await asyncio.sleep(0)
    looked.gate.set()
    assert await asyncio.gather(*asked[1:]) == [{"t": DEFAULT}] * 9
    assert looked.reads == 1


async def test_a_read_overtaken_by_a_change_is_not_kept(looked: Looked) -> None:
    await looked.create("t", 1_000)
    looked.gate = asyncio.Event()
    late = asyncio.create_task(looked.limits(["t"]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await alter_topic(looked.context, "t", put={"max.message.bytes": "2000"})
    looked.configs.forget("t")
    looked.gate.set()
    await late
    assert await looked.limits(["t"]) == {"t": 2_000}


async def test_without_the_store_the_last_limit_holds_and_an_unknown_one_is_an_error(looked: Looked) -> None:
    await looked.create("t", 1_000)
    await looked.limits(["t"])
    looked.failing, looked.now_ms = True, KNOWN_TOPIC_FRESH_MS + 1
    found = await looked.limits(["t", "other"])
    assert found["t"] == 1_000
    assert isinstance(found["other"], MetadataUnavailable)
    looked.failing = False
    assert await looked.limits(["other"]) == {"other": DEFAULT}


async def test_kept_configs_are_bounded(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_topics, "KNOWN_TOPICS_MAX", 3)
    await looked.limits([f"t{number}" for number in range(5)])
    reads = looked.reads
    await looked.limits(["t2", "t3", "t4"])
    assert looked.reads == reads
    await looked.limits(["t0"])
    assert looked.reads == reads + 1


async def test_topics_that_cannot_be_looked_up_count_as_compacted_by_key(looked: Looked) -> None:
    await create_topic(looked.context, "keyed", config={"cleanup.policy": "compact,delete"})
    await looked.create("plain", 1_000)
    assert await looked.configs.compacted_by_key(["keyed", "plain", "new"]) == {"keyed"}
    looked.failing = True
    assert await looked.configs.compacted_by_key(["keyed", "plain", "unknown"]) == {"keyed", "unknown"}


async def test_partition_counts_are_kept_like_configs_but_that_a_topic_is_missing_is_not(looked: Looked) -> None:
    await create_topic(looked.context, "t", partitions=6)
    assert await looked.configs.partition_counts(["t", "new"]) == {"t": 6, "new": 1}
    reads = looked.reads
    await create_topic(looked.context, "new", partitions=3)
    assert await looked.configs.partition_counts(["t", "new"]) == {"t": 6, "new": 3}
    assert looked.reads == reads + 1
    await delete_topic(looked.context, "t")
    looked.now_ms = KNOWN_TOPIC_FRESH_MS + 1
    assert await looked.configs.partition_counts(["t"]) == {"t": 1}
    looked.failing = True
    assert isinstance((await looked.configs.partition_counts(["unknown"]))["unknown"], MetadataUnavailable)


def id_of(topic: Topic) -> bytes:
    return UUID(topic.record.topic_id).bytes


async def test_topics_are_found_by_name_and_by_id(looked: Looked) -> None:
    made = await create_topic(looked.context, "t", partitions=3)
    assert looked.configs.fresh("t") is None
    found = (await looked.configs.find(["t"]))["t"]
    assert isinstance(found, KnownTopic)
    assert (found.name, found.id_bytes, found.partition_count) == ("t", id_of(made), 3)
    assert looked.configs.fresh("t") == looked.configs.fresh_by_id(id_of(made)) == found
    assert await looked.configs.find_by_id([id_of(made)]) == {id_of(made): found}


async def test_an_unknown_id_is_looked_for_among_all_topics(looked: Looked) -> None:
    made = await create_topic(looked.context, "t")
    found = await looked.configs.find_by_id([id_of(made), bytes(16)])
    assert isinstance(found[id_of(made)], KnownTopic)
    assert isinstance(found[bytes(16)], TopicNotFound)


async def test_the_id_of_a_deleted_topic_is_not_found_beside_that_of_its_successor(looked: Looked) -> None:
    old = await create_topic(looked.context, "t")
    await looked.configs.find(["t"])
    await delete_topic(looked.context, "t")
    new = await create_topic(looked.context, "t")
    looked.configs.forget("t")
    found = await looked.configs.find_by_id([id_of(new), id_of(old)])
    assert isinstance(found[id_of(old)], TopicNotFound)
    assert isinstance(found[id_of(new)], KnownTopic)


async def test_that_a_topic_is_missing_is_not_remembered_for_find(looked: Looked) -> None:
    assert isinstance((await looked.configs.find(["t"]))["t"], TopicNotFound)
    await create_topic(looked.context, "t")
    assert isinstance((await looked.configs.find(["t"]))["t"], KnownTopic)


async def test_a_listing_is_remembered_and_reads_changes_of_others(looked: Looked) -> None:
    await looked.create("a", 1_000)
    await looked.create("b", 2_000)
    assert [(one.name, one.config.max_message_bytes) for one in await looked.configs.all()] == [
        ("a", 1_000),
        ("b", 2_000),
    ]
    assert looked.configs.fresh("a") is not None
    await alter_topic(looked.context, "a", put={"max.message.bytes": "5"})
    looked.now_ms += 1
    await looked.configs.all()
    assert await looked.limits(["a"]) == {"a": 5}
    assert looked.reads == 0


async def test_a_listing_overtaken_by_a_change_does_not_bring_back_the_old_topic(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_topics, "LIST_STEP_TOPICS", 1)
    for name in ("a", "b", "c"):
        await looked.create(name, 1_000)
    listing = asyncio.create_task(looked.configs.all())
    await asyncio.sleep(0)
    await alter_topic(looked.context, "c", put={"max.message.bytes": "5"})
    looked.configs.forget("c")
    await listing
    assert looked.configs.fresh("c") is None
    assert looked.configs.fresh("b") is not None
    assert await looked.limits(["c"]) == {"c": 5}


async def test_a_listing_does_not_replace_what_was_read_since(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_topics, "LIST_STEP_TOPICS", 1)
    for name in ("a", "b"):
        await looked.create(name, 1_000)
    listing = asyncio.create_task(looked.configs.all())
    await asyncio.sleep(0)
    await alter_topic(looked.context, "b", put={"max.message.bytes": "5"})
    looked.now_ms += 1
    assert await looked.limits(["b"]) == {"b": 5}
    await listing
    assert await looked.limits(["b"]) == {"b": 5}


async def test_ids_of_topics_that_are_gone_are_not_kept_for_ever(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_topics, "KNOWN_TOPICS_MAX", 2)
    for _ in range(6):
        made = await create_topic(looked.context, "t")
        looked.configs.forget("t")
        await looked.configs.find(["t"])
        assert looked.configs.fresh_by_id(id_of(made)) is not None
        await delete_topic(looked.context, "t")
    assert len(looked.configs._names) <= 4


async def test_a_request_that_names_many_topics_reads_some_at_a_time(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_topics, "LOOK_UP_TOPICS_MAX", 3)
    looked.gate = asyncio.Event()
    asking = asyncio.create_task(looked.configs.find([f"t{number}" for number in range(10)]))
    await until(lambda: looked.reads == 3, "the first reads")
    assert len(looked.configs._reading) == 3
    looked.gate.set()
    assert len(await asking) == looked.reads == 10
