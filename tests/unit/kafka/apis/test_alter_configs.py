"""AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from llog.kafka.codec.messages import alter_configs, incremental_alter_configs
from llog.kafka.error_codes import ErrorCode
from llog.kafka.topic_configs import ResourceType
from llog.log.topics.admin import create_topic, describe_topic
from tests.audit_lines import audit_lines
from tests.unit.kafka.apis.calling import Caller, caller

SET, DELETE, APPEND, SUBTRACT = range(4)
Operation = tuple[str, int, str | None]


async def made(kafka: Caller, **config: str) -> None:
    named = {name.replace("_", "."): value for name, value in config.items()}
    await create_topic(kafka.broker.context, "orders", config=named)


async def stored(kafka: Caller) -> Mapping[str, str]:
    return (await describe_topic(kafka.broker.context, "orders")).topic.record.config


async def altered(
    kafka: Caller,
    *operations: Operation,
    name: str = "orders",
    kind: int = ResourceType.TOPIC,
    dry_run: bool = False,
    version: int = 1,
    times: int = 1,
) -> Any:
    module = incremental_alter_configs
    configs = [module.AlterableConfig(*operation) for operation in operations]
    resources = [module.AlterConfigsResource(kind, name, configs)] * times
    answer = await kafka.ask(module.IncrementalAlterConfigsRequest(resources, dry_run), version)
    assert len(answer.responses) == times
    result = answer.responses[0]
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert bool(result.error_message) == bool(result.error_code)
    return result.error_code


async def replaced(
    kafka: Caller,
    *configs: tuple[str, str | None],
    name: str = "orders",
    kind: int = ResourceType.TOPIC,
    dry_run: bool = False,
    version: int = 2,
) -> Any:
    module = alter_configs
    resource = module.AlterConfigsResource(kind, name, [module.AlterableConfig(*config) for config in configs])
    [result] = (await kafka.ask(module.AlterConfigsRequest([resource], dry_run), version)).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code


# -- incremental -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2))
async def test_configs_are_set_and_reset_and_others_stay(version: int) -> None:
    async with caller() as kafka:
        await made(kafka, retention_ms="1000", retention_bytes="7")
        code = await altered(
            kafka,
            ("segment.ms", SET, " 5 "),
            ("retention.ms", DELETE, None),
            ("flush.ms", DELETE, "x"),
            version=version,
        )
        assert code == 0
        assert await stored(kafka) == {"retention.bytes": "7", "segment.ms": "5"}
        assert kafka.broker.topics.fresh("orders") is None


@pytest.mark.parametrize(
    ("before", "operation", "after"),
    [
        (None, ("cleanup.policy", APPEND, "compact"), "compact,delete"),
        ("compact", ("cleanup.policy", APPEND, "compact"), "compact"),
        ("compact", ("cleanup.policy", APPEND, "delete,compact"), "compact,delete"),
        ("compact,delete", ("cleanup.policy", SUBTRACT, "delete"), "compact"),
        ("compact,delete", ("cleanup.policy", SUBTRACT, "delete,compact"), ""),
        (None, ("cleanup.policy", SUBTRACT, "delete"), ""),
        ("delete", ("cleanup.policy", SUBTRACT, "compact"), "delete"),
    ],
)
async def test_lists_are_extended_and_reduced(before: str | None, operation: Operation, after: str) -> None:
    async with caller() as kafka:
        await made(kafka, **({} if before is None else {"cleanup_policy": before}))
        assert await altered(kafka, operation) == 0
        assert await stored(kafka) == {"cleanup.policy": after}


async def test_a_list_without_its_last_item_is_not_the_default() -> None:
    async with caller() as kafka:
        await made(kafka, leader_replication_throttled_replicas="0:1")
        await altered(kafka, ("leader.replication.throttled.replicas", APPEND, "1:1"))
        assert await stored(kafka) == {"leader.replication.throttled.replicas": "0:1,1:1"}
        await altered(kafka, ("leader.replication.throttled.replicas", SUBTRACT, "0:1,1:1"))
        assert await stored(kafka) == {"leader.replication.throttled.replicas": ""}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([("no.such.config", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such.config", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such.config", DELETE, None)], 0),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "archive")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 7, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "9"), ("segment.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        ([], 0),
    ],
)
async def test_operations_are_all_done_or_all_refused_with_kafkas_code(
    operations: list[Operation], code: int, dry_run: bool
) -> None:
    async with caller() as kafka:
        await made(kafka)
        assert await altered(kafka, *operations, dry_run=dry_run) == code
        assert await stored(kafka) == {}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (ResourceType.TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ResourceType.TOPIC, "not/good", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.TOPIC, "", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "1", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "2", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (ResourceType.CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (ResourceType.GROUP, "g", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_altered_is_refused_with_kafkas_code(kind: int, name: str, code: ErrorCode) -> None:
    async with caller() as kafka:
        await made(kafka)
        assert await altered(kafka, ("retention.ms", SET, "1"), kind=kind, name=name) == code
        assert await replaced(kafka, ("retention.ms", "1"), kind=kind, name=name) == code
        assert await stored(kafka) == {}


async def test_a_resource_named_twice_is_refused_twice() -> None:
    async with caller() as kafka:
        await made(kafka)
        assert await altered(kafka, ("retention.ms", SET, "1"), times=2) == ErrorCode.INVALID_REQUEST
        assert await stored(kafka) == {}


async def test_validate_only_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        await made(kafka)
        caplog.clear()
        assert await altered(kafka, ("retention.ms", SET, "1"), dry_run=True) == 0
        assert await replaced(kafka, ("retention.ms", "1"), dry_run=True) == 0
        assert await stored(kafka) == {}
    assert audit_lines(caplog) == []


async def test_two_clients_that_extend_a_list_at_once_both_succeed() -> None:
    name = "leader.replication.throttled.replicas"
    async with caller() as kafka:
        await made(kafka)
        await asyncio.gather(*(altered(kafka, (name, APPEND, f"{number}:1")) for number in range(8)))
        assert set((await stored(kafka))[name].split(",")) == {f"{number}:1" for number in range(8)}


async def test_changes_and_refusals_are_audited(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        await made(kafka)
        caplog.clear()
        await altered(kafka, ("retention.ms", SET, "1"))
        await altered(kafka, ("retention.ms", SET, "x"))
    done, refused = audit_lines(caplog)
    assert done == {
        "action": "topic.alter",
        "object": "orders",
        "principal": "User:ANONYMOUS",
        "client": "10.0.0.7",
        "outcome": "done",
        "before": {"retention.ms": None},
        "after": {"retention.ms": "1"},
    }
    assert (refused["action"], refused["outcome"]) == ("topic.alter", "refused")


# -- replacing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_resets_what_it_does_not_name(version: int) -> None:
    async with caller() as kafka:
        await made(kafka, retention_ms="1000", retention_bytes="7")
        assert await replaced(kafka, ("segment.ms", "5"), version=version) == 0
        assert await stored(kafka) == {"segment.ms": "5"}
        assert await replaced(kafka, version=version) == 0
        assert await stored(kafka) == {}


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ([("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
        ([("no.such.config", "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", "soon")], ErrorCode.INVALID_CONFIG),
    ],
)
async def test_alter_configs_refuses_with_kafkas_code(configs: list[tuple[str, str | None]], code: ErrorCode) -> None:
    async with caller() as kafka:
        await made(kafka, retention_bytes="7")
        assert await replaced(kafka, *configs) == code
        assert await stored(kafka) == {"retention.bytes": "7"}
