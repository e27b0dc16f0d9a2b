"""What is sent to a worker, what it opens, and how an error gets back: without Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llog.errors import InvalidArgument, SparkJobFailed, SparkTaskFailed, ValueTooLarge
from llog.pipeline.runtime.tasks import decoded_outcome, encoded_item
from llog.settings import Settings
from llog.spark.runner import tasks as spark_runner
from llog.spark.runner import worker
from llog.spark.runner.tasks import chunked, failure_of
from llog.spark.runner.worker import JobHead, TaskBroke, marked, run_item, sent_settings, settings_in_worker, unmarked
from llog.spark.sessions.launch import reason_in
from llog.wiring import ObjectStores
from tests.spark.sample_tasks import OBEY, Order, Told

SECRETS = {"LLOG_S3_ACCESS_KEY_ID": "AKIAKEY", "LLOG_S3_SECRET_ACCESS_KEY": "hush"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({}, data_dir=tmp_path)


def head_of(settings: Settings) -> JobHead:
    return JobHead(OBEY.place, f"{Order.__module__}:{Order.__qualname__}", sent_settings(settings))


# -- what is sent ----------------------------------------------------------------------------------------------------


def test_no_secret_and_no_metadata_store_is_sent() -> None:
    settings = Settings.from_env(
        {**SECRETS, "LLOG_S3_ENDPOINT_URL": "http://127.0.0.1:9000"},
        objects_url="s3://bucket/prefix",
        metadata_url="postgresql://user:password@host/db",
        oxia_token="hush",
    )
    sent = sent_settings(settings)
    assert sent["s3_endpoint_url"] == "http://127.0.0.1:9000"
    assert not {"hush", "AKIAKEY", "password"} & {part for value in sent.values() for part in (value, str(value)[-8:])}
    assert "metadata_url" not in sent


def test_a_worker_has_what_was_sent_and_its_own_secrets_and_nothing_else() -> None:
    sent = sent_settings(Settings.from_env({}, objects_url="s3://bucket/prefix", root_prefix="other"))
    environ = {**SECRETS, "LLOG_METADATA_URL": "oxia://host:1", "LLOG_OBJECTS_URL": "s3://wrong", "LLOG_S3_BUCKET": "x"}
    there = settings_in_worker(sent, environ)
    assert (there.objects_url, there.root_prefix) == ("s3://bucket/prefix", "other")
    assert (there.s3_access_key_id, there.s3_secret_access_key) == ("AKIAKEY", "hush")
    assert there.metadata_url == "memory://"


def test_a_url_with_a_secret_in_it_is_refused() -> None:
    settings = Settings.from_env({}, objects_url="other://user:hush@host/x", metadata_url="memory://")
    with pytest.raises(InvalidArgument, match="environment") as raised:
        sent_settings(settings)
    assert "hush" not in str(raised.value)


# -- in a worker -----------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_worker", None)


def told(outcome: bytes) -> Told:
    result = decoded_outcome(OBEY, outcome)
    assert isinstance(result, Told), result
    return result


@pytest.mark.usefixtures("fresh_worker")
def test_one_loop_and_one_set_of_stores_serve_all_items_of_a_worker(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir(exist_ok=True)
    (tmp_path / "objects" / "source").write_bytes(b"x" * 10)
    orders = [Order("copy", n, settings.objects_url, f"{settings.objects_url}/source") for n in range(3)]
    facts = [told(run_item(head_of(settings), encoded_item(order))).facts for order in orders]
    assert len({fact["loop"] for fact in facts}) == 1
    assert worker._worker is not None
    assert len(worker._worker._opened) == 1


@pytest.mark.usefixtures("fresh_worker")
def test_the_sets_of_stores_are_bounded_and_the_oldest_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    async def close(self: ObjectStores) -> None:
        closed.append(self)

    monkeypatch.setattr(ObjectStores, "close", close)
    for number in range(6):
        settings = Settings.from_env({}, data_dir=tmp_path / str(number))
        run_item(head_of(settings), encoded_item(Order("echo")))
    assert worker._worker is not None
    assert len(worker._worker._opened) == 4
    assert len(closed) == 2


@pytest.mark.usefixtures("fresh_worker")
def test_a_forked_child_makes_its_own_loop(settings: Settings) -> None:
    run_item(head_of(settings), encoded_item(Order("echo")))
    first = worker._worker
    assert first is not None
    first.process = -1  # as a child sees what it inherited
    run_item(head_of(settings), encoded_item(Order("echo")))
    assert worker._worker is not first
    assert worker._worker is not None
    assert worker._worker.process == os.getpid()


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_worker")
def test_an_unforeseen_error_gets_through_whatever_text_is_around_it(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(TaskBroke) as raised:
        run_item(head_of(settings), encoded_item(Order("break", 1, str(tmp_path), "zero <ä>")))
    text = f"Job aborted due to stage failure: Traceback …\n{raised.value}\n\tat org.apache.spark.Foo(Foo.scala:1)"
    error = failure_of(OBEY.place, RuntimeError(text))
    assert isinstance(error, SparkTaskFailed)
    assert (error.error_type, error.error) == ("ZeroDivisionError", "by zero <ä>")
    assert "in _break" in error.trace
    assert "org.apache" not in str(error)


def test_a_huge_error_is_told_in_part() -> None:
    told = unmarked(marked(ValueError("x" * 1_000_000)))
    assert told is not None
    assert (len(told.error), len(told.trace)) == (2_000, 8_000)


def test_what_is_not_a_tasks_error_is_told_in_one_line() -> None:
    stack = "\n\tat org.apache.spark.Foo(Foo.scala:1)\n\tat java.base/java.lang.Thread.run(Thread.java:840)"
    lost = f"Job 3 cancelled because SparkContext was shut down{stack}"
    error = failure_of("place", RuntimeError(lost))
    assert isinstance(error, SparkJobFailed)
    assert error.reason == "Job 3 cancelled because SparkContext was shut down"
    missing = "[X] Failed:\nTraceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'llog'\n"
    assert reason_in(
        missing + f" SQLSTATE: 38000\n\nJVM stacktrace:\norg.apache.spark.sql.AnalysisException{stack}"
    ) == ("ModuleNotFoundError: No module named 'llog'")
    assert failure_of("place", RuntimeError("")).args[0].endswith("RuntimeError")


def test_an_error_of_the_jvm_is_the_reason_and_not_the_call_that_met_it() -> None:
    called = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    stack = "\n\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:600)"
    bind = "java.net.BindException: Cannot assign requested address: Service 'sparkDriver' failed after 16 retries"
    assert reason_in(f"{called}: {bind}{stack}") == bind
    aborted = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed"
    assert reason_in(f"{called}: {aborted}\nExecutorLostFailure (executor 1 exited){stack}") == (
        "ExecutorLostFailure (executor 1 exited)"
    )


# -- plans -----------------------------------------------------------------------------------------------------------


def test_items_are_cut_into_plans_by_count_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_runner, "SPARK_JOB_ITEMS_MAX", 3)
    monkeypatch.setattr(spark_runner, "SPARK_JOB_BYTES_MAX", 10)
    items = [b"a", b"b", b"c", b"d", b"e" * 9, b"f", b"g" * 10]
    cut = list(chunked(items))
    assert cut == [(0, [b"a", b"b", b"c"]), (3, [b"d", b"e" * 9]), (5, [b"f"]), (6, [b"g" * 10])]
    assert list(chunked([])) == []
    with pytest.raises(ValueTooLarge, match="work item 1"):
        list(chunked([b"a", b"b" * 11]))
