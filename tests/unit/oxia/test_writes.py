"""The write stream against a server that misbehaves: what is known, what is uncertain, what is repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from llog.limits import OXIA_REQUESTS_IN_FLIGHT_MAX
from llog.stores.metadata.oxia.client import (
    ClientClosed,
    Op,
    Outcome,
    OxiaClient,
    OxiaDelete,
    OxiaPut,
    Unavailable,
    Uncertain,
    VersionMismatch,
)
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.queue import OXIA_WRITE_OPS_MAX
from llog.stores.metadata.oxia.client.rpc import OxiaLink
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.oxia.fake_server import FakeOxia, Refusal, error_details


def puts(count: int, prefix: str = "k") -> list[Op]:
    return [OxiaPut(f"{prefix}{i:05d}", b"v", -1) for i in range(count)]


def kinds(outcomes: list[Outcome]) -> set[type]:
    return {type(outcome) for outcome in outcomes}


async def test_operations_of_one_turn_travel_in_one_request(server: FakeOxia) -> None:
    client = await server.client()
    outcomes = await asyncio.gather(*(client.write(0, [op]) for op in puts(50)))
    assert [outcome for [outcome] in outcomes] == list(range(50))
    assert [len(request.puts) for request in server.requests] == [50]
    await client.close()


async def test_answers_go_to_the_operations_that_asked(server: FakeOxia) -> None:
    client = await server.client()
    await client.write(0, [OxiaPut("taken", b"v"), OxiaPut("doomed", b"v")])
    ops: list[Op] = [
        OxiaPut("a", b"1", -1),
        OxiaPut("taken", b"2", -1),
        OxiaDelete("doomed"),
        OxiaPut("b", b"1", -1),
        OxiaDelete("nothing"),
        OxiaDelete("nothing", 5),
    ]
    a, taken, doomed, b, nothing, expected = await client.write(0, ops)
    assert isinstance(taken, VersionMismatch)
    assert (doomed, nothing) == (0, 0)
    assert isinstance(expected, VersionMismatch)
    assert (a, b) == (server.records["a"][1], server.records["b"][1])
    await client.close()


async def written(client: OxiaClient, ops: list[Op]) -> None:
    """As often as it takes: a client that soon gives up may do so before a busy machine answers."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while kinds(await client.write(0, ops)) != {int}:
            pass


async def test_at_most_eight_requests_are_in_flight_and_one_before_the_first_answer(server: FakeOxia) -> None:
    client = await server.client()
    answer = asyncio.Semaphore(0)

    async def hold(request: pb.WriteRequest) -> pb.WriteResponse:
        await answer.acquire()
        return await server.apply_write(request)

    # The fake takes requests one by one; what is in flight is what the writer has out.
    server.on_write = hold
    writing = asyncio.create_task(client.write(0, puts(20 * OXIA_WRITE_OPS_MAX)))
    await until(lambda: server.requests)
    await asyncio.sleep(0.1)  # the absence of a second request has no signal; it would be sent within milliseconds
    stream = client._writers[0]._stream
    assert stream is not None
    assert len(stream.flights) == 1
    answer.release()
    await until(lambda: len(stream.flights) >= OXIA_REQUESTS_IN_FLIGHT_MAX)
    await asyncio.sleep(0.1)  # the same for one request too many
    assert len(stream.flights) == OXIA_REQUESTS_IN_FLIGHT_MAX
    for _ in range(20):
        answer.release()
    assert kinds(await writing) == {int}
    await client.close()


async def test_a_broken_stream_leaves_the_unanswered_uncertain_and_the_answered_known(server: FakeOxia) -> None:
    client = await server.client()
    await client.write(0, [OxiaPut("warm", b"v")])

    async def break_at_third(request: pb.WriteRequest) -> pb.WriteResponse | None:
        if len(server.requests) == 4:
            await server.apply_write(request)
            raise Refusal("context canceled")
        return await server.apply_write(request)

    server.on_write = break_at_third
    outcomes = await client.write(0, puts(5 * OXIA_WRITE_OPS_MAX))
    known, uncertain = outcomes[: 2 * OXIA_WRITE_OPS_MAX], outcomes[2 * OXIA_WRITE_OPS_MAX :]
    assert kinds(known) == {int}
    assert kinds(uncertain) >= {Uncertain}
    assert kinds(uncertain[:OXIA_WRITE_OPS_MAX]) == {Uncertain}, "it was applied, and its answer lost"
    assert len(server.requests) == len({request.puts[0].key for request in server.requests}), "nothing was sent twice"
    await client.close()


async def test_an_answer_that_belongs_to_a_later_request_is_not_believed(server: FakeOxia) -> None:
    """A request that fails on the server gets no answer; the one behind it may, before the stream ends."""
    client = await server.client()
    await client.write(0, [OxiaPut("warm", b"v")])
    held: list[pb.WriteRequest] = []

    async def lose_the_first(request: pb.WriteRequest) -> pb.WriteResponse | None:
        held.append(request)
        return None if len(held) == 1 else await server.apply_write(request)

    server.on_write = lose_the_first
    outcomes = await client.write(0, puts(2 * OXIA_WRITE_OPS_MAX))
    assert kinds(outcomes) == {Uncertain}
    assert "k00000" not in server.records
    await client.close()


async def test_an_answer_of_another_shape_is_not_believed(server: FakeOxia) -> None:
    client = await server.client()

    async def too_short(request: pb.WriteRequest) -> pb.WriteResponse:
        answer = await server.apply_write(request)
        del answer.puts[-1]
        return answer

    server.on_write = too_short
    assert kinds(await client.write(0, puts(3))) == {Uncertain}
    await client.close()


async def test_a_refused_stream_is_repeated_at_the_leader_it_names(server: FakeOxia) -> None:
    async with FakeOxia() as leader:
        client = await server.client()
        details = error_details("NODE_IS_NOT_LEADER", leader.address)
        server.refuse_stream = (grpc.StatusCode.ABORTED, "oxia: node is not leader", details)
        assert await client.write(0, puts(3)) == [0, 1, 2]
        assert not server.records
        assert len(leader.records) == 3
        await client.close()


async def test_a_refused_stream_of_an_old_server_waits_for_new_assignments(server: FakeOxia) -> None:
    async with FakeOxia() as leader:
        client = await server.client()
        server.refuse_stream = (grpc.StatusCode.UNKNOWN, "node is not leader for shard 0", b"")
        writing = asyncio.create_task(client.write(0, puts(3)))
        await until(lambda: server.streams_opened, "a refused stream")
        server.lead({0: ""})
        await until(lambda: not client.leader_of(0))
        assert not writing.done()
        server.lead({0: leader.address})
        assert await writing == [0, 1, 2]
        await client.close()


async def test_a_lone_request_refused_on_a_running_stream_is_repeated(server: FakeOxia) -> None:
    client = await server.client()
    await client.write(0, [OxiaPut("warm", b"v")])
    refused: list[str] = []

    async def refuse_once(request: pb.WriteRequest) -> pb.WriteResponse:
        if not refused:
            refused.append(request.puts[0].key)
            raise Refusal("Received message in the wrong state. In FENCED, should be LEADER.")
        return await server.apply_write(request)

    server.on_write = refuse_once
    assert kinds(await client.write(0, puts(1))) == {int}
    assert refused == ["k00000"]
    await client.close()


async def test_a_silent_server_leaves_what_was_sent_uncertain_and_what_was_not_unavailable(server: FakeOxia) -> None:
    client = await server.impatient_client(timeout_ms=600)

    async def silent(request: pb.WriteRequest) -> None:
        return None

    server.on_write = silent
    outcomes = await client.write(0, puts(3 * OXIA_WRITE_OPS_MAX))
    assert kinds(outcomes[:OXIA_WRITE_OPS_MAX]) == {Uncertain}
    assert kinds(outcomes[OXIA_WRITE_OPS_MAX:]) == {Unavailable}, "a fresh stream carries one request"
    assert len(server.requests) == 1
    server.on_write = server.apply_write
    await written(client, puts(3, "later"))
    await client.close()


async def test_without_a_connection_nothing_happened(server: FakeOxia) -> None:
    client = await server.impatient_client(timeout_ms=500)
    await server.stop()
    assert kinds(await client.write(0, puts(3))) <= {Unavailable, Uncertain}
    assert kinds(await client.write(0, puts(3))) == {Unavailable}
    await server.start()
    await written(client, puts(3, "back"))
    await client.close()


async def test_a_leader_that_another_replaced_is_left_and_its_requests_are_uncertain(server: FakeOxia) -> None:
    async with FakeOxia() as successor:
        client = await server.client()
        await client.write(0, [OxiaPut("warm", b"v")])

        async def silent(request: pb.WriteRequest) -> None:
            return None

        server.on_write = silent
        writing = asyncio.create_task(client.write(0, puts(1)))
        await until(lambda: len(server.requests) == 2)
        server.lead({0: successor.address})
        assert kinds(await asyncio.wait_for(writing, PATIENCE_SECONDS)) == {Uncertain}, (
            "one request out, but nobody refused it"
        )
        assert not successor.requests
        assert kinds(await client.write(0, puts(2, "next"))) == {int}
        assert len(successor.records) == 2
        await client.close()


async def test_closing_waits_for_what_is_out_and_drops_what_is_not_sent(server: FakeOxia) -> None:
    client = await server.client()

    answer = asyncio.Event()

    async def hold(request: pb.WriteRequest) -> pb.WriteResponse:
        await answer.wait()
        return await server.apply_write(request)

    server.on_write = hold
    writing = asyncio.create_task(client.write(0, puts(2 * OXIA_WRITE_OPS_MAX)))
    await until(lambda: server.requests)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)  # one turn: the client is closing before the answer comes
    answer.set()
    await closing
    outcomes = await writing
    assert kinds(outcomes[:OXIA_WRITE_OPS_MAX]) == {int}
    assert kinds(outcomes[OXIA_WRITE_OPS_MAX:]) == {ClientClosed}
    with pytest.raises(ClientClosed):
        await client.write(0, puts(1))


async def test_streams_name_their_namespace_shard_and_token(server: FakeOxia) -> None:
    client = await server.client(token="secret")
    await client.write(0, puts(1))
    stream = server.metadata[-1]
    assert (stream["namespace"], stream["shard-id"]) == ("default", "0")
    assert {metadata["authorization"] for metadata in server.metadata} == {"Bearer secret"}
    assert "secret" not in repr(client.options)
    await client.close()


async def test_a_stream_that_ends_before_it_began_does_not_hold_up_the_shard(
    server: FakeOxia, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC never returns from a write to a call that was cancelled before its metadata were sent."""
    client = await server.client()
    connected = OxiaLink.connected

    async def connected_once(link: OxiaLink, seconds: float) -> bool:
        """The first stream to the link is cancelled in the turn in which it is opened."""
        monkeypatch.undo()
        open_stream = link.write_stream

        def cancelled_at_once(**options: Any) -> Any:
            call, link.write_stream = open_stream(**options), open_stream
            asyncio.get_running_loop().call_soon(call.cancel)
            return call

        link.write_stream = cancelled_at_once
        return await connected(link, seconds)

    monkeypatch.setattr(OxiaLink, "connected", connected_once)
    assert kinds(await client.write(0, puts(1, "first"))) == {Uncertain}
    assert kinds(await asyncio.wait_for(client.write(0, puts(1, "second")), PATIENCE_SECONDS)) == {int}
    await client.close()
