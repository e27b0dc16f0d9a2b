from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from llog.errors import LogBusy
from llog.kafka.codec import ZERO_UUID
from llog.kafka.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from llog.kafka.error_codes import ErrorCode
from llog.log.keys import Log
from llog.log.topics.admin import create_topic, list_topics
from llog.log.topics.delete import delete_topic
from tests.audit_lines import audit_lines
from tests.unit.kafka.apis.calling import Caller, caller


async def made(kafka: Caller, name: str = "orders", partitions: int = 1) -> bytes:
    topic = await create_topic(kafka.broker.context, name, partitions=partitions)
    return UUID(topic.record.topic_id).bytes


async def left(kafka: Caller) -> list[str]:
    return [topic.name for topic in await list_topics(kafka.broker.context)]


async def deleted(kafka: Caller, *wanted: DeleteTopicState) -> list[Any]:
    answer = await kafka.ask(DeleteTopicsRequest(topics=list(wanted), timeout_ms=30_000), 6)
    return sorted((one.name or "", one.topic_id, one.error_code) for one in answer.responses)


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(version: int) -> None:
    async with caller() as kafka:
        await made(kafka)
        request = DeleteTopicsRequest(topic_names=["orders", "missing", "not/good"], timeout_ms=30_000)
        answer = await kafka.ask(request, version)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        codes = {one.name: one.error_code for one in answer.responses}
        assert codes == {"orders": 0, "missing": unknown, "not/good": unknown}
        assert await left(kafka) == []
        if version == 5:
            assert [bool(one.error_message) for one in answer.responses] == [False, True, True]


async def test_version_6_deletes_by_name_and_by_id_and_answers_both() -> None:
    async with caller() as kafka:
        by_name, by_id = await made(kafka, "a"), await made(kafka, "b")
        assert await deleted(kafka, DeleteTopicState("a"), DeleteTopicState(None, by_id)) == [
            ("a", by_name, 0),
            ("b", by_id, 0),
        ]
        assert await left(kafka) == []


async def test_the_id_of_a_deleted_topic_does_not_delete_its_successor() -> None:
    async with caller() as kafka:
        old = await made(kafka)
        assert await kafka.broker.topics.find_by_id([old])
        await delete_topic(kafka.broker.context, "orders")
        await made(kafka)
        kafka.broker.topics.forget("orders")
        assert await deleted(kafka, DeleteTopicState(None, old)) == [("", old, ErrorCode.UNKNOWN_TOPIC_ID)]
        assert await left(kafka) == ["orders"]


async def test_what_a_request_names_twice_or_not_at_all_is_refused() -> None:
    async with caller() as kafka:
        ids = {name: await made(kafka, name) for name in ("twice", "both", "mixed", "id-twice")}
        results = await deleted(
            kafka,
            DeleteTopicState("twice"),
            DeleteTopicState("twice"),
            DeleteTopicState("both", ids["both"]),
            DeleteTopicState("mixed"),
            DeleteTopicState(None, ids["mixed"]),
            DeleteTopicState(None, ids["id-twice"]),
            DeleteTopicState(None, ids["id-twice"]),
            DeleteTopicState(None),
        )
        refused = ErrorCode.INVALID_REQUEST
        assert results == sorted(
            [
                ("", ZERO_UUID, refused),
                ("both", ids["both"], refused),
                ("id-twice", ids["id-twice"], refused),
                ("mixed", ids["mixed"], refused),
                ("twice", ZERO_UUID, refused),
            ]
        )
        assert await left(kafka) == sorted(ids)


async def test_the_broker_forgets_the_topic_and_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with caller() as kafka:
        await made(kafka, partitions=2)
        await kafka.broker.topics.find(["orders"])
        changed: list[Log] = []
        monkeypatch.setattr(kafka.broker, "log_changed", changed.append)
        await deleted(kafka, DeleteTopicState("orders"))
        assert changed == [Log("orders", 0), Log("orders", 1)]
        assert kafka.broker.topics.fresh("orders") is None


async def test_deletions_and_refusals_are_audited(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        await made(kafka)
        caplog.clear()
        await deleted(kafka, DeleteTopicState("orders"), DeleteTopicState("missing"))
    lines = audit_lines(caplog)
    assert {line["principal"] for line in lines} == {"User:ANONYMOUS"}
    assert ("topic.delete", "orders", "done") in [(one["action"], one["object"], one["outcome"]) for one in lines]
    assert ("topic.delete", "missing", "refused") in [(one["action"], one["object"], one["outcome"]) for one in lines]


async def test_an_unfinished_deletion_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    async with caller() as kafka:
        await made(kafka)
        with monkeypatch.context() as patch:
            patch.setattr("llog.log.topics.delete._delete_log", _fail)
            with pytest.raises(LogBusy):
                await delete_topic(kafka.broker.context, "orders")
        assert await deleted(kafka, DeleteTopicState("orders")) == [("orders", ZERO_UUID, 0)]
        await made(kafka)


async def _fail(*_: object) -> None:
    raise LogBusy("orders", 0, "busy")
