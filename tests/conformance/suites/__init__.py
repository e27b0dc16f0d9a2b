"""The suites, in the order in which they run."""

from __future__ import annotations

from typing import Final

from tests.conformance.suite import Suite
from tests.conformance.suites import connect, franz_go, kafka_python, librdkafka, registry, streams, tools

SUITES: Final[tuple[Suite, ...]] = (
    tools.SUITE,
    kafka_python.SUITE,
    connect.SUITE,
    streams.SUITE,
    registry.SUITE,
    franz_go.SUITE,
    librdkafka.SUITE,
)
