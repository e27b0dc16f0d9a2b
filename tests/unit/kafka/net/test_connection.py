"""Connections of Kafka clients: order, limits, endings."""

from __future__ import annotations

from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from tests.unit.kafka.serving import serve


async def test_a_client_learns_the_versions_of_every_api() -> None:
    async with serve() as kafka, kafka.client() as client:
        for version in range(5):
            answer = await client.ask(ApiVersionsRequest("test", "1.0"), version)
            assert answer.error_code == 0
            assert 18 in {api.api_key for api in answer.api_keys}
