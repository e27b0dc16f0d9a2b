"""Errors of the data source in Spark's Python processes: expected ones without a traceback."""

from __future__ import annotations

import pickle

import pytest

from llog.errors import InvalidArgument, TopicNotFound
from llog.spark.user_errors import HIDE_TRACEBACK, in_one_sentence


@in_one_sentence()
def fail(error: Exception) -> None:
    raise error


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(HIDE_TRACEBACK, "")
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    return monkeypatch


def hidden() -> bool:
    import os

    return bool(os.environ.get(HIDE_TRACEBACK))


def test_a_python_process_of_spark_reports_an_expected_error_without_its_traceback(environ: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
    assert not hidden(), "an unexpected error needs its traceback"
    with pytest.raises(TopicNotFound):
        fail(TopicNotFound("orders", "no such topic"))
    assert hidden()


def test_a_process_of_the_user_keeps_its_tracebacks(environ: pytest.MonkeyPatch) -> None:
    environ.delenv("SPARK_PYTHON_RUNTIME")
    with pytest.raises(TopicNotFound):
        fail(TopicNotFound("orders", "no such topic"))
    assert not hidden()


def test_a_stream_with_options_that_cannot_be_used_fails_at_its_first_call() -> None:
    """Spark 4.3 replaces an error of `streamReader` itself by one of its own."""
    pytest.importorskip("pyspark")
    from llog.spark.source.source import SCHEMA, LlogDataSource

    reader = LlogDataSource({"subscribe": "orders", "endingOffsets": "latest"}).streamReader(SCHEMA)
    reader = pickle.loads(pickle.dumps(reader))
    reader.stop()
    for call in (reader.initialOffset, reader.getDefaultReadLimit, reader.prepareForTriggerAvailableNow):
        with pytest.raises(InvalidArgument, match="endingOffsets: a stream has no end"):
            call()
