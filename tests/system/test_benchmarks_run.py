"""Every benchmark still runs. (What it measures is judged by `make bench`, on a quiet machine.)"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from llog.testing.servers import ServerUnavailable
from tests.benchmarks import bench_log_scale
from tests.benchmarks.__main__ import register_all
from tests.benchmarks.harness import REGISTRY, try_once

register_all()


@pytest.fixture(scope="module", autouse=True)
def places() -> Iterator[None]:
    yield
    bench_log_scale.close_places()


@pytest.mark.parametrize("name", sorted(REGISTRY))
async def test_the_benchmark_runs(name: str) -> None:
    if name.startswith("spark") and os.environ.get("LLOG_SOAK") != "1":
        pytest.skip("LLOG_SOAK=1: each starts a Spark session")
    try:
        await try_once(REGISTRY[name])
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    assert REGISTRY[name].at_least or REGISTRY[name].at_most
