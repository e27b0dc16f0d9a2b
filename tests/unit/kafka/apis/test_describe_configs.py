from __future__ import annotations

from typing import Any

import pytest

from llog.kafka.codec.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from llog.kafka.error_codes import ErrorCode
from llog.kafka.topic_configs import BROKER_NAMES, ResourceType
from llog.log.topics.admin import alter_topic, create_topic
from llog.log.topics.config_table import CONFIGS
from tests.unit.kafka.apis.calling import Caller, caller

TOPIC_SOURCE, STATIC, DEFAULT, LOGGER = 1, 4, 5, 6
OWN = "1"


async def described(
    kafka: Caller,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> Any:
    request = DescribeConfigsRequest(
        [DescribeConfigsResource(kind, name, keys)], synonyms, documentation if version >= 3 else False
    )
    [result] = (await kafka.ask(request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def by_name(result: Any) -> dict[str, Any]:
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("keys", [None, []])
async def test_every_version_describes_every_config_of_a_topic(version: int, keys: list[str] | None) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", config={"retention.ms": "1000"})
        result = await described(kafka, ResourceType.TOPIC, "orders", keys, version=version)
    configs = by_name(result)
    assert configs.keys() == CONFIGS.keys()
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", TOPIC_SOURCE)
    assert {config.config_source for name, config in configs.items() if name != "retention.ms"} == {DEFAULT}
    assert {name: config.value for name, config in configs.items() if name != "retention.ms"} == {
        name: spec.default for name, spec in CONFIGS.items() if name != "retention.ms"
    }
    assert not any(config.read_only or config.is_sensitive for config in configs.values())
    assert not any(config.synonyms for config in configs.values())


async def test_some_configs_can_be_asked_for_and_unknown_ones_are_left_out() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders")
        result = await described(kafka, ResourceType.TOPIC, "orders", ["cleanup.policy", "no.such.config"])
        assert list(by_name(result)) == ["cleanup.policy"]


async def test_synonyms_name_every_place_that_gives_a_value() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", config={"cleanup.policy": "compact"})
        result = await described(kafka, ResourceType.TOPIC, "orders", synonyms=True)
    places = {name: [(s.name, s.value, s.source) for s in one.synonyms] for name, one in by_name(result).items()}
    assert places["cleanup.policy"] == [
        ("cleanup.policy", "compact", TOPIC_SOURCE),
        ("log.cleanup.policy", "delete", DEFAULT),
    ]
    assert places["max.message.bytes"] == [("message.max.bytes", "1048588", DEFAULT)]
    assert places["remote.storage.enable"] == []


async def test_types_and_documentation_are_answered_from_version_3_on() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders")
        configs = by_name(await described(kafka, ResourceType.TOPIC, "orders", documentation=True))
        plain = by_name(await described(kafka, ResourceType.TOPIC, "orders"))
    assert {
        name: configs[name].config_type
        for name in ("preallocate", "compression.type", "segment.bytes", "retention.ms", "cleanup.policy")
    } == {"preallocate": 1, "compression.type": 2, "segment.bytes": 3, "retention.ms": 5, "cleanup.policy": 7}
    assert configs["min.cleanable.dirty.ratio"].config_type == 6
    assert configs["preallocate"].documentation.startswith("Without effect.")
    assert configs["retention.ms"].documentation.startswith("Records older")
    assert plain["retention.ms"].documentation is None


async def test_a_change_through_another_broker_is_seen_at_once() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders")
        await described(kafka, ResourceType.TOPIC, "orders")
        await alter_topic(kafka.broker.context, "orders", put={"retention.ms": "5"})
        assert by_name(await described(kafka, ResourceType.TOPIC, "orders"))["retention.ms"].value == "5"


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (ResourceType.TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ResourceType.TOPIC, "not/good", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.BROKER, "2", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "one", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (ResourceType.CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (ResourceType.GROUP, "", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_resource_that_cannot_be_described_is_refused_with_kafkas_code(
    kind: int, name: str, code: ErrorCode
) -> None:
    async with caller() as kafka:
        result = await described(kafka, kind, name)
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message


async def test_a_broker_shows_its_settings_under_kafkas_names() -> None:
    async with caller(default_partitions=7, auto_create_topics=False) as kafka:
        result = await described(kafka, ResourceType.BROKER, OWN, synonyms=True, documentation=True)
    configs = by_name(result)
    shown = {name: (config.value, config.config_source) for name, config in configs.items()}
    assert shown["num.partitions"] == ("7", STATIC)
    assert shown["auto.create.topics.enable"] == ("false", STATIC)
    assert shown["delete.topic.enable"] == ("true", DEFAULT)
    assert shown["broker.id"][0] == shown["node.id"][0] == "1"
    assert shown["advertised.listeners"][0] == "PLAINTEXT://one.test:9092"
    assert shown["broker.rack"][0] == "a"
    assert shown["default.replication.factor"] == ("1", DEFAULT)
    assert shown["log.dirs"][0].startswith("memory://")
    assert all(config.read_only and config.documentation for config in configs.values())
    assert configs["num.partitions"].documentation.endswith("(LLOG_DEFAULT_PARTITIONS)")
    assert {s.name for s in configs["num.partitions"].synonyms} == {"num.partitions"}


async def test_a_broker_shows_the_defaults_of_topic_configs_under_their_names_of_brokers() -> None:
    assert BROKER_NAMES.keys() <= CONFIGS.keys()
    async with caller() as kafka:
        configs = by_name(await described(kafka, ResourceType.BROKER, OWN))
    for name, broker_name in BROKER_NAMES.items():
        assert configs[broker_name].value == CONFIGS[name].default


async def test_no_configs_were_given_to_all_brokers_client_metrics_or_groups() -> None:
    async with caller() as kafka:
        for kind, name in ((ResourceType.BROKER, ""), (ResourceType.CLIENT_METRICS, "m"), (ResourceType.GROUP, "g")):
            result = await described(kafka, kind, name)
            assert (result.error_code, result.configs) == (0, [])


async def test_the_level_of_the_root_logger_is_shown() -> None:
    async with caller(log_level="warning") as kafka:
        [config] = (await described(kafka, ResourceType.BROKER_LOGGER, OWN)).configs
    assert (config.name, config.value, config.config_source, config.read_only) == ("root", "WARN", LOGGER, True)
