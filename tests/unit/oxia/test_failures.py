"""Kinds of failed calls of old and new servers, and the errors that callers get."""

from __future__ import annotations

import grpc
import pytest

from llog.errors import (
    LlogError,
    MetadataStoreError,
    MetadataUnavailable,
    StoreClosed,
    UncertainOutcome,
    VersionConflict,
)
from llog.stores.metadata.oxia import client as oxia
from llog.stores.metadata.oxia.client.failures import FailureKind, RpcFailure, failure_of
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.writes import nothing_happened
from llog.stores.metadata.oxia.mapping import to_llog, to_outcome
from tests.unit.oxia.fake_server import error_details

UNKNOWN, UNAVAILABLE = grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE


def rpc_error(code: grpc.StatusCode, text: str, details: bytes = b"") -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata(*([("grpc-status-details-bin", details)] if details else []))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, text, None)


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (UNKNOWN, "node is not leader for shard 3", FailureKind.NOT_LEADER),
        (UNKNOWN, "Received message in the wrong state. In FENCED, should be LEADER.", FailureKind.NOT_READY),
        (UNKNOWN, "oxia: server not initialized yet", FailureKind.NOT_READY),
        (UNKNOWN, "oxia: resource is already closed", FailureKind.CLOSING),
        (UNKNOWN, "oxia: failed to append to wal: rpc error: desc = oxia: invalid status", FailureKind.CLOSING),
        (UNKNOWN, "oxia: session not found", FailureKind.SESSION_NOT_FOUND),
        (UNKNOWN, "oxia: namespace not found", FailureKind.NAMESPACE_NOT_FOUND),
        (UNKNOWN, "oxia: notifications not enabled on namespace", FailureKind.NOTIFICATIONS_DISABLED),
        (UNKNOWN, "timeoutMs=1: rpc error: oxia: invalid session timeout", FailureKind.INVALID),
        (UNKNOWN, "context canceled", FailureKind.OTHER),
        (UNAVAILABLE, "failed to connect to all addresses; last error: refused", FailureKind.NOT_CONNECTED),
        (UNAVAILABLE, "Socket closed", FailureKind.CONNECTION_LOST),
        (grpc.StatusCode.CANCELLED, "", FailureKind.CONNECTION_LOST),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", FailureKind.TIMED_OUT),
        (grpc.StatusCode.UNAUTHENTICATED, "empty token", FailureKind.DENIED),
        (grpc.StatusCode.PERMISSION_DENIED, "no", FailureKind.DENIED),
        (grpc.StatusCode.INVALID_ARGUMENT, "shard id is required", FailureKind.INVALID),
        (grpc.StatusCode.INTERNAL, "boom", FailureKind.OTHER),
    ],
)
def test_an_old_servers_text_or_code_names_the_kind(code: grpc.StatusCode, text: str, kind: FailureKind) -> None:
    assert failure_of(rpc_error(code, text)).kind is kind


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("NODE_IS_NOT_LEADER", FailureKind.NOT_LEADER),
        ("NODE_IS_NOT_MEMBER", FailureKind.NOT_LEADER),
        ("SHARD_NOT_FOUND", FailureKind.NOT_LEADER),
        ("NOT_INITIALIZED", FailureKind.NOT_READY),
        ("RESOURCE_UNAVAILABLE", FailureKind.CLOSING),
        ("SESSION_NOT_FOUND", FailureKind.SESSION_NOT_FOUND),
        ("NAMESPACE_NOT_FOUND", FailureKind.NAMESPACE_NOT_FOUND),
        ("SOMETHING_NEW", FailureKind.OTHER),
    ],
)
def test_a_new_servers_reason_names_the_kind(reason: str, kind: FailureKind) -> None:
    error = rpc_error(grpc.StatusCode.ABORTED, "oxia: …", error_details(reason))
    assert failure_of(error).kind is kind


def test_a_new_server_hints_at_the_leader() -> None:
    error = rpc_error(grpc.StatusCode.ABORTED, "no", error_details("NODE_IS_NOT_LEADER", "other:6648"))
    assert failure_of(error) == RpcFailure(FailureKind.NOT_LEADER, "no", "other:6648")


def test_a_request_that_got_into_the_log_was_not_refused_whatever_the_reason_says() -> None:
    details = error_details("NODE_IS_NOT_LEADER", "other:6648")
    found = failure_of(rpc_error(grpc.StatusCode.ABORTED, "oxia: failed to append to wal: not leader", details))
    assert found.kind is FailureKind.CLOSING
    assert found.leader_hint == "other:6648"


@pytest.mark.parametrize("details", [b"\xff\xff\xff", pb.RpcStatus(code=1).SerializeToString() + b"\x1a\x02\x12"])
def test_a_broken_trailer_is_not_believed(details: bytes) -> None:
    assert failure_of(rpc_error(UNKNOWN, "oxia: session not found", details)).kind is FailureKind.SESSION_NOT_FOUND


@pytest.mark.parametrize("kind", list(FailureKind))
@pytest.mark.parametrize("answered", [False, True])
def test_only_a_refusal_of_a_lone_request_or_no_connection_means_nothing_happened(
    kind: FailureKind, answered: bool
) -> None:
    refusal = kind in (FailureKind.NOT_LEADER, FailureKind.NOT_READY)
    never_sent = kind is FailureKind.NOT_CONNECTED and not answered
    assert nothing_happened(RpcFailure(kind, ""), 1, answered) == (refusal or never_sent)
    assert nothing_happened(RpcFailure(kind, ""), 2, answered) == never_sent


def all_errors(root: type[oxia.OxiaError]) -> list[type[oxia.OxiaError]]:
    return [root, *(one for child in root.__subclasses__() for one in all_errors(child))]


@pytest.mark.parametrize("kind", all_errors(oxia.OxiaError)[1:])
def test_every_error_of_the_client_has_one_of_ours(kind: type[oxia.OxiaError]) -> None:
    error = oxia.VersionMismatch("k", 3) if kind is oxia.VersionMismatch else kind("why")
    found = to_llog(error, "put", "k")
    assert isinstance(found, LlogError)
    assert isinstance(found, UncertainOutcome) == (kind is oxia.Uncertain)
    assert isinstance(to_outcome(error, "put", "k"), MetadataStoreError)


def test_a_conflict_keeps_the_version_that_was_expected() -> None:
    found = to_llog(oxia.VersionMismatch("k", 3), "put", "k")
    assert isinstance(found, VersionConflict)
    assert found.expected == 3


def test_a_write_that_close_overtook_did_not_happen() -> None:
    assert isinstance(to_llog(oxia.ClientClosed("x"), "put", "k"), StoreClosed)
    assert isinstance(to_outcome(oxia.ClientClosed("x"), "put", "k"), MetadataUnavailable)
