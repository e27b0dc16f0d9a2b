"""Every benchmark still runs. (What it measures is judged by `make bench`, on a quiet machine.)

One run tries a third of them, chosen by its seed; LLOG_SOAK=1 tries all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

from llog.testing.servers import ServerUnavailable
from tests.benchmarks import bench_log_scale
from tests.benchmarks.__main__ import register_all
from tests.benchmarks.harness import REGISTRY, try_once
from tests.conftest import SEED

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
SHARES: Final = 1 if SOAK else 3
register_all()
NAMES: Final = sorted(REGISTRY)[SEED % SHARES :: SHARES]


@pytest.fixture(scope="module", autouse=True)
def places() -> Iterator[None]:
    yield
    bench_log_scale.close_places()


@pytest.mark.parametrize("name", NAMES)
async def test_the_benchmark_runs(name: str) -> None:
    if name.startswith("spark") and not SOAK:
        pytest.skip("LLOG_SOAK=1: each starts a Spark session")
    try:
        await try_once(REGISTRY[name])
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    assert REGISTRY[name].at_least or REGISTRY[name].at_most
