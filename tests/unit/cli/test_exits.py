"""Every error ends with the exit code its meaning asks for."""

from __future__ import annotations

import inspect

import pytest

from llog import errors
from llog.cli.exits import FAILED, MEANINGS, NOT_FOUND, REFUSED, UNAVAILABLE, UNCERTAIN, USAGE, exit_code_of
from llog.cli.stores import advice_on


def all_error_classes() -> list[type[errors.LlogError]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.LlogError)]


def blank(kind: type[errors.LlogError]) -> errors.LlogError:
    """An instance without calling its constructor: only the class decides here."""
    return kind.__new__(kind)


EXPECTED = {
    errors.SettingsError: USAGE,
    errors.SettingsErrors: USAGE,
    errors.InvalidArgument: USAGE,
    errors.UnknownStoreScheme: USAGE,
    errors.StoreNotInstalled: REFUSED,
    errors.StoreSchemeConflict: REFUSED,
    errors.ObjectStoreUnavailable: UNAVAILABLE,
    errors.ObjectStoreTimeout: UNAVAILABLE,
    errors.MetadataUnavailable: UNAVAILABLE,
    errors.MetadataUncertain: UNCERTAIN,
    errors.AppendUncertain: UNCERTAIN,
    errors.LogBusy: UNAVAILABLE,
    errors.SparkSessionFailed: UNAVAILABLE,
    errors.TopicNotFound: NOT_FOUND,
    errors.PartitionNotInitialized: NOT_FOUND,
    errors.ClusterMismatch: REFUSED,
    errors.ObjectStoreDenied: REFUSED,
    errors.MetadataMisconfigured: REFUSED,
    errors.ChecksumMismatch: FAILED,
    errors.VersionConflict: FAILED,
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_documented_codes_hold(kind: type[errors.LlogError]) -> None:
    assert exit_code_of(blank(kind)) == EXPECTED[kind]


@pytest.mark.parametrize("kind", all_error_classes())
def test_every_error_has_a_code_with_a_meaning_and_advice(kind: type[errors.LlogError]) -> None:
    assert MEANINGS[exit_code_of(blank(kind))]
    assert advice_on(blank(kind))


@pytest.mark.parametrize("kind", all_error_classes())
def test_what_may_be_tried_again_is_never_called_refused(kind: type[errors.LlogError]) -> None:
    if issubclass(kind, errors.StoreError | errors.LogError) and kind.retriable:
        assert exit_code_of(blank(kind)) == (UNCERTAIN if issubclass(kind, errors.UncertainOutcome) else UNAVAILABLE)
