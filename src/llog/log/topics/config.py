"""Topic configs: Kafka's names and values, in text as users pass them and typed as our jobs need them.

What a topic keeps is text by name (`TopicRecord.config`), and only what was set: defaults stay defaults when a later
release changes them. `checked_config` judges what a user passes; `TopicConfig.of` reads what is kept.

Honoured, because something here acts on it (the typed fields of `TopicConfig`):
    cleanup.policy              delete, compact, or both
    retention.ms                -1 for ever; retention.bytes likewise; both judged per log, by whole index entries
    delete.retention.ms         how long key compaction keeps a tombstone
    min.compaction.lag.ms       how long a record stays untouched by key compaction
    max.compaction.lag.ms       how long a record waits at most for key compaction, whatever the dirty ratio
    min.cleanable.dirty.ratio   how much of a log must be new before key compaction runs
    max.message.bytes           the largest record that is accepted, its size being that of a batch with it alone; what
                                shares a batch is the broker's business

Only kept, and shown again (`CONFIGS[name].honoured` is False): names that tune what a broker with local disks and
replicas does: segment files, flushing, indexes, replicas, throttles, remote storage. Records mean the same without
them. So does `compression.type`: batches stay as their producer compressed them, and every client reads every codec.
`message.timestamp.type` takes CreateTime alone, because LogAppendTime would change what is stored.

What must stay true: an unknown name or a value out of range is refused when it is set. When read, an unknown name is
passed over (a later release may have set it), but a value that cannot be understood is an error: retention that guessed
would delete what its owner wanted kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from llog.errors import InvalidArgument
from llog.limits import RECORD_BATCH_BYTES_MAX

TOPIC_CONFIG_VALUE_CHARS_MAX: Final = 1_000


ConfigKind = Literal["boolean", "int", "long", "double", "list", "string"]
"""Kafka's word for the type of a value, as its admin clients show it."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_POLICIES: Final = ("compact", "delete")


class ConfigSpec(NamedTuple):
    """One config: its type, its default, and the check that gives a value its one spelling (or raises ValueError)."""

    kind: ConfigKind
    default: str
    check: Callable[[str], str]
    honoured: bool = False


# -- what values may be --------------------------------------------------------------------------------------------


def _number(low: int, high: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        # int() also takes "1_000" and digits of other scripts, which no other client would.
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
    # Only kept from here on.
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
    """The value in its one spelling; `InvalidArgument` naming the config and what is accepted."""
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
    """What a topic keeps of the configs a user passes."""
    return {name: checked_value(name, value) for name, value in config.items()}


def altered_config(kept: Mapping[str, str], put: Mapping[str, str], remove: frozenset[str]) -> dict[str, str]:
    """`kept` with some configs set and others back at their default. What a later release set stays."""
    both = remove & put.keys()
    if both:
        raise InvalidArgument(f"config {min(both)}", "cannot be set and removed at once")
    unknown = remove - CONFIGS.keys() - kept.keys()
    if unknown:
        raise InvalidArgument(f"config {min(unknown)!r:.100}", f"unknown; accepted are {', '.join(CONFIGS)}")
    return {name: value for name, value in kept.items() if name not in remove} | checked_config(put)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What the log and its jobs go by."""

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
    def of(cls, kept: Mapping[str, str]) -> TopicConfig:
        """From what a topic keeps, with defaults for the rest."""
        policies = _effective(kept, "cleanup.policy").split(",")
        return cls(
            compact="compact" in policies,
            delete="delete" in policies,
            retention_ms=_unless_negative(_effective(kept, "retention.ms")),
            retention_bytes=_unless_negative(_effective(kept, "retention.bytes")),
            delete_retention_ms=int(_effective(kept, "delete.retention.ms")),
            min_compaction_lag_ms=int(_effective(kept, "min.compaction.lag.ms")),
            max_compaction_lag_ms=int(_effective(kept, "max.compaction.lag.ms")),
            min_cleanable_dirty_ratio=float(_effective(kept, "min.cleanable.dirty.ratio")),
            max_message_bytes=int(_effective(kept, "max.message.bytes")),
        )


def _effective(kept: Mapping[str, str], name: str) -> str:
    spec = CONFIGS[name]
    return spec.default if name not in kept else checked_value(name, kept[name])


def _unless_negative(text: str) -> int | None:
    value = int(text)
    return None if value < 0 else value
