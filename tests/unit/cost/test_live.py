from __future__ import annotations

from typing import Any

import pytest

from llog.cost.live import http_page, live_estimate, observe
from llog.errors import InvalidArgument


def page(seconds: float, *, broker: bool = True, started: float = 1.0) -> dict[str, Any]:
    """A process that appends 1 MB, 10 records and 2 keys per second, in one blob."""
    put = {"requests": int(seconds), "calls": int(seconds)}
    return {
        **({"broker": {"role": "both"}} if broker else {}),
        "process": {"start_time_seconds": started},
        "log": {"append_records": 10 * seconds, "append_payload_bytes": 1e6 * seconds, "compact_runs": 0},
        "append": {"runs": 2 * seconds},
        "batching": {"flushes": {"idle": seconds, "size": 0}},
        "consume": {"payload_bytes": {"cache": 1e6 * seconds, "store": 0}},
        "metadata": {"operations": {"put": {"calls": 3 * seconds}}},
        "s3": {
            "operations": {"put": put, "get": {"requests": 2 * seconds}, "list": {"requests": 0}},
            "billing": {"stored_bytes": 2**30, "object_count": 7, "tiers": {"objects": {"stored_bytes": 2**30}}},
        },
    }


def estimate_between(begin: list[dict[str, Any]], end: list[dict[str, Any]]) -> Any:
    pages = iter(begin + end)
    clock = iter([0.0, 10.0])
    first, last, seconds = observe(
        [f"http://127.0.0.1:{8080 + number}" for number in range(len(begin))],
        10.0,
        lambda url: next(pages),
        sleep=lambda _: None,
        now_s=lambda: next(clock),
    )
    return live_estimate(first, last, seconds)


def test_a_window_is_extrapolated_over_all_processes() -> None:
    found = estimate_between([page(5), page(100, broker=False)], [page(15), page(110, broker=False)])
    assert found.figure("produced") == pytest.approx(2.0)
    assert found.figure("objects before compaction") == pytest.approx(2 * 86_400)
    assert found.figure("index keys before compaction") == pytest.approx(4 * 86_400)
    assert found.figure("GET requests") == pytest.approx(4 * 86_400)
    assert found.figure("metadata calls") == pytest.approx(6)
    puts = {item.name: item.dollars_per_month for item in found.items if item.name.startswith("PUT")}
    assert puts["PUT of brokers"] == pytest.approx(86_400 * 730 / 24 * 0.005 / 1_000)
    assert puts["PUT of compactors"] == puts["PUT of brokers"]


def test_the_shared_bucket_counts_once() -> None:
    found = estimate_between([page(5), page(5)], [page(15), page(15)])
    assert found.figure("bytes stored") == 2**30
    storage = [item.dollars_per_month for item in found.items if item.name.startswith("storage")]
    assert sum(storage) == pytest.approx(0.023)


def test_a_process_that_restarted_counts_from_its_restart() -> None:
    found = estimate_between([page(1_000)], [page(10, started=5.0)])
    assert found.figure("produced") == pytest.approx(1.0)


def test_a_page_without_a_part_counts_nothing_of_it() -> None:
    found = estimate_between([{}], [{}])
    assert found.dollars_per_month == 0
    assert found.dollars_per_gb == 0


@pytest.mark.parametrize("url", ["ftp://host", "127.0.0.1:8080", "http://", "file:///etc/passwd"])
def test_only_http_urls_are_read(url: str) -> None:
    with pytest.raises(InvalidArgument, match="not a URL"):
        http_page(None)(url)


def test_a_closed_port_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"127\.0\.0\.1:9/metrics cannot be read"):
        http_page(None)("http://127.0.0.1:9")


def test_a_window_must_last() -> None:
    with pytest.raises(InvalidArgument, match="window"):
        observe(["http://127.0.0.1"], 0, lambda url: {})
