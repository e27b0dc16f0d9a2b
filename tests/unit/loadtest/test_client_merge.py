"""What the samples of generator processes say together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llog.loadtest.artifacts import ClientSample, GeneratorHealth, Histogram, Loss
from llog.loadtest.client.histograms import Latencies
from llog.loadtest.client.merge import Finished, limited_by_generator, summarise
from llog.loadtest.client.orders import ConsumerResult, ProducerResult


def histogram(*milliseconds: float) -> Histogram:
    latencies = Latencies()
    latencies.add_many((np.array(milliseconds) * 1_000).astype(np.int64))
    return latencies.take()


def sample(number: int = 0, **fields: Any) -> ClientSample:
    values: dict[str, Any] = {
        "process": "producer-0",
        "kind": "producer",
        "phase": "measured",
        "begin_s": 100.0 + 10 * number,
        "end_s": 110.0 + 10 * number,
        "requests": 100,
        "records": 1_000,
        "payload_bytes": 10**7,
        "latency": histogram(*range(1, 101)),
        "send_delay": histogram(1.0),
        "generator": GeneratorHealth(2.0, 10.0, 5.0),
    }
    return ClientSample(**(values | fields))


def finished(samples: list[ClientSample]) -> Finished:
    return Finished(
        "run",
        offered_mb_per_s=2.0,
        measured_s=20.0,
        samples=samples,
        producers=[ProducerResult(30, 20, 2_000, 1), ProducerResult(3, 2, 200, 0)],
        consumers=[ConsumerResult(21, 2_100, 1)],
        losses={"load:0": Loss(missing=1), "load:3": Loss(duplicates=2)},
        search=(),
    )


def test_the_summary_counts_the_measured_phase() -> None:
    warm = sample(
        phase="warm_up", payload_bytes=10**9, latency=histogram(9_000), failed={"timeout": 7}, retried={"x": 1}
    )
    measured = [sample(0, failed={"timeout": 1}), sample(1, process="producer-1", failed={"timeout": 2, "503": 1})]
    summary = summarise(finished([warm, *measured]))
    assert summary.produced_mb_per_s == pytest.approx(1.0)
    assert summary.failed == {"timeout": 3, "503": 1}
    assert summary.retried == {"x": 1}
    assert summary.latency.count == 200
    assert summary.latency.max == pytest.approx(100, rel=0.01)
    assert (summary.records_intended, summary.records_acknowledged, summary.uncertain_records) == (33, 22, 1)
    assert (summary.records_received, summary.payload_bytes_received, summary.partitions_unfinished) == (21, 2_100, 1)
    assert summary.loss == Loss(missing=1, duplicates=2)
    assert summary.limited_by_generator == ""


def test_consumers_have_the_rate_of_the_time_in_which_they_read() -> None:
    consumed = [sample(number, kind="consumer", process="consumer-0") for number in range(4)]
    summary = summarise(finished(consumed))
    assert summary.consumed_mb_per_s == pytest.approx(1.0)
    assert summary.produced_mb_per_s == 0
    assert summary.consume.count == 400
    assert summary.latency.count == 0


def test_a_process_that_uses_a_whole_core_limits_the_run() -> None:
    busy = [sample(number, generator=GeneratorHealth(9.5, 10.0, 1.0)) for number in range(2)]
    calm = [sample(number, process="producer-1") for number in range(2)]
    assert limited_by_generator([*busy, *calm]) == "producer-0 used 0.95 of a core"


def test_a_process_that_waits_for_a_core_all_the_time_limits_the_run() -> None:
    starved = sample(generator=GeneratorHealth(6.0, 10.0, 1.0, waited_s=3.5))
    assert limited_by_generator([starved]) == "producer-0 used 0.60 of a core and waited 0.35 of the time for one"


def test_late_requests_limit_the_run_where_they_explain_its_latency() -> None:
    late = GeneratorHealth(1.0, 10.0, 80.0, late_requests=2)
    assert "2 requests late" in limited_by_generator([sample(generator=late)])
    slow_server = sample(latency=histogram(*[2_000.0] * 100), generator=late)
    assert limited_by_generator([slow_server]) == ""


def test_an_event_loop_that_often_wakes_late_limits_the_run() -> None:
    lagging = GeneratorHealth(1.0, 10.0, 80.0)
    samples = [
        sample(number, generator=lagging if number in (3, 5) else GeneratorHealth(1.0, 10.0, 4.0))
        for number in range(9)
    ]
    assert limited_by_generator(samples) == "the event loop of producer-0 woke up to 80 ms late"
    assert limited_by_generator(samples[:5]) == "", "one interval may be chance"


def test_answers_of_an_earlier_phase_say_nothing_about_the_generator() -> None:
    rest = sample(requests=0, generator=GeneratorHealth(0.0, 0.0, 0.0))
    assert limited_by_generator([rest]) == ""
