"""Strict reads: proven by a write that began after the reader came, on the server that then serves the read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from llog.errors import MetadataTimeout, MetadataUnavailable
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.store import OxiaStore
from llog.stores.metadata.oxia.strict import METADATA_STRICT_PROBE_INTERVAL_MS, PROBE_KEY, StrictGate
from llog.stores.metadata.port import Key
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.oxia.fake_server import FakeOxia, Refusal

INTERVAL = METADATA_STRICT_PROBE_INTERVAL_MS / 1_000


class Probes:
    """Counts probes and lets a test decide when each one ends."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.started: list[float] = []
        self.seconds = seconds

    async def __call__(self) -> Any:
        """A name stands for the link: the gate only hands it on."""
        self.started.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        return f"probe {len(self.started)}"


def gate_of(probe: Callable[[], Awaitable[Any]]) -> Any:
    return StrictGate(probe)


async def test_everyone_who_waits_shares_one_probe() -> None:
    probes = Probes()
    gate = gate_of(probes)
    links = await asyncio.gather(*(gate.enter() for _ in range(20)))
    assert links == ["probe 1"] * 20
    assert len(probes.started) == 1


async def test_a_reader_never_joins_a_probe_that_began_before_it_came() -> None:
    probes = Probes(seconds=0.2)
    gate = gate_of(probes)
    first = asyncio.create_task(gate.enter())
    await until(lambda: len(probes.started) == 1)
    came = asyncio.get_running_loop().time()
    second = asyncio.create_task(gate.enter())
    assert await first == "probe 1"
    assert await second == "probe 2"
    assert probes.started[1] >= came


async def test_probes_start_no_more_often_than_the_interval() -> None:
    probes = Probes()
    gate = gate_of(probes)
    for _ in range(4):
        await gate.enter()
    gaps = [later - earlier for earlier, later in pairwise(probes.started)]
    assert all(gap >= INTERVAL * 0.99 for gap in gaps), gaps


async def test_a_cancelled_reader_does_not_take_the_probe_from_the_others() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def probe() -> Any:
        started.set()
        await ended.wait()
        return "the link"

    gate = gate_of(probe)
    one, two = asyncio.create_task(gate.enter()), asyncio.create_task(gate.enter())
    await started.wait()
    one.cancel()
    ended.set()
    assert await two == "the link"


async def test_a_probe_that_hangs_does_not_hold_up_the_next_for_ever() -> None:
    hang, probes = asyncio.Event(), Probes()

    async def first_hangs() -> Any:
        link = await probes()
        if len(probes.started) == 1:
            await hang.wait()
        return link

    gate = gate_of(first_hangs)
    first = asyncio.create_task(gate.enter())
    await until(lambda: probes.started)
    assert await asyncio.wait_for(gate.enter(), PATIENCE_SECONDS) == "probe 2"
    hang.set()
    await first


@pytest.fixture
async def servers() -> AsyncIterator[tuple[FakeOxia, FakeOxia]]:
    async with FakeOxia() as deposed, FakeOxia() as leader:
        yield deposed, leader


async def test_a_deposed_leader_answers_plain_reads_and_is_never_believed_by_strict_ones(
    servers: tuple[FakeOxia, FakeOxia],
) -> None:
    deposed, leader = servers
    store = OxiaStore(await deposed.client(), "oxia://fake")
    key = Key("a")
    deposed.records["a"], leader.records["a"] = (b"old", 1), (b"new", 2)

    async def cannot_commit(request: pb.WriteRequest) -> None:
        deposed.lead({0: leader.address})
        raise Refusal("oxia: failed to append to wal: oxia: resource is already closed")

    deposed.on_write = cannot_commit
    stale = await store.get(key)
    assert stale is not None
    assert stale.value == b"old"
    fresh = await store.get(key, strict=True)
    assert fresh is not None
    assert fresh.value == b"new"
    assert [delete.key for request in leader.requests for delete in request.deletes] == [PROBE_KEY]
    assert len(leader.reads) == 1
    await store.close()


async def test_a_strict_read_that_no_write_can_prove_is_a_timeout_not_an_uncertainty(
    servers: tuple[FakeOxia, FakeOxia],
) -> None:
    server, _ = servers
    store = OxiaStore(await server.impatient_client(timeout_ms=500), "oxia://fake")

    async def silent(request: pb.WriteRequest) -> None:
        return None

    server.on_write = silent
    with pytest.raises((MetadataTimeout, MetadataUnavailable)):
        await store.get(Key("a"), strict=True)
    assert not server.reads, "nothing was read where nothing was proven"
    await store.close()


async def test_probes_and_clock_leave_no_record(servers: tuple[FakeOxia, FakeOxia]) -> None:
    server, _ = servers
    store = OxiaStore(await server.client(), "oxia://fake")
    await store.get(Key("a"), strict=True)
    assert await store.server_time_ms() == 1_000
    assert server.records == {}
    await store.close()


async def test_the_read_goes_where_the_probe_succeeded_whatever_is_announced_meanwhile(
    servers: tuple[FakeOxia, FakeOxia],
) -> None:
    stale, leader = servers
    store = OxiaStore(await leader.client(), "oxia://fake")
    stale.records["a"], leader.records["a"] = (b"old", 1), (b"new", 2)

    async def announce_the_wrong_one(request: pb.WriteRequest) -> pb.WriteResponse:
        leader.lead({0: stale.address})
        await until(lambda: store.client.leader_of(0) == stale.address, "the announcement at the client")
        return await leader.apply_write(request)

    leader.on_write = announce_the_wrong_one
    found = await store.get(Key("a"), strict=True)
    assert found is not None
    assert found.value == b"new"
    assert store.client.leader_of(0) == stale.address
    await store.close()
