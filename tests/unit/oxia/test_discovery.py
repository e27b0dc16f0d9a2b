"""Shard discovery: it survives servers that die, pause, restart or do not know, and says what stands in the way."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import grpc
import pytest

from llog.stores.metadata.oxia.client import Get, Misconfigured, OxiaClient, OxiaOptions, OxiaPut, Unavailable
from llog.testing.servers import free_port
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.oxia.fake_server import FakeOxia


async def test_a_missing_namespace_is_named_at_once(server: FakeOxia) -> None:
    with pytest.raises(Misconfigured, match="namespace not found"):
        await asyncio.wait_for(server.client(namespace="other"), PATIENCE_SECONDS)


async def test_a_server_that_does_not_run_is_unavailable_after_the_deadline() -> None:
    options = OxiaOptions(addresses=(f"127.0.0.1:{free_port()}",), request_timeout_ms=300)
    with pytest.raises(Unavailable):
        await OxiaClient.open(options)


async def test_the_next_address_is_tried_when_one_is_dead_or_silent(server: FakeOxia) -> None:
    async with FakeOxia() as silent:
        silent.silent_discovery = True
        addresses = (f"127.0.0.1:{free_port()}", silent.address, server.address)
        timeout_ms = int(PATIENCE_SECONDS * 1_000)
        client = await OxiaClient.open(OxiaOptions(addresses=addresses, request_timeout_ms=timeout_ms))
        assert client.leader_of(0) == server.address
        await client.close()


async def test_a_new_leader_is_followed_without_being_asked_for(server: FakeOxia) -> None:
    async with FakeOxia() as successor:
        client = await server.client()
        await client.write(0, [OxiaPut("a", b"old")])
        successor.records["a"] = (b"new", 7)
        server.lead({0: successor.address})
        await until(lambda: client.leader_of(0) == successor.address)
        [found] = await client.get_many(0, [Get("a")])
        assert found is not None
        assert found.value == b"new"
        await client.close()


async def test_reads_wait_through_an_election(server: FakeOxia) -> None:
    client = await server.client()
    server.records["a"] = (b"v", 0)
    server.lead({0: ""})
    await until(lambda: not client.leader_of(0))
    reading = asyncio.create_task(client.get_many(0, [Get("a")]))
    await asyncio.sleep(0.1)  # no signal shows that a read waits; an early answer would take milliseconds
    assert not reading.done()
    server.lead({0: server.address})
    [found] = await reading
    assert found is not None
    await client.close()


async def test_an_election_without_end_is_unavailable(server: FakeOxia) -> None:
    client = await server.impatient_client(timeout_ms=300)
    server.lead({0: ""})
    await until(lambda: not client.leader_of(0))
    with pytest.raises(Unavailable):
        await client.get_many(0, [Get("a")])
    await client.close()


async def test_discovery_comes_back_after_the_server_restarts(server: FakeOxia) -> None:
    async with FakeOxia() as successor:
        client = await server.client()
        await server.stop()
        server.leaders = {0: successor.address}
        await server.start()
        await until(lambda: client.leader_of(0) == successor.address)
        await client.close()


async def test_more_shards_may_appear(server: FakeOxia) -> None:
    client = await server.client()
    assert set(client.shards) == {0}
    server.lead({1: server.address, 2: server.address})
    await until(lambda: set(client.shards) == {1, 2})
    assert {client.shard_of(f"route-{i}") for i in range(50)} == {1, 2}
    with pytest.raises(Unavailable):
        await client.get_many(0, [Get("a")])
    await client.close()


async def test_tls_is_spoken_with_the_given_authority_and_with_no_other(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    async with FakeOxia(credentials) as server:
        client = await server.client(tls=True, ca_certificates=certificate.read_bytes())
        assert await client.write(0, [OxiaPut("a", b"v")]) == [0]
        await client.close()
        # A server that announces itself with the prefix is spoken to with TLS too.
        server.leaders = {0: f"tls://{server.address}"}
        client = await server.client(tls=True, ca_certificates=certificate.read_bytes())
        assert await client.write(0, [OxiaPut("b", b"v")]) == [1]
        await client.close()
        with pytest.raises(Unavailable):
            await server.client(timeout_ms=500, tls=True)
        with pytest.raises(Unavailable):
            await server.client(timeout_ms=500)
