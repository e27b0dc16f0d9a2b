from __future__ import annotations

from collections.abc import Iterator

import pytest

from llog.testing.servers import ServerUnavailable
from tests.clients.kafka.brokers import Certificate, KafkaBroker, kafka_broker, make_certificate
from tests.clients.kafka.driver import ClientDriver, Connect


@pytest.fixture(scope="session")
def which(request: pytest.FixtureRequest) -> str:
    """The value of `--kafka`."""
    return str(request.config.getoption("--kafka"))


@pytest.fixture(scope="module")
def kafka(which: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with kafka_broker(which, tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def kafka_tls(which: str, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with kafka_broker(which, tmp_path_factory.mktemp("kafka-tls"), certificate) as broker:
        yield broker


@pytest.fixture(scope="class")
def client(kafka: KafkaBroker, connect: Connect) -> Iterator[ClientDriver]:
    """The client library that the class of claims names, connected; its producers live as long as the class."""
    with connect(kafka) as driver:
        yield driver


@pytest.fixture(scope="class")
def connect(request: pytest.FixtureRequest) -> Connect:
    """Connects another client of the same library."""

    def connected(broker: KafkaBroker) -> ClientDriver:
        try:
            driver: ClientDriver = request.cls.driver(broker)
        except ServerUnavailable as reason:
            pytest.skip(str(reason))
        return driver

    return connected
