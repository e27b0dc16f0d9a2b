"""The table from PostgreSQL errors to ours, and the rule for uncertain writes.

The answer of the server to our one-statement transaction is its outcome. An ERROR is an answer: the transaction was
rolled back. A connection that ended (FATAL, or no SQLSTATE because libpq noticed it) is no answer: a write may have
happened, for any stated reason. A cancelled statement (57014) counts as no answer too, because the signal of an
operator may arrive after the commit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import psycopg

from llog.errors import (
    MetadataDenied,
    MetadataFull,
    MetadataMisconfigured,
    MetadataStoreError,
    MetadataTimeout,
    MetadataUnavailable,
    MetadataUncertain,
)


class Meaning(NamedTuple):
    error: type[MetadataStoreError]
    answered: bool = True
    """False: a write with this error may have happened."""


# By SQLSTATE, exact before class. https://www.postgresql.org/docs/current/errcodes-appendix.html
MEANINGS: Final[dict[str, Meaning]] = {
    "08": Meaning(MetadataUnavailable, answered=False),  # the connection broke
    "0A": Meaning(MetadataMisconfigured),  # not supported by this server
    "22": Meaning(MetadataMisconfigured),  # our arguments are checked before, so the server reads them differently
    "23": Meaning(MetadataMisconfigured),  # constraints we did not make
    "25": Meaning(MetadataUnavailable),
    "25006": Meaning(MetadataUnavailable),  # read-only: no longer the primary
    "28": Meaning(MetadataDenied),
    "3D": Meaning(MetadataMisconfigured),  # no such database
    "3F": Meaning(MetadataMisconfigured),  # no such schema
    "40": Meaning(MetadataUnavailable),  # deadlock, serialization: rolled back
    "40003": Meaning(MetadataUnavailable, answered=False),  # statement completion unknown
    "42": Meaning(MetadataMisconfigured),  # our table or function is missing or not ours
    "42501": Meaning(MetadataDenied),
    "53": Meaning(MetadataUnavailable),  # out of memory, too many connections
    "53100": Meaning(MetadataFull),
    "54": Meaning(MetadataFull),  # a limit of the server, such as a full notification queue
    "55": Meaning(MetadataUnavailable),
    "55P03": Meaning(MetadataUnavailable),  # lock timeout
    "57": Meaning(MetadataUnavailable, answered=False),  # shutdown, crash, starting up, idle timeout
    "57014": Meaning(MetadataTimeout, answered=False),
    "57P03": Meaning(MetadataUnavailable),  # connection refused: starting up or shutting down
    "57P04": Meaning(MetadataMisconfigured, answered=False),  # the database was dropped
    "58": Meaning(MetadataUnavailable),  # input/output of the server
    "XX": Meaning(MetadataMisconfigured),  # internal error, corrupted data: needs an operator
}
_UNKNOWN_STATE: Final = Meaning(MetadataMisconfigured)
_NO_STATE: Final = Meaning(MetadataUnavailable, answered=False)

READ_ONLY_STATE: Final = "25006"

RETRIED_STATES: Final = frozenset({"40P01", "40001"})
"""Rolled back in favour of another transaction: a retry is safe, also for a write."""


def meaning_of(sqlstate: str | None) -> Meaning:
    if sqlstate is None:
        return _NO_STATE
    return MEANINGS.get(sqlstate) or MEANINGS.get(sqlstate[:2]) or _UNKNOWN_STATE


def translate(
    error: psycopg.Error, operation: str, subject: str, *, writing: bool, connection_lost: bool
) -> MetadataStoreError:
    """`connection_lost`: whether the connection was unusable afterwards."""
    meaning = meaning_of(error.sqlstate)
    reason = describe(error)
    if writing and (connection_lost or not meaning.answered):
        return MetadataUncertain(operation, subject, reason)
    if connection_lost and meaning.error is MetadataMisconfigured and error.sqlstate is None:
        return MetadataUnavailable(operation, subject, reason)
    return meaning.error(operation, subject, reason)


def refused_connection(error: psycopg.Error, subject: str) -> MetadataStoreError:
    """Our error for a connection that could not be made."""
    return meaning_of(state_of_refusal(error)).error("connect", subject, describe(error))


def describe(error: psycopg.Error) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text} ({error.sqlstate})" if error.sqlstate else text


# Messages of servers that refuse a connection, in the C locale; in other languages the error is "unavailable", which
# is also true but less helpful.
_REFUSAL_TEXTS: Final = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("authentication failed", "28000"),
    ('role "', "28000"),
    ("permission denied for database", "42501"),
    ('database "', "3D000"),
    ("session is read-only", "25006"),
    ("server is in hot standby mode", "25006"),
    ("unsupported frontend protocol", "0A000"),
    ("server does not support SSL", "0A000"),
    ("certificate verify failed", "28000"),
)


def state_of_refusal(error: psycopg.Error) -> str | None:
    """libpq has no SQLSTATE for a refused connection, only the message of the server."""
    reason = str(error)
    return error.sqlstate or next((state for text, state in _REFUSAL_TEXTS if text in reason), None)
