"""Topic configs as Kafka clients see them: each with its value, where the value comes from, and its type."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from llog.errors import InvalidArgument
from llog.kafka.error_codes import ErrorCode, Refusal
from llog.log.topics.config import checked_value
from llog.log.topics.config_table import CONFIGS, ConfigSpec


class ConfigSource(IntEnum):
    """Where a value comes from, as in Kafka's messages."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6


class EffectiveConfig(NamedTuple):
    name: str
    value: str
    is_set: bool
    """Else it has its default."""
    spec: ConfigSpec | None
    """None: a later release has set it."""


def effective(stored: Mapping[str, str]) -> list[EffectiveConfig]:
    """Every config of a topic, by name."""
    return [
        EffectiveConfig(
            name, stored[name] if name in stored else CONFIGS[name].default, name in stored, CONFIGS.get(name)
        )
        for name in sorted(CONFIGS.keys() | stored.keys())
    ]


def checked(config: Mapping[str, str | None]) -> dict[str, str]:
    """A client's values, normalized. `Refusal` with INVALID_CONFIG."""
    for name, value in config.items():
        if value is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"config {name!r:.100}: null is no value")
    try:
        return {name: checked_value(name, value) for name, value in config.items() if value is not None}
    except InvalidArgument as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
