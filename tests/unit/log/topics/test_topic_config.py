"""Topic configs: what is accepted, in which spelling it is kept, and what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from llog.errors import InvalidArgument
from llog.limits import RECORD_BATCH_BYTES_MAX
from llog.log.topics.config import (
    TOPIC_CONFIG_VALUE_CHARS_MAX,
    TopicConfig,
    altered_config,
    checked_config,
    checked_value,
    without_effect,
)
from llog.log.topics.config_page import markdown
from llog.log.topics.config_table import CONFIGS, REFUSED

ROOT = Path(__file__).parents[4]
# The topic configs of Kafka 4.3, as its admin client lists them.
KAFKA_4_3 = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


def test_every_topic_config_of_kafka_4_3_is_known() -> None:
    assert set(KAFKA_4_3) <= set(CONFIGS)
    assert not set(CONFIGS) & set(REFUSED)


def test_the_reference_page_is_in_step_with_the_table() -> None:
    assert (ROOT / "docs/reference/topic-configs.md").read_text() == markdown(), "run `make docs`"


def test_every_config_without_effect_says_why_in_one_sentence() -> None:
    for name, spec in CONFIGS.items():
        assert spec.meaning.endswith("."), name
        assert ". " not in spec.meaning, name


def test_the_configs_of_a_topic_that_have_no_effect_are_named() -> None:
    stored = {"segment.bytes": "1", "retention.ms": "5", "compression.type": "zstd", "set.by.a.later.release": "x"}
    assert without_effect(stored) == ["compression.type", "segment.bytes", "set.by.a.later.release"]
    assert without_effect({"max.message.bytes": "1", "message.timestamp.after.max.ms": "1"}) == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_kafka_removed_is_refused_with_what_to_set_instead(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Kafka 4\.0 removed it"):
        checked_config({name: "1"})
    assert altered_config({name: "1", "retention.ms": "5"}, {}, frozenset({name})) == {"retention.ms": "5"}


def test_a_topic_without_configs_has_the_defaults_of_kafka() -> None:
    assert TopicConfig.of({}) == TopicConfig(
        compact=False,
        delete=True,
        retention_ms=604_800_000,
        retention_bytes=None,
        delete_retention_ms=86_400_000,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=2**63 - 1,
        min_cleanable_dirty_ratio=0.5,
        max_message_bytes=1_048_588,
        timestamp_before_max_ms=2**63 - 1,
        timestamp_after_max_ms=3_600_000,
        log_append_time=False,
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_every_default_is_a_value_that_is_accepted_as_it_is_spelled(name: str) -> None:
    assert checked_value(name, CONFIGS[name].default) == CONFIGS[name].default


@pytest.mark.parametrize(
    ("text", "kept", "compact", "delete"),
    [
        ("delete", "delete", False, True),
        ("compact", "compact", True, False),
        ("compact,delete", "compact,delete", True, True),
        (" delete, compact ", "compact,delete", True, True),
        ("", "", False, False),
    ],
)
def test_cleanup_policies_have_one_spelling(text: str, kept: str, compact: bool, delete: bool) -> None:
    config = checked_config({"cleanup.policy": text})
    assert config == {"cleanup.policy": kept}
    assert (TopicConfig.of(config).compact, TopicConfig.of(config).delete) == (compact, delete)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", "0"),
        ("retention.bytes", str(2**63 - 1)),
        ("min.cleanable.dirty.ratio", "0"),
        ("min.cleanable.dirty.ratio", "1"),
        ("max.message.bytes", str(RECORD_BATCH_BYTES_MAX)),
        ("compression.type", "zstd"),
        ("message.timestamp.type", "CreateTime"),
        ("message.timestamp.type", "LogAppendTime"),
        ("preallocate", "TRUE"),
        ("follower.replication.throttled.replicas", "*"),
    ],
)
def test_values_at_the_edge_are_accepted(name: str, value: str) -> None:
    checked_value(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", ","),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "compact;delete"),
        ("retention.ms", "-2"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "1e3"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", "--1"),
        ("retention.ms", "9" * 900),
        ("retention.bytes", ""),
        ("delete.retention.ms", "-1"),
        ("min.compaction.lag.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("max.message.bytes", str(RECORD_BATCH_BYTES_MAX + 1)),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("message.timestamp.type", "logappendtime"),
        ("preallocate", "yes"),
        ("follower.replication.throttled.replicas", "3" * (TOPIC_CONFIG_VALUE_CHARS_MAX + 1)),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_config(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked_config({"retention.bytes": "5", name: value})
    assert caught.value.argument == f"config {name}"


def test_an_unknown_name_is_refused_with_the_names_that_are_accepted() -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked_config({"retention.minutes": "5"})
    assert "retention.minutes" in str(caught.value)
    assert all(name in str(caught.value) for name in CONFIGS)


def test_altering_sets_some_removes_others_and_keeps_the_rest() -> None:
    kept = {"retention.ms": "5", "segment.ms": "7", "set.by.a.later.release": "x"}
    altered = altered_config(kept, {"retention.bytes": " 9 "}, frozenset({"segment.ms", "cleanup.policy"}))
    assert altered == {"retention.ms": "5", "retention.bytes": "9", "set.by.a.later.release": "x"}
    assert altered_config(kept, {}, frozenset({"set.by.a.later.release"})).keys() == {"retention.ms", "segment.ms"}
    for put, remove in (({"retention.ms": "1"}, {"retention.ms"}), ({}, {"retention.minutes"})):
        with pytest.raises(InvalidArgument, match="retention"):
            altered_config(kept, put, frozenset(remove))


def test_reading_passes_over_unknown_names_and_never_guesses_a_value() -> None:
    assert TopicConfig.of({"set.by.a.later.release": "x", "retention.ms": "-1"}).retention_ms is None
    with pytest.raises(InvalidArgument, match=r"retention\.ms"):
        TopicConfig.of({"retention.ms": "for ever"})
