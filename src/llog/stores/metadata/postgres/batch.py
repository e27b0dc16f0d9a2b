"""Arguments and results of `write`: groups to columns, numbers of the server to outcomes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llog.errors import InvalidArgument, MetadataStoreError, SessionLost, ValueTooLarge, VersionConflict
from llog.limits import MIB
from llog.stores.metadata.port import ABSENT, GroupOutcome, Put, Write
from llog.stores.metadata.postgres.session import PostgresSession
from llog.stores.metadata.postgres.wire import WireArray, bigint_array, bytea_array, integer_array, text_array

# Limit of one statement, which holds all groups of a call. The protocol allows 1 GiB.
POSTGRES_WRITE_BYTES_MAX: Final = 64 * MIB

# Results of the write function; see schema.sql.
CONFLICT: Final = -1
SESSION_GONE: Final = -2

# Not a value of the sequence: a session that this process gave up counts as ended on the server.
_NO_SESSION: Final = 0
_NO_VERSION: Final = 2**63 - 1

# Bytes of a write besides its key and value.
_OVERHEAD_BYTES: Final = 48


def split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent, name


def encode(groups: Sequence[Sequence[Write]], url: str) -> list[WireArray | None]:
    """The arguments of the write function of the store at `url`. Raises `InvalidArgument`, `ValueTooLarge`."""
    writes = [write for group in groups for write in group]
    group_numbers = [number for number, group in enumerate(groups) for _ in group]
    keys = [split(write.key.path) for write in writes]
    values = [write.value if isinstance(write, Put) else None for write in writes]
    sessions = [_session_number(write, url) for write in writes]
    size = sum(_OVERHEAD_BYTES + len(write.key.path) for write in writes) + sum(len(value or b"") for value in values)
    if size > POSTGRES_WRITE_BYTES_MAX:
        raise ValueTooLarge("groups", size, POSTGRES_WRITE_BYTES_MAX)
    return [
        integer_array(group_numbers),
        text_array([parent for parent, _ in keys]),
        text_array([name for _, name in keys]),
        bytea_array(values),
        bigint_array([_expected(write) for write in writes]),
        bigint_array(sessions) if any(session is not None for session in sessions) else None,
    ]


def _session_number(write: Write, url: str) -> int | None:
    if not isinstance(write, Put) or write.session is None:
        return None
    session = write.session
    if not isinstance(session, PostgresSession) or session.url != url:
        raise InvalidArgument("session", f"{session.id} was not opened on this store")
    return _NO_SESSION if session.lost else session.number


def _expected(write: Write) -> int | None:
    """Replace a version that does not fit the column by one that no record has: both are refused."""
    expected = write.expected
    return expected if expected is None or ABSENT <= expected < _NO_VERSION else _NO_VERSION


def decode(groups: Sequence[Sequence[Write]], numbers: Sequence[int]) -> list[GroupOutcome]:
    outcomes: list[GroupOutcome] = []
    start = 0
    for group in groups:
        answers = tuple(numbers[start : start + len(group)])
        start += len(group)
        outcomes.append(answers if min(answers) >= 0 else _refusal(group, answers))
    assert start == len(numbers), "the server answered another number of writes"
    return outcomes


def _refusal(group: Sequence[Write], answers: Sequence[int]) -> MetadataStoreError:
    for write, answer in zip(group, answers, strict=True):
        operation, path = ("put" if isinstance(write, Put) else "delete"), write.key.path
        if answer == SESSION_GONE:
            return SessionLost(operation, path, "its session is gone")
        if answer == CONFLICT:
            assert write.expected is not None
            return VersionConflict(operation, path, write.expected)
    raise AssertionError(f"a group was refused without a reason: {answers}")
