"""What the S3 adapter puts on the wire, seen by a server that keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from llog.stores.objects.s3 import S3ObjectStore
from tests.patience import PATIENCE_SECONDS

LISTING = b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>"


@dataclass(frozen=True)
class Settings:
    s3_endpoint_url: str | None
    s3_region_name: str | None = "us-east-1"
    s3_access_key_id: str | None = "key"
    s3_secret_access_key: str | None = "secret"
    s3_session_token: str | None = None
    request_timeout_ms: int | None = int(PATIENCE_SECONDS * 1_000)


@asynccontextmanager
async def recording_server() -> AsyncIterator[tuple[str, list[str]]]:
    """An endpoint that lists an empty bucket, and the heads of the requests it got."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: "
        writer.write(head + b"%d\r\n\r\n" % len(LISTING) + LISTING)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("token", [None, "ours"])
async def test_given_keys_travel_alone_whatever_the_environment_holds(
    monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "left over")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    async with recording_server() as (endpoint, heads):
        store = S3ObjectStore("s3://bucket", Settings(endpoint, s3_session_token=token))
        await store.check(writing=False)
        await store.close()
    assert len(heads) == 1, "a reader's check is one listing"
    assert "Credential=key/" in heads[0]
    sent = [
        line.partition(":")[2].strip() for line in heads[0].split("\r\n") if line.lower().startswith("x-amz-security")
    ]
    assert sent == ([token] if token else [])
