from __future__ import annotations

from typing import Any

import pytest

from llog.kafka import log_sizes
from llog.kafka.codec.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from llog.kafka.log_sizes import LOG_SIZE_FRESH_MS, LogSizes
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from tests.unit.kafka.apis.calling import Caller, caller


async def directory(kafka: Caller, wanted: dict[str, list[int]] | None = None, version: int = 5) -> Any:
    topics = None if wanted is None else [DescribableLogDirTopic(*topic) for topic in wanted.items()]
    [result] = (await kafka.ask(DescribeLogDirsRequest(topics), version)).results
    return result


def sizes_of(result: Any) -> dict[tuple[str, int], int]:
    return {(t.name, one.partition_index): one.partition_size for t in result.topics for one in t.partitions}


@pytest.mark.parametrize("version", range(1, 6))
async def test_every_version_answers_the_partitions_that_this_node_leads(version: int) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=6)
        await kafka.append("orders", 3, b"x" * 1_000)
        result = await directory(kafka, version=version)
    assert (result.error_code, result.log_dir) == (0, kafka.broker.settings.objects_url)
    sizes = sizes_of(result)
    assert sizes.keys() == {("orders", 0), ("orders", 3)}
    assert sizes["orders", 0] == 0
    assert 1_000 < sizes["orders", 3] < 1_200
    if version >= 4:
        assert (result.total_bytes, result.usable_bytes) == (-1, -1)


async def test_some_partitions_can_be_asked_for_and_unknown_ones_are_left_out() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=6)
        result = await directory(kafka, {"orders": [0, 1, 99], "missing": [0], "not/good": [0]})
        assert sizes_of(result) == {("orders", 0): 0}
        assert sizes_of(await directory(kafka, {})) == {}


async def test_a_size_is_read_again_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Log] = []

    async def size(_: object, log: Log) -> int:
        read.append(log)
        return 7

    monkeypatch.setattr(log_sizes, "_size", size)
    sizes, now_ms = LogSizes(), [0.0]
    first, second = Log("orders", 0), Log("orders", 1)
    async with caller() as kafka:
        for wanted in ([first], [first, second], [second]):
            assert await sizes.of(kafka.broker.context, [("id", log) for log in wanted], lambda: now_ms[0]) == [
                7
            ] * len(wanted)
        assert read == [first, second]
        assert await sizes.of(kafka.broker.context, [("other id", first)], lambda: now_ms[0]) == [7]
        now_ms[0] = LOG_SIZE_FRESH_MS + 1
        await sizes.of(kafka.broker.context, [("id", first)], lambda: now_ms[0])
    assert read == [first, second, first, first]
