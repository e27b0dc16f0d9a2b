"""Topic configs: Kafka's names and values, as text from users and typed for our jobs.

A topic stores only the configs that were set, as text by name (`TopicRecord.config`), so a later release may change a
default. `checked_config` checks a user's values; `TopicConfig.of` reads the stored ones.

Honoured (the typed fields of `TopicConfig`):
    cleanup.policy              delete, compact, or both
    retention.ms                -1 for ever; retention.bytes likewise; both apply per log, by whole index entries
    delete.retention.ms         how long key compaction keeps a tombstone
    min.compaction.lag.ms       how long key compaction leaves a record alone
    max.compaction.lag.ms       how long a record waits at most for key compaction, whatever the dirty ratio
    min.cleanable.dirty.ratio   fraction of a log that must be new before key compaction runs
    max.message.bytes           the largest accepted record, measured as a batch of this record alone

Only stored and shown (`CONFIGS[name].honoured` is False): names that tune a broker with local disks and replicas, such
as segment files, flushing, indexes, throttles and remote storage. `compression.type` too: batches stay as their
producer compressed them, and every client reads every codec. `message.timestamp.type` accepts only CreateTime, because
LogAppendTime would change the stored records.

An unknown name or a value out of range is refused when it is set. On reading, an unknown name is ignored (a later
release may have set it), but a value that cannot be parsed is an error: a wrong guess would make retention delete
records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from llog.errors import InvalidArgument
from llog.limits import RECORD_BATCH_BYTES_MAX

TOPIC_CONFIG_VALUE_CHARS_MAX: Final = 1_000

ConfigKind = Literal["boolean", "int", "long", "double", "list", "string"]
"""Kafka's name for the type of a value, as admin clients show it."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_POLICIES: Final = ("compact", "delete")


class ConfigSpec(NamedTuple):
    """One config: type, default, and the check that normalizes a value (or raises ValueError)."""

    kind: ConfigKind
    default: str
    check: Callable[[str], str]
    honoured: bool = False


# -- checks of values ------------------------------------------------------------------------------------------------


def _number(low: int, high: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        # int() also accepts "1_000" and digits of other scripts, which other clients refuse.
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= len(str(_LONG_MAX)) else None
        if value is None or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return str(value)

    return check


def _one_of(*accepted: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in accepted:
            raise ValueError(f"one of {', '.join(accepted)}" if len(accepted) > 1 else f"{accepted[0]} alone")
        return text

    return check


def _boolean(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower()


def _ratio(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also refuses "nan"
        raise ValueError("a number from 0 to 1")
    return repr(value)


def _policy(text: str) -> str:
    chosen = [word.strip() for word in text.split(",")]
    if not set(chosen) <= set(_POLICIES) or len(set(chosen)) != len(chosen):
        raise ValueError("delete, compact, or compact,delete")
    return ",".join(sorted(chosen))


def _text(text: str) -> str:
    return text


def _spec(kind: ConfigKind, default: object, check: Callable[[str], str], *, honoured: bool = False) -> ConfigSpec:
    return ConfigSpec(kind, str(default), check, honoured)


_any_long: Final = _number(0, _LONG_MAX)
_DAY_MS: Final = 24 * 3_600_000

CONFIGS: Final[Mapping[str, ConfigSpec]] = {
    "cleanup.policy": _spec("list", "delete", _policy, honoured=True),
    "retention.ms": _spec("long", 7 * _DAY_MS, _number(-1, _LONG_MAX), honoured=True),
    "retention.bytes": _spec("long", -1, _number(-1, _LONG_MAX), honoured=True),
    "delete.retention.ms": _spec("long", _DAY_MS, _any_long, honoured=True),
    "min.compaction.lag.ms": _spec("long", 0, _any_long, honoured=True),
    "max.compaction.lag.ms": _spec("long", _LONG_MAX, _number(1, _LONG_MAX), honoured=True),
    "min.cleanable.dirty.ratio": _spec("double", 0.5, _ratio, honoured=True),
    "max.message.bytes": _spec("int", 1_048_588, _number(0, RECORD_BATCH_BYTES_MAX), honoured=True),
    # The following are only stored.
    "compression.type": _spec(
        "string", "producer", _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    ),
    "compression.gzip.level": _spec("int", -1, _number(-1, 9)),
    "compression.lz4.level": _spec("int", 9, _number(1, 17)),
    "compression.zstd.level": _spec("int", 3, _number(-131_072, 22)),
    "file.delete.delay.ms": _spec("long", 60_000, _any_long),
    "flush.messages": _spec("long", _LONG_MAX, _number(1, _LONG_MAX)),
    "flush.ms": _spec("long", _LONG_MAX, _any_long),
    "follower.replication.throttled.replicas": _spec("list", "", _text),
    "index.interval.bytes": _spec("int", 4_096, _number(0, _INT_MAX)),
    "leader.replication.throttled.replicas": _spec("list", "", _text),
    "local.retention.bytes": _spec("long", -2, _number(-2, _LONG_MAX)),
    "local.retention.ms": _spec("long", -2, _number(-2, _LONG_MAX)),
    "message.downconversion.enable": _spec("boolean", "true", _boolean),
    "message.format.version": _spec("string", "3.0-IV1", _text),
    "message.timestamp.after.max.ms": _spec("long", 3_600_000, _any_long),
    "message.timestamp.before.max.ms": _spec("long", _LONG_MAX, _any_long),
    "message.timestamp.difference.max.ms": _spec("long", _LONG_MAX, _any_long),
    "message.timestamp.type": _spec("string", "CreateTime", _one_of("CreateTime")),
    "min.insync.replicas": _spec("int", 1, _number(1, _INT_MAX)),
    "preallocate": _spec("boolean", "false", _boolean),
    "remote.log.copy.disable": _spec("boolean", "false", _boolean),
    "remote.log.delete.on.disable": _spec("boolean", "false", _boolean),
    "remote.storage.enable": _spec("boolean", "false", _boolean),
    "segment.bytes": _spec("int", 1_073_741_824, _number(14, _INT_MAX)),
    "segment.index.bytes": _spec("int", 10_485_760, _number(4, _INT_MAX)),
    "segment.jitter.ms": _spec("long", 0, _any_long),
    "segment.ms": _spec("long", 7 * _DAY_MS, _number(1, _LONG_MAX)),
    "unclean.leader.election.enable": _spec("boolean", "false", _boolean),
}
"""Every accepted name."""


def checked_value(name: str, value: str) -> str:
    """The normalized value; `InvalidArgument` names the config and its accepted values."""
    spec = CONFIGS.get(name)
    if spec is None:
        raise InvalidArgument(f"config {name!r:.100}", f"unknown; accepted are {', '.join(CONFIGS)}")
    if not isinstance(value, str) or len(value) > TOPIC_CONFIG_VALUE_CHARS_MAX:
        raise InvalidArgument(f"config {name}", f"must be text of at most {TOPIC_CONFIG_VALUE_CHARS_MAX} characters")
    try:
        return spec.check(value.strip())
    except ValueError as error:
        raise InvalidArgument(f"config {name}", f"{value!r} is not accepted; it must be {error}") from error


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
        raise InvalidArgument(f"config {min(unknown)!r:.100}", f"unknown; accepted are {', '.join(CONFIGS)}")
    return {name: value for name, value in stored.items() if name not in remove} | checked_config(put)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs that the log and its jobs honour."""

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
        )


def _effective(stored: Mapping[str, str], name: str) -> str:
    spec = CONFIGS[name]
    return spec.default if name not in stored else checked_value(name, stored[name])


def _unless_negative(text: str) -> int | None:
    value = int(text)
    return None if value < 0 else value
