"""confluent-kafka, which is librdkafka, judges the broker."""

from __future__ import annotations

import pytest

from tests.clients.kafka.client_suite import ClientSuite
from tests.clients.kafka.confluent_driver import ConfluentDriver

pytestmark = pytest.mark.slow


class TestConfluent(ClientSuite):
    driver = ConfluentDriver
