from __future__ import annotations

import pytest

from llog.kafka.codec.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from llog.kafka.error_codes import ErrorCode
from llog.log.keys import Log
from llog.log.read.view import view
from llog.log.topics.admin import create_topic
from tests.audit_lines import audit_lines
from tests.unit.kafka.apis.calling import Caller, caller

NONE = -1


async def filled(kafka: Caller, records: int = 10, **config: str) -> None:
    """A topic of two partitions; the first has records."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    await create_topic(kafka.broker.context, "orders", partitions=2, first_offset=0, config=named)
    for _ in range(records):
        await kafka.append("orders", 0, b"value")


async def deleted(
    kafka: Caller, *offsets: tuple[str, int, int], version: int = 2
) -> dict[tuple[str, int], tuple[int, int]]:
    topics = [DeleteRecordsTopic(name, [DeleteRecordsPartition(part, offset)]) for name, part, offset in offsets]
    answer = await kafka.ask(DeleteRecordsRequest(topics, 30_000), version)
    return {
        (topic.name, one.partition_index): (one.error_code, one.low_watermark)
        for topic in answer.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", range(3))
async def test_every_version_raises_the_first_offset(version: int) -> None:
    async with caller() as kafka:
        await filled(kafka)
        assert await deleted(kafka, ("orders", 0, 4), version=version) == {("orders", 0): (0, 4)}
        assert (await view(kafka.broker.context, Log("orders", 0))).log_start_offset == 4


async def test_minus_one_deletes_all_records() -> None:
    async with caller() as kafka:
        await filled(kafka)
        assert await deleted(kafka, ("orders", 0, -1)) == {("orders", 0): (0, 10)}
        assert await deleted(kafka, ("orders", 1, -1)) == {("orders", 1): (0, 0)}


async def test_an_offset_below_the_first_changes_nothing() -> None:
    async with caller() as kafka:
        await filled(kafka)
        await deleted(kafka, ("orders", 0, 4))
        assert await deleted(kafka, ("orders", 0, 2)) == {("orders", 0): (0, 4)}


async def test_every_partition_has_its_own_outcome() -> None:
    async with caller() as kafka:
        await filled(kafka)
        outcomes = await deleted(
            kafka,
            ("orders", 0, 3),
            ("orders", 1, 1),
            ("orders", 7, 0),
            ("orders", -1, 0),
            ("missing", 0, 0),
            ("not/good", 0, 0),
        )
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NONE)
    assert outcomes == {
        ("orders", 0): (0, 3),
        ("orders", 1): (ErrorCode.OFFSET_OUT_OF_RANGE, NONE),
        ("orders", 7): unknown,
        ("orders", -1): unknown,
        ("missing", 0): unknown,
        ("not/good", 0): unknown,
    }


@pytest.mark.parametrize("offset", [11, 2**63 - 1, -2, -(2**63)])
async def test_an_offset_beyond_the_end_or_below_minus_one_is_out_of_range(offset: int) -> None:
    async with caller() as kafka:
        await filled(kafka)
        assert await deleted(kafka, ("orders", 0, offset)) == {("orders", 0): (ErrorCode.OFFSET_OUT_OF_RANGE, NONE)}
        assert (await view(kafka.broker.context, Log("orders", 0))).log_start_offset == 0


@pytest.mark.parametrize(("policy", "code"), [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", 0), ("", 0)])
async def test_records_of_a_topic_that_is_only_compacted_stay(policy: str, code: int) -> None:
    async with caller() as kafka:
        await filled(kafka, cleanup_policy=policy)
        [(found, _)] = (await deleted(kafka, ("orders", 0, 4))).values()
        assert found == code


async def test_deletions_are_audited_and_the_broker_forgets_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caller() as kafka:
        await filled(kafka)
        changed: list[Log] = []
        monkeypatch.setattr(kafka.broker, "log_changed", changed.append)
        caplog.clear()
        await deleted(kafka, ("orders", 0, 4), ("orders", 1, 9))
    done, refused = audit_lines(caplog)
    assert (done["action"], done["object"], done["outcome"], done["after"]) == (
        "records.delete",
        "orders:0",
        "done",
        {"log_start_offset": 4},
    )
    assert (refused["object"], refused["outcome"], refused["error_type"]) == ("orders:1", "refused", "OffsetOutOfRange")
    assert changed == [Log("orders", 0)]
