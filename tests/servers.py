"""What a machine may not have: real servers as fixtures (`yield from started(OxiaServer)`), and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from llog.errors import JavaUnusable
from llog.testing.servers import Server, ServerUnavailable

S = TypeVar("S", bound=Server)


def started(make: Callable[[], S]) -> Iterator[S]:
    """The server, running while the fixture lives; the test skips, with the reason, where it cannot be had."""
    try:
        server = make()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with server:
        yield server


def need_spark() -> None:
    """Skip, with the reason, where there is no Spark."""
    pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "leaderless-log[spark]"')
    from llog.spark.sessions.java import find_java

    try:
        find_java()
    except JavaUnusable as error:
        pytest.skip(str(error))
