"""kafka-python judges the broker."""

from __future__ import annotations

import pytest

from tests.clients.kafka.client_suite import ClientSuite
from tests.clients.kafka.kafka_python_driver import KafkaPythonDriver

pytestmark = pytest.mark.slow


class TestKafkaPython(ClientSuite):
    driver = KafkaPythonDriver
    sends_nothing = False
    sends_null_headers = False
