"""What handlers of the Kafka front end use, in one value: the broker, the cluster as this node sees it, the topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llog.broker.broker import Broker
    from llog.broker.cluster import ClusterView
    from llog.log.topics.known_topics import KnownTopics


@dataclass(frozen=True, slots=True)
class KafkaServices:
    broker: Broker
    cluster: ClusterView
    topics: KnownTopics
