"""For tests of llog and of programs that use it: a broker fixture, real servers, a simulator.

with llog.testing.broker() as broker:
    requests.post(f"{broker.url}/produce", …)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llog.embedding import EmbeddedBroker

__all__ = ["broker"]


def broker(directory: str | os.PathLike[str] | None = None, **settings: object) -> EmbeddedBroker:
    """A real broker for one test, started and stopped in milliseconds: `llog.embedded` with its stores in memory, or in
    a directory that other processes see, and with every append flushed at once."""
    from llog.embedding import EmbeddedBroker  # on first use: a test of the simulator loads no web server

    return EmbeddedBroker(directory, memory=directory is None, **{"batch_max_delay_ms": 0, **settings})
