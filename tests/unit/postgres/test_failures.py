"""Every error psycopg can raise has a meaning, and an unanswered write is never called a failure."""

from __future__ import annotations

import inspect
import itertools

import psycopg
import pytest

from llog.errors import (
    MetadataDenied,
    MetadataFull,
    MetadataMisconfigured,
    MetadataStoreError,
    MetadataTimeout,
    MetadataUnavailable,
    MetadataUncertain,
    UncertainOutcome,
)
from llog.stores.metadata.postgres.failures import (
    MEANINGS,
    RETRIED_STATES,
    meaning_of,
    refused_connection,
    translate,
)

KINDS = [
    kind
    for _, kind in inspect.getmembers(psycopg.errors, inspect.isclass)
    if issubclass(kind, psycopg.Error) and not kind.__name__.startswith("_")
]
STATES = sorted({kind.sqlstate for kind in KINDS if kind.sqlstate is not None})


def test_every_error_of_psycopg_becomes_one_of_ours() -> None:
    for kind, writing, lost in itertools.product(KINDS, (False, True), (False, True)):
        ours = translate(kind("words"), "put", "a/b", writing=writing, connection_lost=lost)
        assert type(ours) is not MetadataStoreError, kind
        assert isinstance(ours, MetadataStoreError), kind
        assert "words" in ours.reason
        unanswered = writing and (lost or not meaning_of(kind.sqlstate).answered)
        assert isinstance(ours, UncertainOutcome) == unanswered, kind


def test_psycopg_knows_enough_states_for_the_walk_to_mean_something() -> None:
    assert len(STATES) > 200
    assert {"40P01", "53100", "57P01"} <= set(STATES)


def test_a_lost_connection_makes_every_write_uncertain() -> None:
    for state in STATES:
        error = psycopg.errors.lookup(state)("words")
        ours = translate(error, "put", "a", writing=True, connection_lost=True)
        assert isinstance(ours, MetadataUncertain), state


@pytest.mark.parametrize("state", ["08000", "08003", "08006", "57014", "57P01", "57P02", "57P05", "40003"])
def test_a_write_that_ended_without_a_verdict_is_uncertain(state: str) -> None:
    error = psycopg.errors.lookup(state)("words")
    assert isinstance(translate(error, "put", "a", writing=True, connection_lost=False), MetadataUncertain)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("28P01", MetadataDenied),
        ("28000", MetadataDenied),
        ("42501", MetadataDenied),
        ("3D000", MetadataMisconfigured),
        ("3F000", MetadataMisconfigured),
        ("42P01", MetadataMisconfigured),
        ("42883", MetadataMisconfigured),
        ("53100", MetadataFull),
        ("53200", MetadataUnavailable),
        ("53300", MetadataUnavailable),
        ("40P01", MetadataUnavailable),
        ("40001", MetadataUnavailable),
        ("55P03", MetadataUnavailable),
        ("25006", MetadataUnavailable),
    ],
)
def test_an_answered_write_did_not_happen_and_says_why(state: str, kind: type[MetadataStoreError]) -> None:
    error = psycopg.errors.lookup(state)("words")
    assert type(translate(error, "put", "a", writing=True, connection_lost=False)) is kind


def test_a_cancelled_read_is_a_timeout() -> None:
    error = psycopg.errors.QueryCanceled("words")
    assert isinstance(translate(error, "get", "a", writing=False, connection_lost=False), MetadataTimeout)


def test_an_error_without_a_state_is_a_lost_connection() -> None:
    error = psycopg.OperationalError("server closed the connection unexpectedly")
    assert isinstance(translate(error, "put", "a", writing=True, connection_lost=False), MetadataUncertain)
    assert type(translate(error, "get", "a", writing=False, connection_lost=True)) is MetadataUnavailable


def test_only_what_was_rolled_back_is_retried() -> None:
    for state in RETRIED_STATES:
        assert meaning_of(state).answered


def test_the_table_has_no_entry_that_says_what_its_class_says_already() -> None:
    redundant = {state for state, meaning in MEANINGS.items() if len(state) == 5 and MEANINGS.get(state[:2]) == meaning}
    assert redundant <= {"25006", "55P03"}, "kept because they are the ones that are met"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ('FATAL:  password authentication failed for user "llog"', MetadataDenied),
        ('FATAL:  role "nobody" does not exist', MetadataDenied),
        ('FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "u", database "d", no encryption', MetadataDenied),
        ('FATAL:  database "nope" does not exist', MetadataMisconfigured),
        ('FATAL:  permission denied for database "d"', MetadataDenied),
        ("FATAL:  the database system is starting up", MetadataUnavailable),
        ("FATAL:  sorry, too many clients already", MetadataUnavailable),
        ("Connection refused. Is the server running on that host?", MetadataUnavailable),
        ("session is read-only", MetadataUnavailable),
    ],
)
def test_a_refused_connection_is_read_by_its_words(words: str, kind: type[MetadataStoreError]) -> None:
    error = psycopg.OperationalError(f'connection failed: connection to server at "h", port 5432 failed: {words}')
    assert type(refused_connection(error, "url")) is kind
