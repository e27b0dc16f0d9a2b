"""Who sent an HTTP request, and what it may do, where authorization is on.

A bearer token is a user's, or one of the two of the settings (`User:read-token`, `User:write-token`, whose rights are
ACLs then, like everybody's); without one the client's certificate counts, and without that nobody is known. The rights
that a route requires are its row in `llog.security.requirements`.

A request that names a resource it has no right to is refused before anything is looked up, so its answer is the same
whether the resource exists or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from llog.audit_log import Principal, act_as
from llog.errors import RequestForbidden, RequestUnauthenticated
from llog.http.routes.runtime import Runtime
from llog.listener.tokens import bearer_token
from llog.security.acl import ANONYMOUS, CLUSTER_NAME, USER_PREFIX, Operation, ResourceType
from llog.security.certificates import principal_of
from llog.security.requirements import HTTP, Need, asks_for, operation_of
from llog.security.rules import Access
from llog.telemetry.request_log import RequestRecord

CLUSTER_PAGES: Final = frozenset({"/metrics", "/metrics/prometheus"})
STATE_PAGES: Final = frozenset({"/health", "/ready"})
"""Open to everybody, with less on them for those who may not describe the cluster."""


def identify(runtime: Runtime, record: RequestRecord) -> None:
    """Find out whose request it is. `RequestUnauthenticated` for a token that nobody has."""
    record.principal = _principal(runtime, record)
    exchange = record.exchange
    host = exchange.client[0] if exchange.client else ""
    act_as(Principal(record.principal, host, record.request_id))


def _principal(runtime: Runtime, record: RequestRecord) -> str:
    exchange = record.exchange
    header = exchange.header(b"authorization")
    token = bearer_token(header)
    if token is None and header is None:
        return principal_of(exchange.certificate, runtime.principal_rules)
    sent = runtime.tokens.sent(header)
    user = None if token is None else runtime.services.security.principal_of_token(token)
    if user is not None:
        return user
    if sent.kinds:
        return USER_PREFIX + sent.holder
    if record.exchange.path.decode("ascii") in STATE_PAGES:
        return ANONYMOUS
    raise RequestUnauthenticated("the token is unknown, or no longer valid")


def _rights(runtime: Runtime, record: RequestRecord) -> tuple[Access, tuple[Need, ...]] | None:
    """None: authorization is off, so everything is allowed."""
    authorizer = runtime.services.security.authorizer
    if authorizer is None:
        return None
    exchange = record.exchange
    access = authorizer.of(record.principal, exchange.client[0] if exchange.client else "")
    return access, HTTP[row_of(record)]


def row_of(record: RequestRecord) -> str:
    method = "GET" if record.exchange.method == "HEAD" else record.exchange.method
    return f"{method} {record.route}"


def check_rights(
    runtime: Runtime,
    record: RequestRecord,
    kind: ResourceType,
    names: Iterable[str],
    operation: Operation | None = None,
) -> None:
    """`RequestForbidden` if the principal may not do this to one of them, `RequestUnauthenticated` if it is nobody."""
    rights = _rights(runtime, record)
    if rights is None:
        return
    access, needs = rights
    wanted = operation_of(needs, kind) if operation is None else operation
    if not asks_for(needs, wanted, kind):
        raise LookupError(f"the row of {row_of(record)} has no {wanted.name} on a {kind.name}")
    refused = sorted({name for name in names if not access.allows(wanted, kind, name)})
    if not refused:
        return
    authorizer = runtime.services.security.authorizer
    assert authorizer is not None
    authorizer.refused(access, wanted, kind, refused, row_of(record))
    what = f"{wanted.name} on {kind.name.lower()} {', '.join(map(repr, refused[:5]))}"
    if record.principal == ANONYMOUS:
        raise RequestUnauthenticated(f"{what} is not allowed without a token: send Authorization: Bearer <token>")
    raise RequestForbidden(f"{what} is not allowed to {record.principal}")


def sees(runtime: Runtime, record: RequestRecord, kind: ResourceType, name: str, operation: Operation) -> bool:
    """Whether the principal may do this; leaves no trace of a refusal."""
    rights = _rights(runtime, record)
    return rights is None or rights[0].allows(operation, kind, name)


def check_topic_right(runtime: Runtime, record: RequestRecord, topic: str) -> None:
    """For routes with a topic in their path."""
    check_rights(runtime, record, ResourceType.TOPIC, (topic,))


def check_cluster_right(runtime: Runtime, record: RequestRecord) -> None:
    check_rights(runtime, record, ResourceType.CLUSTER, (CLUSTER_NAME,))


def describes_cluster(runtime: Runtime, record: RequestRecord) -> bool:
    return sees(runtime, record, ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)


def check_creation(runtime: Runtime, record: RequestRecord, topics: Iterable[str]) -> None:
    """CREATE on the cluster suffices for any topic."""
    if not sees(runtime, record, ResourceType.CLUSTER, CLUSTER_NAME, Operation.CREATE):
        check_rights(runtime, record, ResourceType.TOPIC, topics, Operation.CREATE)
