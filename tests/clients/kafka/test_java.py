"""The official Java clients, 4.3.1, judge the broker."""

from __future__ import annotations

import pytest

from tests.clients.kafka.client_suite import ClientSuite
from tests.clients.kafka.program_driver import JavaDriver

pytestmark = [pytest.mark.slow, pytest.mark.server]


class TestJava(ClientSuite):
    driver = JavaDriver
