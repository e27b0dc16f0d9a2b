"""Connections: one gRPC channel per server, opened on first use, with all methods of the service.

No channel exists before `ChannelPool.link` and none after `close`. Retries of gRPC are off, because only the client
knows which calls can be repeated. Threads of gRPC do not survive a fork, so open clients after forking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from llog.limits import (
    MIB,
    OXIA_CONNECT_TIMEOUT_MS,
    OXIA_KEEPALIVE_INTERVAL_MS,
    OXIA_KEEPALIVE_TIMEOUT_MS,
    OXIA_RETRY_DELAY_MS_MAX,
    OXIA_RETRY_DELAY_MS_MIN,
)
from llog.stores.metadata.oxia.client.errors import ClientClosed
from llog.stores.metadata.oxia.client.proto import pb

# The server fills frames to about 2 MiB, but the last value may exceed that; it accepts values of up to 60 MiB.
OXIA_RECEIVE_BYTES_MAX: Final = 64 * MIB

SERVICE = "/io.streamnative.oxia.proto.OxiaClient/"
"""All servers have this path; those from 0.17 on have a second one."""

_TLS_PREFIX = "tls://"

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", OXIA_RECEIVE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    # Two clients of one process share nothing, so closing one does not affect the other.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", OXIA_RETRY_DELAY_MS_MIN),
    ("grpc.min_reconnect_backoff_ms", OXIA_CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", OXIA_RETRY_DELAY_MS_MAX),
    ("grpc.keepalive_time_ms", OXIA_KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", OXIA_KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

_CONNECT_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class OxiaOptions:
    """How to reach a namespace. `addresses` are the first servers to contact; others are discovered."""

    addresses: tuple[str, ...]
    namespace: str = "default"
    identity: str = "llog"
    """Stored with each record that this client wrote last."""
    request_timeout_ms: int = 10_000
    tls: bool = False
    ca_certificates: bytes | None = None
    """PEM; None: those of gRPC."""
    token: str | None = field(default=None, repr=False)


class OxiaLink:
    """One server: its channel and the methods on it, without generated stubs."""

    def __init__(self, address: str, channel: grpc.aio.Channel, token: str | None) -> None:
        self.address = address
        self.channel = channel
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()
        stream, unary = self._stream, self._unary
        self.assignments = stream("GetShardAssignments", pb.ShardAssignmentsRequest, pb.ShardAssignments)
        self.read = stream("Read", pb.ReadRequest, pb.ReadResponse)
        self.range_scan = stream("RangeScan", pb.RangeScanRequest, pb.RangeScanResponse)
        self.notifications = stream("GetNotifications", pb.NotificationsRequest, pb.NotificationBatch)
        self.create_session = unary("CreateSession", pb.CreateSessionRequest, pb.CreateSessionResponse)
        self.keep_alive = unary("KeepAlive", pb.SessionHeartbeat, pb.KeepAliveResponse)
        self.close_session = unary("CloseSession", pb.CloseSessionRequest, pb.CloseSessionResponse)
        self.write_stream: Callable[..., Any] = channel.stream_stream(
            SERVICE + "WriteStream", pb.WriteRequest.SerializeToString, pb.WriteResponse.FromString
        )

    def _stream(self, name: str, request: Any, response: Any) -> Callable[..., Any]:
        return self.channel.unary_stream(SERVICE + name, request.SerializeToString, response.FromString)

    def _unary(self, name: str, request: Any, response: Any) -> Callable[..., Any]:
        return self.channel.unary_unary(SERVICE + name, request.SerializeToString, response.FromString)

    async def connected(self, seconds: float) -> bool:
        """Whether the channel gets a connection within `seconds`. Sends nothing."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds
        # Polled, because a cancelled state watch leaks a callback in gRPC.
        while self.channel.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
            if loop.time() >= give_up:
                return False
            await asyncio.sleep(_CONNECT_POLL_SECONDS)
        return True


class ChannelPool:
    def __init__(self, options: OxiaOptions) -> None:
        self._options = options
        self._links: dict[str, OxiaLink] = {}
        self._closed = False

    def link(self, address: str) -> OxiaLink:
        if self._closed:
            raise ClientClosed("the client is closed")
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = OxiaLink(address, self._open(address), self._options.token)
        return link

    def _open(self, address: str) -> grpc.aio.Channel:
        # A prefix of the address may ask for TLS.
        target = address.removeprefix(_TLS_PREFIX)
        if not (self._options.tls or target != address):
            return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._options.ca_certificates)
        return grpc.aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)

    async def close(self) -> None:
        self._closed = True
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.channel.close(None)
