"""A broker's configs under Kafka's names, as tools look them up: derived from our settings, read-only.

Tools show them, and some decide by them whether topics can be created or deleted. A config of Kafka that means nothing
here is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from llog.broker.cluster import ClusterView, Node
from llog.kafka.net.connection import IDLE_MS_MAX
from llog.kafka.net.memory import FRAME_BYTES_MAX
from llog.kafka.topic_configs import BROKER_NAMES, ConfigSource, ShownConfig, Synonym
from llog.log.topics.config_table import CONFIGS, ConfigKind
from llog.settings import Settings
from llog.settings.urls import mask_url


class _Row(NamedTuple):
    name: str
    kind: ConfigKind
    value: object
    meaning: str
    setting: str = ""
    """The setting that it follows from; empty: it is the same in every broker."""


def broker_configs(settings: Settings, cluster: ClusterView) -> list[ShownConfig]:
    """Every config of this broker, by name."""
    rows = {row.name: row for row in (*_from_topic_configs(), *_rows(settings, cluster))}
    return [_shown(row, settings) for _, row in sorted(rows.items())]


def _rows(settings: Settings, cluster: ClusterView) -> Iterator[_Row]:
    own = cluster.own
    address = _listener(own, "PLAINTEXT" if settings.tls_cert_file is None else "SSL")
    yield _Row("node.id", "int", cluster.node_id, "Number of this node.", "node_id")
    yield _Row("broker.id", "int", cluster.node_id, "Number of this node.", "node_id")
    yield _Row("broker.rack", "string", own.zone, "Zone of this node.", "zone")
    yield _Row("process.roles", "list", "broker", "Every node is a broker; no node is a controller.")
    yield _Row("listeners", "list", address, "Where Kafka clients connect.", "kafka_port")
    yield _Row("advertised.listeners", "list", address, "Where Kafka clients connect.", "kafka_port")
    yield _Row(
        "log.dirs", "list", mask_url(settings.objects_url), "Store of the records, for all brokers.", "objects_url"
    )
    yield _Row(
        "num.partitions", "int", settings.default_partitions,
        "Partitions of a topic that is created without a number.", "default_partitions",
    )  # fmt: skip
    yield _Row(
        "auto.create.topics.enable", "boolean", settings.auto_create_topics,
        "Whether a first use creates a topic.", "auto_create_topics",
    )  # fmt: skip
    yield _Row("socket.request.max.bytes", "int", FRAME_BYTES_MAX, "Largest request.")
    yield _Row("connections.max.idle.ms", "long", IDLE_MS_MAX, "How long a connection may be idle.")
    yield _Row("delete.topic.enable", "boolean", True, "Topics can be deleted.")
    for name in ("default.replication.factor", "offsets.topic.replication.factor"):
        yield _Row(name, "int", 1, "The object store keeps the copies of a record.")
    yield _Row("auto.leader.rebalance.enable", "boolean", True, "Leaders follow from the nodes that are alive.")
    yield _Row("log.cleaner.enable", "boolean", True, "The compactor applies cleanup.policy.")
    yield _Row(
        "log.retention.check.interval.ms", "long", settings.retention_interval_ms,
        "How often the compactor applies retention.", "retention_interval_ms",
    )  # fmt: skip
    yield _Row("log.retention.hours", "int", int(CONFIGS["retention.ms"].default) // 3_600_000, "Default of topics.")
    yield _Row("remote.log.storage.system.enable", "boolean", False, "There are no tiers.")
    yield _Row("authorizer.class.name", "string", "", "There are no access control lists.")


def _from_topic_configs() -> Iterator[_Row]:
    for name, broker_name in BROKER_NAMES.items():
        spec = CONFIGS[name]
        yield _Row(broker_name, spec.kind, spec.default, f"Default of the topic config {name}.")


def _listener(node: Node, protocol: str) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{protocol}://{host}:{node.port}"


def _shown(row: _Row, settings: Settings) -> ShownConfig:
    value = str(row.value).lower() if isinstance(row.value, bool) else str(row.value)
    is_set = bool(row.setting) and row.setting in settings.sources and settings.source_of(row.setting) != "default"
    source = ConfigSource.STATIC_BROKER if is_set else ConfigSource.DEFAULT
    meaning = f"{row.meaning} (LLOG_{row.setting.upper()})" if row.setting else row.meaning
    return ShownConfig(row.name, value, source, row.kind, meaning, (Synonym(row.name, value, source),))
