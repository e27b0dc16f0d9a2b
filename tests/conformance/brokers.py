"""The broker that a suite judges: llog, started fresh for it; Apache Kafka likewise; or one that runs already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from llog.testing.kafka_server import KafkaServer
from tests.conformance.suite import Suite
from tests.system.broker_process import LlogProcess

LLOG: Final = "llog"
KAFKA: Final = "kafka"
# One node needs few partitions of its internal topics, and groups that start fast.
_KAFKA_PROPERTIES: Final = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "2",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


@contextmanager
def broker(which: str, suite: Suite, directory: Path) -> Iterator[str]:
    """Its address; `which` is llog, kafka or an address."""
    if which == LLOG:
        settings = {"LLOG_DATA_DIR": str(directory / "data"), **suite.settings}
        with LlogProcess(
            "up", "--broker-id", "conformance", settings=settings, log=directory / "broker.log"
        ) as process:
            yield f"127.0.0.1:{process.kafka_port}"
    elif which == KAFKA:
        with KafkaServer(_KAFKA_PROPERTIES | dict(suite.properties)) as server:
            yield server.address
    else:
        yield which
