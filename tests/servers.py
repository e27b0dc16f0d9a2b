"""Real servers as fixtures: `yield from started(OxiaServer)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

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
