"""Every topic config of Kafka 4.3: type, default, accepted values, and whether llog acts on it.

A config is enforced, or accepted without effect: it tunes local disks, replicas or tiered storage, which llog does not
have. Tools that set such a config keep working, and llog tells that it has no effect. Configs that Kafka 4.0 removed
are refused. docs/reference/topic-configs.md is derived from this table (`config_page`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from llog.limits import RECORD_BATCH_BYTES_MAX

ConfigKind = Literal["boolean", "int", "long", "double", "list", "string"]
"""Kafka's name for the type of a value, as admin clients show it."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_DAY_MS: Final = 24 * 3_600_000
LOG_APPEND_TIME: Final = "LogAppendTime"
_POLICIES: Final = ("compact", "delete")


class Accepted(NamedTuple):
    """The values of a config: described for users, and as a function that returns a value in the spelling in which it
    is stored, or None if it is not accepted."""

    described: str
    spelled: Callable[[str], str | None]


class ConfigSpec(NamedTuple):
    kind: ConfigKind
    default: str
    accepted: Accepted
    enforced: bool
    """False: stored and shown, without effect."""
    meaning: str
    """What llog does with it, or why it has no effect; one sentence."""


# -- accepted values -------------------------------------------------------------------------------------------------


def _number(low: int, high: int) -> Accepted:
    def spelled(text: str) -> str | None:
        # int() also accepts "1_000" and digits of other scripts, which other clients refuse.
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_LONG_MAX))):
            return None
        return str(int(text)) if low <= int(text) <= high else None

    described = f"an integer from {low} on" if high == _LONG_MAX else f"an integer from {low} to {high}"
    return Accepted(described, spelled)


def _one_of(*names: str) -> Accepted:
    described = f"one of {', '.join(names)}" if len(names) > 1 else f"{names[0]} alone"
    return Accepted(described, lambda text: text if text in names else None)


def _as_ratio(text: str) -> str | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return repr(value) if 0 <= value <= 1 else None  # also refuses "nan"


def _as_policy(text: str) -> str | None:
    chosen = [word.strip() for word in text.split(",")] if text else []
    fits = set(chosen) <= set(_POLICIES) and len(set(chosen)) == len(chosen)
    return ",".join(sorted(chosen)) if fits else None


_BOOLEAN: Final = Accepted("true or false", lambda text: text.lower() if text.lower() in ("true", "false") else None)
_RATIO: Final = Accepted("a number from 0 to 1", _as_ratio)
_POLICY: Final = Accepted("delete, compact, compact,delete, or empty", _as_policy)
_TEXT: Final = Accepted("any text", lambda text: text)
_GZIP_LEVEL: Final = Accepted(
    "an integer from 1 to 9, or -1", lambda text: "-1" if text == "-1" else _number(1, 9).spelled(text)
)
_COUNT: Final = _number(0, _LONG_MAX)
_FROM_ONE: Final = _number(1, _LONG_MAX)
_LIMIT: Final = _number(-1, _LONG_MAX)
_LOCAL: Final = _number(-2, _LONG_MAX)


# -- the table -------------------------------------------------------------------------------------------------------


def _enforced(kind: ConfigKind, default: object, accepted: Accepted, meaning: str) -> ConfigSpec:
    return ConfigSpec(kind, str(default), accepted, True, meaning)


def _without_effect(kind: ConfigKind, default: object, accepted: Accepted, why: str) -> ConfigSpec:
    return ConfigSpec(kind, str(default), accepted, False, why)


_CODECS: Final = _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
_AS_SENT: Final = "A batch stays as its writer made it, and every reader knows every codec."
_NO_FILES: Final = "A broker has no log files: records are in objects, which the compactor sizes for the whole cluster."
_NO_FLUSHES: Final = "A record is acknowledged only when it is durable in the object store, so no flush is left to do."
_NO_REPLICAS: Final = (
    "A log has no leader and no replicas: the object store keeps the bytes, and any broker serves them."
)
_NO_TIERS: Final = "Every record is in the object store from the start: there is no local copy to keep or to move."

CONFIGS: Final[Mapping[str, ConfigSpec]] = {
    "cleanup.policy": _enforced(
        "list", "delete", _POLICY,
        "`delete` applies retention, `compact` keeps the last record of each key; or both, or neither (empty).",
    ),
    "retention.ms": _enforced(
        "long", 7 * _DAY_MS, _LIMIT,
        "Records older than this are removed, by whole index entries, every `LLOG_RETENTION_INTERVAL_MS`; -1: never.",
    ),
    "retention.bytes": _enforced(
        "long", -1, _LIMIT, "The oldest records of a log are removed while at least this much stays; -1: no limit."
    ),
    "delete.retention.ms": _enforced("long", _DAY_MS, _COUNT, "How long key compaction keeps a tombstone."),
    "min.compaction.lag.ms": _enforced("long", 0, _COUNT, "How long key compaction leaves a record alone."),
    "max.compaction.lag.ms": _enforced(
        "long", _LONG_MAX, _FROM_ONE,
        "How long a record waits at most for key compaction, whatever the dirty ratio.",
    ),
    "min.cleanable.dirty.ratio": _enforced(
        "double", 0.5, _RATIO, "Fraction of a log that must be new before key compaction runs."
    ),
    "max.message.bytes": _enforced(
        "int", 1_048_588, _number(0, RECORD_BATCH_BYTES_MAX),
        "A write with a larger record is refused; the size is that of a batch of this record alone, uncompressed; a"
        " batch of a Kafka producer counts as it was sent.",
    ),
    "message.timestamp.before.max.ms": _enforced(
        "long", _LONG_MAX, _COUNT, "A write with a timestamp further in the past is refused."
    ),
    "message.timestamp.after.max.ms": _enforced(
        "long", 3_600_000, _COUNT, "A write with a timestamp further in the future is refused."
    ),
    "message.timestamp.type": _enforced(
        "string", "CreateTime", _one_of("CreateTime", LOG_APPEND_TIME),
        "`CreateTime`: records keep the timestamp that their producer gave; `LogAppendTime`: a write sets the time of"
        " the write.",
    ),
    "compression.type": _without_effect("string", "producer", _CODECS, _AS_SENT),
    "compression.gzip.level": _without_effect("int", -1, _GZIP_LEVEL, _AS_SENT),
    "compression.lz4.level": _without_effect("int", 9, _number(1, 17), _AS_SENT),
    "compression.zstd.level": _without_effect("int", 3, _number(-131_072, 22), _AS_SENT),
    "file.delete.delay.ms": _without_effect(
        "long", 60_000, _COUNT, "Vacuum deletes objects of all topics after `LLOG_VACUUM_GRACE_MS`."
    ),
    "flush.messages": _without_effect("long", _LONG_MAX, _FROM_ONE, _NO_FLUSHES),
    "flush.ms": _without_effect("long", _LONG_MAX, _COUNT, _NO_FLUSHES),
    "follower.replication.throttled.replicas": _without_effect("list", "", _TEXT, _NO_REPLICAS),
    "index.interval.bytes": _without_effect(
        "int", 4_096, _number(0, _INT_MAX), "The index is in the metadata store, with an entry per append or segment."
    ),
    "leader.replication.throttled.replicas": _without_effect("list", "", _TEXT, _NO_REPLICAS),
    "local.retention.bytes": _without_effect("long", -2, _LOCAL, _NO_TIERS),
    "local.retention.ms": _without_effect("long", -2, _LOCAL, _NO_TIERS),
    "message.downconversion.enable": _without_effect(
        "boolean", "true", _BOOLEAN, "As in Kafka since 4.0: no client that would need older formats is served."
    ),
    "min.insync.replicas": _without_effect("int", 1, _number(1, _INT_MAX), _NO_REPLICAS),
    "preallocate": _without_effect("boolean", "false", _BOOLEAN, _NO_FILES),
    "remote.log.copy.disable": _without_effect("boolean", "false", _BOOLEAN, _NO_TIERS),
    "remote.log.delete.on.disable": _without_effect("boolean", "false", _BOOLEAN, _NO_TIERS),
    "remote.storage.enable": _without_effect("boolean", "false", _BOOLEAN, _NO_TIERS),
    "segment.bytes": _without_effect(
        "int", 1_073_741_824, _number(14, _INT_MAX),
        "`LLOG_COMPACTOR_TRIGGER_BYTES` sets the size of segments for the whole cluster.",
    ),
    "segment.index.bytes": _without_effect("int", 10_485_760, _number(4, _INT_MAX), _NO_FILES),
    "segment.jitter.ms": _without_effect("long", 0, _COUNT, _NO_FILES),
    "segment.ms": _without_effect(
        "long", 7 * _DAY_MS, _FROM_ONE,
        "`LLOG_COMPACTOR_TRIGGER_AGE_MS` sets the age for the whole cluster; retention and key compaction need no"
        " closed segment.",
    ),
    "unclean.leader.election.enable": _without_effect("boolean", "false", _BOOLEAN, _NO_REPLICAS),
}  # fmt: skip
"""By name, enforced ones first."""

REFUSED: Final[Mapping[str, str]] = {
    "message.format.version": "Kafka 4.0 removed it: there is one record format.",
    "message.timestamp.difference.max.ms": (
        "Kafka 4.0 removed it: set `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`."
    ),
}
"""Names that older tools may send, and what to do instead."""
