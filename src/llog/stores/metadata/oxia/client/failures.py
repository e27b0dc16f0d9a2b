"""The kind of a failed call, independent of the version of the server.

Servers up to 0.14 use their own gRPC codes (100 to 111), which Python reports as UNKNOWN with only the text.
Servers from 0.17 on use standard codes and put an `ErrorInfo` into a trailer, with the leader's address as a hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.message import DecodeError

from llog.stores.metadata.oxia.client.proto import pb

_DETAILS_TRAILER = "grpc-status-details-bin"
_ERROR_DOMAIN = "oxia.io"


class FailureKind(Enum):
    NOT_LEADER = "not leader"
    """This server does not lead the shard."""
    NOT_READY = "not ready"
    """It is starting or between two terms: this request was not logged."""
    CLOSING = "closing"
    """Its term or process ended: logged requests may still be applied by its successor."""
    NOT_CONNECTED = "not connected"
    """No connection could be made: nothing was sent."""
    CONNECTION_LOST = "connection lost"
    TIMED_OUT = "timed out"
    SESSION_NOT_FOUND = "session not found"
    NAMESPACE_NOT_FOUND = "namespace not found"
    NOTIFICATIONS_DISABLED = "notifications disabled"
    DENIED = "denied"
    INVALID = "invalid"
    OTHER = "other"


FINAL = frozenset(
    {
        FailureKind.NAMESPACE_NOT_FOUND,
        FailureKind.NOTIFICATIONS_DISABLED,
        FailureKind.DENIED,
        FailureKind.INVALID,
    }
)
"""A retry, also at another server, gives the same answer."""


class RpcFailure(NamedTuple):
    kind: FailureKind
    text: str
    leader_hint: str = ""
    """Leader of the shard according to the server."""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}" if self.text else self.kind.value


_BY_REASON = {
    "NODE_IS_NOT_LEADER": FailureKind.NOT_LEADER,
    "NODE_IS_NOT_MEMBER": FailureKind.NOT_LEADER,
    "SHARD_NOT_FOUND": FailureKind.NOT_LEADER,
    "INVALID_STATUS": FailureKind.NOT_READY,
    "NOT_INITIALIZED": FailureKind.NOT_READY,
    "INVALID_TERM": FailureKind.CLOSING,
    "RESOURCE_UNAVAILABLE": FailureKind.CLOSING,
    "ABORTED": FailureKind.CLOSING,
    "SESSION_NOT_FOUND": FailureKind.SESSION_NOT_FOUND,
    "NAMESPACE_NOT_FOUND": FailureKind.NAMESPACE_NOT_FOUND,
    "NOTIFICATIONS_NOT_ENABLED": FailureKind.NOTIFICATIONS_DISABLED,
    "INVALID_SESSION_TIMEOUT": FailureKind.INVALID,
}

# Wraps the reason of a request that failed AFTER it was logged.
_LOGGED = "failed to append to wal"

_BY_TEXT = (
    ("node is not leader for shard", FailureKind.NOT_LEADER),
    ("received message in the wrong state", FailureKind.NOT_READY),
    ("server not initialized yet", FailureKind.NOT_READY),
    ("resource is already closed", FailureKind.CLOSING),
    ("invalid status", FailureKind.NOT_READY),
    ("invalid term", FailureKind.CLOSING),
    ("operation was cancelled", FailureKind.CLOSING),
    ("session not found", FailureKind.SESSION_NOT_FOUND),
    ("namespace not found", FailureKind.NAMESPACE_NOT_FOUND),
    ("notifications not enabled", FailureKind.NOTIFICATIONS_DISABLED),
    ("invalid session timeout", FailureKind.INVALID),
)

_BY_CODE = {
    grpc.StatusCode.UNAVAILABLE: FailureKind.CONNECTION_LOST,
    grpc.StatusCode.CANCELLED: FailureKind.CONNECTION_LOST,
    grpc.StatusCode.DEADLINE_EXCEEDED: FailureKind.TIMED_OUT,
    grpc.StatusCode.UNAUTHENTICATED: FailureKind.DENIED,
    grpc.StatusCode.PERMISSION_DENIED: FailureKind.DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: FailureKind.INVALID,
}


def failure_of(error: grpc.aio.AioRpcError) -> RpcFailure:
    """The table from gRPC errors to kinds."""
    text = error.details() or ""
    lowered = text.lower()
    code = error.code()
    info = _error_info(error)
    if _LOGGED in lowered:
        return RpcFailure(FailureKind.CLOSING, text, info.metadata.get("leader", "") if info else "")
    if info is not None and (kind := _BY_REASON.get(info.reason)) is not None:
        return RpcFailure(kind, text, info.metadata.get("leader", ""))
    for part, kind in _BY_TEXT:
        if part in lowered:
            return RpcFailure(kind, text)
    if code is grpc.StatusCode.UNAVAILABLE and "failed to connect to all addresses" in lowered:
        # gRPC gave up before the call had a connection.
        return RpcFailure(FailureKind.NOT_CONNECTED, text)
    return RpcFailure(_BY_CODE.get(code, FailureKind.OTHER), text or code.name)


def _error_info(error: grpc.aio.AioRpcError) -> pb.ErrorInfo | None:
    trailers: Iterable[tuple[str, bytes | str]] = cast(Any, error.trailing_metadata()) or ()
    for name, value in trailers:
        if name != _DETAILS_TRAILER:
            continue
        try:
            status = pb.RpcStatus.FromString(value if isinstance(value, bytes) else value.encode("latin-1"))
            for detail in status.details:
                if detail.type_url.endswith("google.rpc.ErrorInfo"):
                    info = pb.ErrorInfo.FromString(detail.value)
                    if info.domain == _ERROR_DOMAIN:
                        return info
        except DecodeError:
            return None
    return None
