"""Figures of summary.json, from whole runs and from runs that ended early."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llog.cost.kafka import KafkaLayout, cross_zone_dollars_per_hour
from llog.errors import RunNotFound
from llog.loadtest.artifacts import ClientSummary, MetricsSample, PageSample, ProcessSample, Summary
from llog.loadtest.collect.lives import lives_of, numbers_of
from llog.loadtest.collect.summarise import summarise
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario, Targets
from tests.unit.loadtest.artefacts import BEGAN_S, RunShape, metrics_samples_of, write_run

SHAPE = RunShape()


def test_the_summary_is_written_and_read_again(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert run.summary() is None
    assert summarise(run) == run.summary()


def test_totals_of_brokers_cover_the_whole_run(tmp_path: Path) -> None:
    totals = summarise(write_run(tmp_path)).brokers
    assert totals["records"] == totals["records_returned"] == SHAPE.records
    assert totals["payload_bytes"] == totals["payload_bytes_returned"] == SHAPE.records * SHAPE.record_bytes
    assert totals["flushes"] == SHAPE.brokers * SHAPE.intervals * SHAPE.flushes_per_interval
    assert totals["restarts"] == 0


def test_operations_of_brokers_and_compactors_are_added_up(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path))
    flushes = SHAPE.brokers * SHAPE.intervals * SHAPE.flushes_per_interval
    assert summary.s3_operations["put"] == flushes + SHAPE.intervals
    assert summary.s3_operations["get"] == 8 * SHAPE.intervals
    assert summary.metadata_operations["write"] == 2 * flushes
    assert summary.metadata_operations["scan"] == 4 * SHAPE.intervals


# -- processor time ----------------------------------------------------------------------------------------------------


def test_processor_time_is_that_of_the_measured_phase_per_gb_produced(tmp_path: Path) -> None:
    costs = {cost.name: cost for cost in summarise(write_run(tmp_path)).costs}
    gigabytes = SHAPE.brokers * SHAPE.measured_intervals * SHAPE.records_per_interval * SHAPE.record_bytes / 1e9
    assert costs["broker-0"].cpu_s == pytest.approx(1.5 * SHAPE.measured_intervals)
    assert costs["broker-0"].cpu_s_per_gb == pytest.approx(1.5 * SHAPE.measured_intervals / gigabytes)
    assert costs["compactor-0"].kind == "compactor"
    assert costs["broker-0"].rss_bytes_max == 150_000_000 + 1_000_000 * SHAPE.intervals


def test_processor_time_goes_on_over_a_restart(tmp_path: Path) -> None:
    def restart(samples: list[MetricsSample]) -> list[MetricsSample]:
        """The broker begins again before the sample after next; its processor time begins at 0.2 s."""

        def again(process: ProcessSample, step: int) -> ProcessSample:
            return replace(process, cpu_s=0.2 + 1.5 * (step - 4), started_s=BEGAN_S + 18)

        for number in range(4, len(samples)):
            step = min(number, SHAPE.intervals)
            processes = [again(p, step) if p.name == "broker-0" else p for p in samples[number].processes]
            samples[number] = replace(samples[number], processes=tuple(processes))
        return samples

    costs = {cost.name: cost.cpu_s for cost in summarise(write_run(tmp_path, change_samples=restart)).costs}
    assert costs["broker-0"] == pytest.approx(1.5 * (SHAPE.measured_intervals - 1) + 0.2)


# -- money -------------------------------------------------------------------------------------------------------------


def test_dollars_per_hour_come_from_the_requests_of_the_measured_phase(tmp_path: Path) -> None:
    money = summarise(write_run(tmp_path)).money
    puts_per_s = (SHAPE.brokers * SHAPE.flushes_per_interval + 1) / SHAPE.interval_s
    gets_per_s = (SHAPE.brokers * 2 + 8) / SHAPE.interval_s
    assert money.requests_per_hour == pytest.approx(3_600 * (puts_per_s * 0.005 / 1_000 + gets_per_s * 0.004 / 10_000))
    assert money.per_gb == pytest.approx(money.requests_per_hour / (SHAPE.mb_per_s * 3.6))


def test_storage_is_at_least_what_was_appended(tmp_path: Path) -> None:
    money = summarise(write_run(tmp_path)).money
    encoded = SHAPE.records * (SHAPE.record_bytes + 10)
    assert money.storage_per_month == pytest.approx(encoded / 2**30 * 0.023)


def test_kafka_across_zones_is_priced_for_the_rates_of_the_clients(tmp_path: Path) -> None:
    def fast(summary: ClientSummary) -> ClientSummary:
        return replace(summary, produced_mb_per_s=100.0, consumed_mb_per_s=100.0)

    money = summarise(write_run(tmp_path, change_client=fast)).money
    assert money.kafka_cross_zone_per_hour == pytest.approx(100e6 * 3_600 / 2**30 * (2 / 3 + 2) * 0.02)
    far = cross_zone_dollars_per_hour(100, 100, layout=KafkaLayout(consumers_read_in_zone=False))
    assert 16.4 < money.kafka_cross_zone_per_hour < far, "the seed says at least $16.4 for 100 MB/s in and out"
    assert money.kafka_inputs["replica_crossings"] == 2
    assert money.kafka_inputs["produce_mb_per_s"] == 100


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_each_target_that_is_set_has_a_verdict_and_a_missed_one_is_no_failure(tmp_path: Path) -> None:
    def wanting(scenario: Scenario) -> Scenario:
        targets = Targets(
            produce_mb_per_s_min=1_000,
            consume_mb_per_s_min=1,
            produce_p99_ms_max=10_000,
            end_to_end_p99_ms_max=0.1,
            dollars_per_hour_max=1e-6,
            failed_requests_max=0,
        )
        return replace(scenario, targets=targets)

    summary = summarise(write_run(tmp_path, change_scenario=wanting))
    assert {verdict.target: verdict.ok for verdict in summary.verdicts} == {
        "produce_mb_per_s_min": False,
        "consume_mb_per_s_min": True,
        "produce_p99_ms_max": True,
        "end_to_end_p99_ms_max": False,
        "dollars_per_hour_max": False,
        "failed_requests_max": True,
    }
    assert (summary.exit_code, summary.warnings) == (0, ())


# -- runs that ended early ---------------------------------------------------------------------------------------------


def removed(run: RunDirectory, *names: str) -> Summary:
    for name in names:
        (run.path / name).unlink()
    return summarise(run)


def test_a_run_without_its_clients_is_summarised_from_the_brokers(tmp_path: Path) -> None:
    summary = removed(write_run(tmp_path), "client-summary.json", "client-30s.jsonl", "remap-events.jsonl")
    assert (summary.complete, summary.client, summary.verdicts, summary.exit_code) == (False, None, (), 0)
    assert summary.brokers["records"] == SHAPE.records
    assert summary.money.kafka_inputs["produce_mb_per_s"] == pytest.approx(SHAPE.mb_per_s)
    assert any("did not run to its end" in warning for warning in summary.warnings)


def test_a_run_that_ended_before_its_stack_was_up_is_summarised(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    names = [path.name for path in run.path.iterdir() if path.is_file() and path.name != "resolved-config.json"]
    summary = removed(run, *names)
    assert not summary.complete
    assert (summary.began_s, summary.money.requests_per_hour, summary.costs) == (0.0, 0.0, ())
    assert summary.artifacts["stack.json"] is False


def test_a_run_without_its_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        removed(write_run(tmp_path), "resolved-config.json")


def test_a_short_measured_phase_is_not_complete(tmp_path: Path) -> None:
    def interrupted(summary: ClientSummary) -> ClientSummary:
        return replace(summary, measured_s=summary.measured_s / 2)

    assert not summarise(write_run(tmp_path, change_client=interrupted)).complete


def test_a_damaged_line_leaves_out_the_rest_and_is_a_warning(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    lines = (run.path / "metrics-30s.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "metrics-30s.jsonl").write_bytes(b"".join([*lines[:-1], b"{]\n", lines[-1]]))
    summary = summarise(run)
    assert any("metrics-30s.jsonl is damaged after line 8" in warning for warning in summary.warnings)
    assert summary.brokers["records"] == SHAPE.records


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with open(run.path / "metrics-30s.jsonl", "ab") as file:
        file.write(b'{"at_s": 1')
    assert summarise(run).warnings == ()


# -- lives of a process ------------------------------------------------------------------------------------------------


def page(records: float, started_s: float = 0.0) -> PageSample:
    return PageSample(
        "broker-0", True, "", {"log": {"append_records": records}, "broker": {"started_at_seconds": started_s}}
    )


def lived(*pages: PageSample | None) -> tuple[float, int]:
    [template] = metrics_samples_of(RunShape(measured_intervals=1))[:1]
    samples = [
        replace(template, at_s=float(number), pages=() if one is None else (one,)) for number, one in enumerate(pages)
    ]
    broker = lives_of(samples)["broker-0"]
    return broker.total("log.append_records"), len(broker.gaps)


def test_counters_are_added_up_over_lives_by_start_time() -> None:
    assert lived(page(5, 1), page(9, 1), page(20, 2)) == (29, 1)
    assert lived(page(5, 1), page(9, 1), None, page(20, 2), page(21, 2)) == (30, 1)


def test_a_counter_that_went_down_shows_a_new_life_without_start_times() -> None:
    assert lived(page(5), page(9), page(3), page(4)) == (13, 1)


def test_a_page_that_could_not_be_read_changes_nothing() -> None:
    assert lived(page(5, 1), PageSample("broker-0", False, "refused"), page(9, 1)) == (9, 0)


def test_counters_between_pages_grow_evenly() -> None:
    [template] = metrics_samples_of(RunShape(measured_intervals=1))[:1]
    samples = [replace(template, at_s=10.0 * n, pages=(page(100.0 * n, 1),)) for n in range(3)]
    broker = lives_of(samples)["broker-0"]
    assert [broker.at("log.append_records", at_s) for at_s in (-5, 0, 5, 10, 12.5, 99)] == [0, 0, 50, 100, 125, 200]
    assert broker.rate_max("log.append_records") == 10


def test_numbers_of_a_page_leave_out_texts_and_buckets() -> None:
    sample = PageSample("b", True, "", {"a": {"b": 1, "text": "2", "h": {"sum": 3.5, "buckets": {"1": 4}}}, "c": True})
    assert numbers_of(sample) == {"a.b": 1.0, "a.h.sum": 3.5}
