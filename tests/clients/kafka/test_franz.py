"""franz-go judges the broker."""

from __future__ import annotations

import pytest

from tests.clients.kafka.client_suite import ClientSuite
from tests.clients.kafka.program_driver import FranzDriver

pytestmark = [pytest.mark.slow, pytest.mark.server]


class TestFranz(ClientSuite):
    driver = FranzDriver
    follows_new_topic_ids = False
