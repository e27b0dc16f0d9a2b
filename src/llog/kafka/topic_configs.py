"""Topic configs as Kafka clients see them: each with its value, where the value comes from, and its type."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from llog.errors import InvalidArgument
from llog.kafka.error_codes import ErrorCode, Refusal
from llog.log.topics.config import checked_value
from llog.log.topics.config_table import CONFIGS, ConfigKind


class ResourceType(IntEnum):
    """What has configs, as in Kafka's messages."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def resource_type_of(code: int) -> ResourceType:
    """`Refusal` with INVALID_REQUEST for an unknown code."""
    try:
        return ResourceType(code)
    except ValueError:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"unknown resource type {code}") from None


class ConfigSource(IntEnum):
    """Where a value comes from, as in Kafka's messages."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6


TYPE_CODES: Final[Mapping[ConfigKind, int]] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "long": 5,
    "double": 6,
    "list": 7,
}
"""Of values, as in Kafka's messages."""

BROKER_NAMES: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Topic configs that have a name as a broker's config too, which holds the default."""


class Synonym(NamedTuple):
    name: str
    value: str
    source: ConfigSource


class ShownConfig(NamedTuple):
    name: str
    value: str
    source: ConfigSource
    kind: ConfigKind = "string"
    meaning: str = ""
    synonyms: tuple[Synonym, ...] = ()
    """Every place that gives the config a value, the one that counts first."""


def shown_configs(stored: Mapping[str, str]) -> list[ShownConfig]:
    """Every config of a topic, by name; also those that a later release has set."""
    return [_shown(name, stored) for name in sorted(CONFIGS.keys() | stored.keys())]


def _shown(name: str, stored: Mapping[str, str]) -> ShownConfig:
    spec = CONFIGS.get(name)
    places = [Synonym(name, stored[name], ConfigSource.TOPIC)] if name in stored else []
    if spec is None:
        return ShownConfig(name, stored[name], ConfigSource.TOPIC, synonyms=tuple(places))
    if name in BROKER_NAMES:
        places.append(Synonym(BROKER_NAMES[name], spec.default, ConfigSource.DEFAULT))
    value, source = (stored[name], ConfigSource.TOPIC) if name in stored else (spec.default, ConfigSource.DEFAULT)
    meaning = spec.meaning if spec.enforced else f"Without effect. {spec.meaning}"
    return ShownConfig(name, value, source, spec.kind, meaning, tuple(places))


def checked(config: Mapping[str, str | None]) -> dict[str, str]:
    """A client's values, normalized. `Refusal` with INVALID_CONFIG."""
    for name, value in config.items():
        if value is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"config {name!r:.100}: null is no value")
    try:
        return {name: checked_value(name, value) for name, value in config.items() if value is not None}
    except InvalidArgument as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
