"""What handlers of the Kafka front end use, in one value: the broker, the cluster as this node sees it, the topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llog.kafka.administration import Changes
from llog.kafka.leaders import PartitionLeaders
from llog.kafka.log_sizes import LogSizes

if TYPE_CHECKING:
    from llog.broker.broker import Broker
    from llog.broker.cluster import ClusterView
    from llog.broker.groups.coordinator import GroupCoordinator
    from llog.log.topics.known_topics import KnownTopics


@dataclass(frozen=True, slots=True)
class KafkaServices:
    broker: Broker
    cluster: ClusterView
    topics: KnownTopics
    changes: Changes = field(default_factory=Changes)
    leaders: PartitionLeaders = field(default_factory=PartitionLeaders)
    log_sizes: LogSizes = field(default_factory=LogSizes)

    @property
    def groups(self) -> GroupCoordinator:
        return self.broker.groups
