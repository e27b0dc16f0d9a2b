"""Topic configs: Kafka's names and values, as text from users and typed for our jobs.

A topic stores only the configs that were set, as text by name (`TopicRecord.config`), so a later release may change a
default. `checked_config` checks a user's values; `TopicConfig.of` reads the stored ones; `without_effect` names those
that llog only stores. `config_table` lists every config.

An unknown name or a value out of range is refused when it is set. On reading, an unknown name is ignored (a later
release may have set it), but a value that cannot be parsed is an error: a wrong guess would make retention delete
records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llog.errors import InvalidArgument
from llog.log.topics.config_table import CONFIGS, LOG_APPEND_TIME, REFUSED

TOPIC_CONFIG_VALUE_CHARS_MAX: Final = 1_000


def checked_value(name: str, value: str) -> str:
    """The normalized value; `InvalidArgument` names the config and its accepted values."""
    spec = CONFIGS.get(name)
    if spec is None:
        raise InvalidArgument(f"config {name!r:.100}", _not_accepted(name))
    if not isinstance(value, str) or len(value) > TOPIC_CONFIG_VALUE_CHARS_MAX:
        raise InvalidArgument(f"config {name}", f"must be text of at most {TOPIC_CONFIG_VALUE_CHARS_MAX} characters")
    spelled = spec.accepted.spelled(value.strip())
    if spelled is None:
        raise InvalidArgument(f"config {name}", f"{value!r} is not accepted; it must be {spec.accepted.described}")
    return spelled


def _not_accepted(name: str) -> str:
    return REFUSED.get(name) or f"unknown; accepted are {', '.join(CONFIGS)}"


def checked_config(config: Mapping[str, str]) -> dict[str, str]:
    """The configs of a user, checked and normalized."""
    return {name: checked_value(name, value) for name, value in config.items()}


def altered_config(stored: Mapping[str, str], put: Mapping[str, str], remove: frozenset[str]) -> dict[str, str]:
    """`stored` with some configs set and others reset to their default. Configs of a later release stay."""
    both = remove & put.keys()
    if both:
        raise InvalidArgument(f"config {min(both)}", "cannot be set and removed at once")
    unknown = remove - CONFIGS.keys() - stored.keys()
    if unknown:
        raise InvalidArgument(f"config {min(unknown)!r:.100}", _not_accepted(min(unknown)))
    return {name: value for name, value in stored.items() if name not in remove} | checked_config(put)


def without_effect(stored: Mapping[str, str]) -> list[str]:
    """The stored configs that llog does not act on, also those of other releases; sorted."""
    return sorted(name for name in stored if name not in CONFIGS or not CONFIGS[name].enforced)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs that the log and its jobs enforce."""

    compact: bool
    """Key compaction is on."""
    delete: bool
    """Retention is on."""
    retention_ms: int | None
    """None: for ever."""
    retention_bytes: int | None
    """None: any size."""
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    max_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    log_append_time: bool
    """Records get the time of the write instead of their own timestamp."""

    @classmethod
    def of(cls, stored: Mapping[str, str]) -> TopicConfig:
        """From the stored configs of a topic, with defaults for the rest."""
        policies = _effective(stored, "cleanup.policy").split(",")
        return cls(
            compact="compact" in policies,
            delete="delete" in policies,
            retention_ms=_unless_negative(_effective(stored, "retention.ms")),
            retention_bytes=_unless_negative(_effective(stored, "retention.bytes")),
            delete_retention_ms=int(_effective(stored, "delete.retention.ms")),
            min_compaction_lag_ms=int(_effective(stored, "min.compaction.lag.ms")),
            max_compaction_lag_ms=int(_effective(stored, "max.compaction.lag.ms")),
            min_cleanable_dirty_ratio=float(_effective(stored, "min.cleanable.dirty.ratio")),
            max_message_bytes=int(_effective(stored, "max.message.bytes")),
            timestamp_before_max_ms=int(_effective(stored, "message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(_effective(stored, "message.timestamp.after.max.ms")),
            log_append_time=_effective(stored, "message.timestamp.type") == LOG_APPEND_TIME,
        )


def _effective(stored: Mapping[str, str], name: str) -> str:
    spec = CONFIGS[name]
    return spec.default if name not in stored else checked_value(name, stored[name])


def _unless_negative(text: str) -> int | None:
    value = int(text)
    return None if value < 0 else value
