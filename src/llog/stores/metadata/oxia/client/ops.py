"""Write operations: checks, sizes and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.limits import METADATA_REQUEST_BYTES_MAX
from llog.stores.metadata.oxia.client.errors import (
    InvalidRequest,
    OxiaError,
    OxiaRequestTooLarge,
    SessionExpired,
    VersionMismatch,
)
from llog.stores.metadata.oxia.client.proto import pb

# Upper bound of tags, lengths and fixed fields of one operation.
_OP_OVERHEAD_BYTES: Final = 64
_INTERNAL_PREFIX: Final = "__oxia"


class OxiaPut(NamedTuple):
    key: str
    value: bytes
    expected: int | None = None
    """The version that the record must have; -1: it must not exist; None: unconditional."""
    partition_key: str | None = None
    session_id: int | None = None


class OxiaDelete(NamedTuple):
    """Deleting an absent record succeeds, unless a version was expected."""

    key: str
    expected: int | None = None
    partition_key: str | None = None


Op = OxiaPut | OxiaDelete
Outcome = int | OxiaError
"""The version of a put (0 for a delete), or the error."""


def checked_sizes(ops: Sequence[Op]) -> list[int]:
    """An upper bound of the bytes of each operation in a request. Raises for operations that must not be sent.

    A character counts as 4 bytes, so nothing is encoded. One flat loop, because there may be thousands.
    """
    sizes = []
    for op in ops:
        key = op[0]
        size = _OP_OVERHEAD_BYTES + 4 * len(key)
        route = op.partition_key
        if route is not None:
            size += 4 * len(route)
        if type(op) is OxiaPut:
            size += len(op.value)
        if (
            size > METADATA_REQUEST_BYTES_MAX
            or not key.isascii()
            or not (route is None or route.isascii())
            or key[:6] == _INTERNAL_PREFIX
            or not (key and (type(op) is OxiaDelete or op[1]))
        ):
            check_op(op, size)
        sizes.append(size)
    return sizes


def check_op(op: Op, size: int) -> None:
    """Refuse operations that harm the shard: its own keys, empty values, requests that are too large."""
    key = op.key
    if not key or key.startswith(_INTERNAL_PREFIX):
        raise InvalidRequest(f"key {key!r} is {'in the server’s own space' if key else 'empty'}")
    check_unicode(key, op.partition_key or "")
    if type(op) is OxiaPut and not op.value:
        raise InvalidRequest(f"the value of {key!r} is empty; the server would read it back as unset")
    if size > METADATA_REQUEST_BYTES_MAX:
        raise OxiaRequestTooLarge(f"{key[:80]!r}: more than {METADATA_REQUEST_BYTES_MAX} bytes in one request")


def check_unicode(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{text!r} is not valid Unicode") from error


def outcome_of(op: Op, status: int) -> Outcome:
    """The outcome of a delete, or of a failed put."""
    if status == pb.OK:
        return 0
    if status == pb.UNEXPECTED_VERSION_ID:
        return VersionMismatch(op.key, -1 if op.expected is None else op.expected)
    if status == pb.KEY_NOT_FOUND:
        return 0 if op.expected is None else VersionMismatch(op.key, op.expected)
    if status == pb.SESSION_DOES_NOT_EXIST:
        return SessionExpired(f"{op.key}: the session does not exist")
    return InvalidRequest(f"{op.key}: the server answered with status {status}")
