"""An Oxia server in this process whose every answer a test decides.

Bytes really travel (a gRPC server on loopback), so streams break, stall and answer as they do in life; what is
answered, and when, is the test's. It holds its records in a dict, enough for puts, deletes, gets and sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import grpc

from llog.stores.metadata.oxia.client import OxiaClient, OxiaOptions, Unavailable
from llog.stores.metadata.oxia.client.proto import pb
from tests.patience import PATIENCE_SECONDS

SERVICE_NAME = "io.streamnative.oxia.proto.OxiaClient"

OnWrite = Callable[[pb.WriteRequest], Awaitable[pb.WriteResponse | None]]


class FakeOxia:
    """One server. Tests replace `on_write`, `read_refusal` and the rest to make it misbehave."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.records: dict[str, tuple[bytes, int]] = {}
        self.next_version = 0
        self.requests: list[pb.WriteRequest] = []
        self.reads: list[pb.ReadRequest] = []
        self.streams_opened = 0
        self.metadata: list[dict[str, str]] = []
        self.on_write: OnWrite = self.apply_write
        self.refuse_stream: tuple[grpc.StatusCode, str, bytes] | None = None
        """Status, text and `grpc-status-details-bin` with which every write stream is refused at once."""
        self.leaders: dict[int, str] | None = None
        """Per shard; None: this server leads the one shard there is."""
        self.assignments_changed = asyncio.Event()
        self.silent_discovery = False
        self.sessions: set[int] = set()
        self.heartbeats: list[tuple[float, int]] = []
        self.heartbeats_hang = False
        self.batches: list[pb.NotificationBatch] = []
        self.notification_requests: list[pb.NotificationsRequest] = []
        self.notifications_break = asyncio.Event()
        self.notifications_new = asyncio.Event()
        self.address = ""
        self._credentials = credentials
        self._server: grpc.aio.Server | None = None

    # -- life -------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        server = self._server = grpc.aio.server()
        handlers: dict[str, Any] = {
            "GetShardAssignments": self._stream(self._assignments, pb.ShardAssignmentsRequest),
            "Read": self._stream(self._read, pb.ReadRequest),
            "GetNotifications": self._stream(self._notifications, pb.NotificationsRequest),
            "CreateSession": self._unary(self._create_session, pb.CreateSessionRequest),
            "KeepAlive": self._unary(self._keep_alive, pb.SessionHeartbeat),
            "CloseSession": self._unary(self._close_session, pb.CloseSessionRequest),
            "WriteStream": grpc.stream_stream_rpc_method_handler(
                self._write_stream, pb.WriteRequest.FromString, _serialize
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        target = self.address or "127.0.0.1:0"
        if self._credentials is not None:
            port = server.add_secure_port(target, self._credentials)
        else:
            port = server.add_insecure_port(target)
        self.address = f"127.0.0.1:{port}"
        await server.start()

    async def stop(self) -> None:
        """At once: connections break."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def impatient_client(self, timeout_ms: int) -> OxiaClient:
        """One that soon gives up, though not while it is opened."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await self.client(timeout_ms)
                except Unavailable:
                    continue

    async def client(self, timeout_ms: int = 60_000, **options: Any) -> OxiaClient:
        return await OxiaClient.open(
            OxiaOptions(addresses=(self.address,), identity="unit", request_timeout_ms=timeout_ms, **options)
        )

    def lead(self, leaders: dict[int, str]) -> None:
        """Announce who leads (an empty address: nobody)."""
        self.leaders = leaders
        self.assignments_changed.set()

    def _stream(self, method: Any, request: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(method, request.FromString, _serialize)

    def _unary(self, method: Any, request: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(method, request.FromString, _serialize)

    # -- methods ----------------------------------------------------------------------------------------------------
    async def _assignments(self, request: pb.ShardAssignmentsRequest, context: Any) -> AsyncIterator[Any]:
        self.metadata.append(dict(context.invocation_metadata()))
        if self.silent_discovery:
            await asyncio.sleep(3600)
        if request.namespace != "default":
            await context.abort(grpc.StatusCode.UNKNOWN, "oxia: namespace not found")
        while True:
            self.assignments_changed.clear()
            yield self._announcement()
            await self.assignments_changed.wait()

    def _announcement(self) -> pb.ShardAssignments:
        leaders = {0: self.address} if self.leaders is None else self.leaders
        message = pb.ShardAssignments()
        namespace = message.namespaces["default"]
        namespace.shard_key_router = pb.ROUTER_XXHASH3
        width = 2**32 // len(leaders)
        for number, (shard, leader) in enumerate(leaders.items()):
            last = number == len(leaders) - 1
            namespace.assignments.add(
                shard=shard,
                leader=leader,
                int32_hash_range=pb.HashRange(
                    min_hash_inclusive=number * width,
                    max_hash_inclusive=2**32 - 1 if last else (number + 1) * width - 1,
                ),
            )
        return message

    async def _write_stream(self, requests: AsyncIterator[pb.WriteRequest], context: Any) -> AsyncIterator[Any]:
        self.streams_opened += 1
        self.metadata.append(dict(context.invocation_metadata()))
        if self.refuse_stream is not None:
            code, text, details = self.refuse_stream
            if details:
                context.set_trailing_metadata((("grpc-status-details-bin", details),))
            await context.abort(code, text)
        async for request in requests:
            self.requests.append(request)
            try:
                answer = await self.on_write(request)
            except Refusal as refusal:
                await context.abort(refusal.code, refusal.text)
            else:
                if answer is not None:
                    yield answer

    async def apply_write(self, request: pb.WriteRequest) -> pb.WriteResponse:
        answer = pb.WriteResponse()
        for put in request.puts:
            held = self.records.get(put.key)
            expected = put.expected_version_id if put.HasField("expected_version_id") else None
            if expected is not None and expected != (-1 if held is None else held[1]):
                answer.puts.add(status=pb.UNEXPECTED_VERSION_ID)
                continue
            if put.HasField("session_id") and put.session_id not in self.sessions:
                answer.puts.add(status=pb.SESSION_DOES_NOT_EXIST)
                continue
            self.records[put.key] = (put.value, self.next_version)
            version = pb.Version(version_id=self.next_version, modified_timestamp=1_000 + self.next_version)
            if put.HasField("client_identity"):
                version.client_identity = put.client_identity
            answer.puts.add(status=pb.OK, version=version)
            self.next_version += 1
        for delete in request.deletes:
            found = self.records.pop(delete.key, None)
            answer.deletes.add(status=pb.OK if found else pb.KEY_NOT_FOUND)
        return answer

    async def _read(self, request: pb.ReadRequest, context: Any) -> AsyncIterator[Any]:
        self.reads.append(request)
        answer = pb.ReadResponse()
        for get in request.gets:
            held = self.records.get(get.key)
            if held is None:
                answer.gets.add(status=pb.KEY_NOT_FOUND)
            else:
                answer.gets.add(status=pb.OK, value=held[0], version=pb.Version(version_id=held[1]))
        yield answer

    async def _notifications(self, request: pb.NotificationsRequest, context: Any) -> AsyncIterator[Any]:
        self.notification_requests.append(request)
        if request.HasField("start_offset_exclusive"):
            offset = request.start_offset_exclusive
        else:
            offset = self.batches[-1].offset if self.batches else 0
            yield pb.NotificationBatch(shard=request.shard, offset=offset)
        while not self.notifications_break.is_set():
            self.notifications_new.clear()
            for batch in [batch for batch in self.batches if batch.offset > offset]:
                offset = batch.offset
                yield batch
            await self.notifications_new.wait()
        await context.abort(grpc.StatusCode.UNKNOWN, "oxia: resource is already closed")

    def notify(self, key: str, version: int) -> None:
        batch = pb.NotificationBatch(offset=(self.batches[-1].offset if self.batches else 0) + 1)
        batch.notifications.add(key=key, value=pb.Notification(type=pb.KEY_MODIFIED, version_id=version))
        self.batches.append(batch)
        self.notifications_new.set()

    def break_notifications(self) -> None:
        self.notifications_break.set()
        self.notifications_new.set()

    async def _create_session(self, request: pb.CreateSessionRequest, context: Any) -> pb.CreateSessionResponse:
        session_id = len(self.sessions) + 1
        self.sessions.add(session_id)
        return pb.CreateSessionResponse(session_id=session_id)

    async def _keep_alive(self, request: pb.SessionHeartbeat, context: Any) -> pb.KeepAliveResponse:
        if self.heartbeats_hang:
            await asyncio.sleep(3600)
        self.heartbeats.append((asyncio.get_running_loop().time(), request.session_id))
        if request.session_id not in self.sessions:
            await context.abort(grpc.StatusCode.UNKNOWN, "oxia: session not found")
        return pb.KeepAliveResponse()

    async def _close_session(self, request: pb.CloseSessionRequest, context: Any) -> pb.CloseSessionResponse:
        self.sessions.discard(request.session_id)
        return pb.CloseSessionResponse()


class Refusal(Exception):
    """Ends the write stream with this status."""

    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        self.text, self.code = text, code


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def error_details(reason: str, leader: str = "", shard: int = 0) -> bytes:
    """The trailer of a 0.17 server."""
    info = pb.ErrorInfo(reason=reason, domain="oxia.io")
    if leader:
        info.metadata["leader"], info.metadata["shard"] = leader, str(shard)
    detail = pb.RpcDetail(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
    return pb.RpcStatus(code=10, details=[detail]).SerializeToString()
