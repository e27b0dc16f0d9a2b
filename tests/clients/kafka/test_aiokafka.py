"""aiokafka judges the broker."""

from __future__ import annotations

import pytest

from tests.clients.kafka.aiokafka_driver import AiokafkaDriver
from tests.clients.kafka.client_suite import ClientSuite

pytestmark = pytest.mark.slow


class TestAiokafka(ClientSuite):
    driver = AiokafkaDriver
    sends_nothing = False
