"""Each comparison of a run's counters finds the difference that it is for, and nothing in a run that went well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llog.loadtest.artifacts import ClientSummary, Loss, MetricsSample, PageSample, Summary
from llog.loadtest.collect.summarise import summarise
from llog.loadtest.scenario.model import Collect, Scenario
from tests.unit.loadtest.artefacts import KILLED_AFTER_S, RunShape, write_run

Change = Callable[[Any], object]


def on_page(name: str, change: Change) -> Callable[[list[MetricsSample]], list[MetricsSample]]:
    """Change the pages of one process."""

    def apply(samples: list[MetricsSample]) -> list[MetricsSample]:
        for sample in samples:
            for page in sample.pages:
                if page.name == name:
                    change(page.page)
        return samples

    return apply


def without_page(
    name: str, steps: slice, error: str | None = None
) -> Callable[[list[MetricsSample]], list[MetricsSample]]:
    """The collector misses a process: no page at all, or one with an error."""

    def apply(samples: list[MetricsSample]) -> list[MetricsSample]:
        for number in range(len(samples))[steps]:
            kept = tuple(page for page in samples[number].pages if page.name != name)
            failed = () if error is None else (PageSample(name, False, error),)
            samples[number] = replace(samples[number], pages=kept + failed)
        return samples

    return apply


def client(**fields: Any) -> Callable[[ClientSummary], ClientSummary]:
    return lambda summary: replace(summary, **fields)


def only_warning(summary: Summary) -> str:
    [warning] = summary.warnings
    return warning


def test_a_run_that_went_well_has_no_warning(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path))
    assert summary.warnings == ()
    assert all(row.ok for row in summary.reconciled)
    assert {row.what for row in summary.reconciled} >= {
        "records accepted", "payload bytes accepted", "records returned", "payload bytes returned", "puts of flushes",
        "metadata writes of commits", "bill of broker-0", "bill of compactor-0", "scrapes of broker-1", "final sample",
        "artifact client-summary.json", "generator keeps up", "missing records",
    }  # fmt: skip
    assert (summary.complete, summary.exit_code) == (True, 0)


def test_a_run_with_a_killed_broker_has_no_warning_when_the_lost_counts_explain_it(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, RunShape(faults=True)))
    assert summary.warnings == ()
    assert summary.brokers["restarts"] == 1
    assert summary.brokers["records"] == RunShape().records


# -- records and bytes -------------------------------------------------------------------------------------------------


def test_a_broker_that_drops_one_acknowledged_record_is_found_without_consumers(tmp_path: Path) -> None:
    def drop(page: dict[str, Any]) -> None:
        page["log"]["append_records"] -= 1

    summary = summarise(write_run(tmp_path, change_samples=on_page("broker-0", drop)))
    records = RunShape().records
    assert f"{records} acknowledged" in only_warning(summary)
    assert f"llog_log_append_records_total is {records - 1}" in only_warning(summary)
    assert summary.exit_code == 1


def test_a_record_accepted_twice_is_a_warning_and_not_a_loss(tmp_path: Path) -> None:
    def twice(page: dict[str, Any]) -> None:
        page["log"]["append_records"] += 1

    summary = summarise(write_run(tmp_path, change_samples=on_page("broker-0", twice)))
    assert "llog_log_append_records_total" in only_warning(summary)
    assert summary.exit_code == 0


def test_uncertain_records_may_have_been_accepted(tmp_path: Path) -> None:
    acknowledged = RunShape().records - 5
    run = write_run(
        tmp_path,
        change_client=client(
            records_acknowledged=acknowledged,
            payload_bytes_acknowledged=acknowledged * 1_024,
            uncertain_records=5,
        ),
    )
    rows = {row.what: row.ok for row in summarise(run).reconciled}
    assert rows["records accepted"]
    assert rows["payload bytes accepted"]
    assert not rows["records intended"], "five were not acknowledged"


def test_payload_bytes_are_compared_exactly(tmp_path: Path) -> None:
    run = write_run(tmp_path, change_client=client(payload_bytes_acknowledged=RunShape().records * 1_024 + 1))
    assert "llog_log_append_payload_bytes_total" in only_warning(summarise(run))


def test_payload_bytes_of_compressed_records_are_not_compared(tmp_path: Path) -> None:
    def compressed(scenario: Scenario) -> Scenario:
        load = replace(scenario.load, protocol="kafka")
        return replace(scenario, load=load, records=replace(scenario.records, compression="zstd"))

    run = write_run(
        tmp_path,
        change_scenario=compressed,
        change_client=client(payload_bytes_acknowledged=1, payload_bytes_received=2),
    )
    assert summarise(run).warnings == ()


def test_counts_lost_with_a_killed_broker_excuse_no_more_than_it_could_have_taken(tmp_path: Path) -> None:
    shape = RunShape(faults=True)
    taken = int(shape.records_per_interval / shape.interval_s * KILLED_AFTER_S * 1.5)

    def summary_with(extra: int) -> Summary:
        records = shape.records + extra
        change = client(
            records_intended=records, records_acknowledged=records, payload_bytes_acknowledged=records * 1_024
        )
        return summarise(write_run(tmp_path, shape, change_client=change))

    assert not any("llog_log_append" in warning for warning in summary_with(taken).warnings)
    [records, payload] = [text for text in summary_with(taken + 1).warnings if "llog_log_append" in text]
    assert f"broker-0 started again and lost at most {taken}" in records
    assert "payload_bytes" in payload


def test_records_received_that_no_broker_returned_are_a_warning(tmp_path: Path) -> None:
    def fewer(page: dict[str, Any]) -> None:
        page["consume"]["records"]["cache"] -= 1

    assert "llog_consume_records_total" in only_warning(
        summarise(write_run(tmp_path, change_samples=on_page("broker-1", fewer)))
    )


def test_records_returned_far_more_often_than_received_are_a_warning(tmp_path: Path) -> None:
    shape = RunShape(record_bytes=100_000)

    def more(page: dict[str, Any]) -> None:
        page["consume"]["records"]["store"] += shape.records // 2

    run = write_run(tmp_path, shape, change_samples=on_page("broker-1", more))
    assert "llog_consume_records_total" in only_warning(summarise(run))


def test_fetched_batches_may_count_their_framing(tmp_path: Path) -> None:
    """Payload bytes of a Kafka Fetch from the stores are those behind the batch headers."""
    shape = RunShape(records_per_interval=100_000, record_bytes=100)

    def framed(page: dict[str, Any]) -> None:
        records = page["consume"]["records"]["cache"]
        page["consume"]["payload_bytes"]["cache"] += 24 * records

    def kafka(scenario: Scenario) -> Scenario:
        consumers = replace(scenario.consumers, max_bytes=1_024)
        return replace(scenario, load=replace(scenario.load, protocol="kafka"), consumers=consumers)

    def http(scenario: Scenario) -> Scenario:
        return replace(scenario, consumers=replace(scenario.consumers, max_bytes=1_024))

    change = on_page("broker-0", framed)
    assert summarise(write_run(tmp_path, shape, change_samples=change, change_scenario=kafka)).warnings == ()
    run = write_run(tmp_path, shape, change_samples=change, change_scenario=http)
    assert "llog_consume_payload_bytes_total" in only_warning(summarise(run))


@pytest.mark.parametrize("kind", ["missing", "duplicates", "reordered"])
def test_wrong_records_are_a_warning_and_exit_code_1(tmp_path: Path, kind: str) -> None:
    loss = Loss(**{kind: 1})
    summary = summarise(write_run(tmp_path, change_client=client(loss=loss, losses={"load:3": loss})))
    assert only_warning(summary).startswith("1 records")
    assert "load:3" in only_warning(summary)
    assert summary.exit_code == 1


def test_partitions_that_no_consumer_read_to_their_end_are_a_warning_and_exit_code_1(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, change_client=client(partitions_unfinished=2)))
    assert "the end of 2 partitions" in only_warning(summary)
    assert summary.exit_code == 1


def test_records_that_no_producer_got_an_answer_for_are_no_loss(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, change_client=client(loss=Loss(unacknowledged=3))))
    assert (summary.warnings, summary.exit_code) == ((), 0)


def test_client_lines_that_do_not_add_up_to_the_summary_are_a_warning(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    lines = (run.path / "client-30s.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "client-30s.jsonl").write_bytes(b"".join(lines[2:]))
    warnings = summarise(run).warnings
    assert len(warnings) == 2
    assert all("client-30s.jsonl has 120000 records" in warning for warning in warnings)


def test_a_generator_that_cannot_keep_up_is_a_warning(tmp_path: Path) -> None:
    run = write_run(tmp_path, change_client=client(limited_by_generator="producer-0 took 0.99 of a core"))
    assert "producer-0 took 0.99 of a core" in only_warning(summarise(run))


# -- stores and bill ---------------------------------------------------------------------------------------------------


def test_fewer_puts_than_flushes_are_a_warning(tmp_path: Path) -> None:
    def hide_puts(page: dict[str, Any]) -> None:
        page["s3"]["operations"]["put"]["requests"] = 0
        page["s3"]["billing"]["request_cost_usd"] = page["s3"]["operations"]["range_get"]["requests"] * 0.4e-6

    assert "llog_s3_requests_total has 140 of operation put" in only_warning(
        summarise(write_run(tmp_path, change_samples=on_page("broker-0", hide_puts)))
    )


def test_commits_without_metadata_writes_are_a_warning(tmp_path: Path) -> None:
    def commit(page: dict[str, Any]) -> None:
        page["append"]["runs"] = page["append"]["cas_rounds"] = 10_000

    assert "llog_metadata_items_total" in only_warning(
        summarise(write_run(tmp_path, change_samples=on_page("broker-0", commit)))
    )


def test_a_bill_that_differs_from_the_counted_requests_is_a_warning(tmp_path: Path) -> None:
    def overcharge(page: dict[str, Any]) -> None:
        page["s3"]["billing"]["request_cost_usd"] += 0.01

    warning = only_warning(summarise(write_run(tmp_path, change_samples=on_page("compactor-0", overcharge))))
    assert warning.startswith("compactor-0 shows a bill of $0.0")


# -- what the collector missed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, "no answer within 5 s"])
def test_a_collector_that_misses_a_broker_once_is_found(tmp_path: Path, error: str | None) -> None:
    run = write_run(tmp_path, change_samples=without_page("broker-1", slice(3, 4), error))
    warning = only_warning(summarise(run))
    assert "8 pages of broker-1 in 9 samples" in warning
    assert (error or "it was not scraped") in warning


def test_a_collector_that_never_knew_a_broker_is_found(tmp_path: Path) -> None:
    warnings = summarise(write_run(tmp_path, change_samples=without_page("broker-1", slice(None)))).warnings
    assert any("0 pages of broker-1 in 9 samples, although stack.json names it" in warning for warning in warnings)


def test_a_broker_away_because_of_a_fault_is_no_warning(tmp_path: Path) -> None:
    shape = RunShape(faults=True)
    missed = slice(5, 6)  # the sample after the broker was killed
    summary = summarise(write_run(tmp_path, shape, change_samples=without_page("broker-0", missed, "refused")))
    assert summary.warnings == ()
    other = summarise(write_run(tmp_path, shape, change_samples=without_page("broker-1", missed, "refused")))
    assert "broker-1" in only_warning(other)


def test_samples_that_were_not_taken_are_found(tmp_path: Path) -> None:
    def skip(samples: list[MetricsSample]) -> list[MetricsSample]:
        return samples[:2] + samples[5:]

    def often(scenario: Scenario) -> Scenario:
        return replace(scenario, collect=Collect(interval_s=5))

    warning = only_warning(summarise(write_run(tmp_path, change_samples=skip, change_scenario=often)))
    assert "no sample for 20.0 s, although collect.interval_s is 5" in warning


def test_a_missing_final_sample_is_found(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path, change_samples=lambda samples: samples[:-1]))
    assert "no final sample" in only_warning(summary)
    assert not summary.complete


def test_a_server_that_ended_during_the_run_is_found(tmp_path: Path) -> None:
    def end(samples: list[MetricsSample]) -> list[MetricsSample]:
        for number in range(4, len(samples)):
            processes = [replace(p, alive=p.name != "compactor-0") for p in samples[number].processes]
            samples[number] = replace(samples[number], processes=tuple(processes))
        return samples

    warning = only_warning(summarise(write_run(tmp_path, change_samples=end)))
    assert "the process compactor-0" in warning
    assert "20 s after the first sample" in warning


@pytest.mark.parametrize("name", ["remap-events.jsonl", "routing-manifest.json", "git.json"])
def test_a_missing_artifact_is_a_warning(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path)
    (run.path / name).unlink()
    summary = summarise(run)
    assert only_warning(summary) == f"the run directory has no {name}, or it is empty"
    assert summary.artifacts[name] is False
