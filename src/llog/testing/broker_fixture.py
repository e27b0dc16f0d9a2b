"""`llog.testing.broker()`: a real broker for one test, started and stopped in milliseconds.

    @pytest.fixture
    def broker():
        with llog.testing.broker() as running:
            yield running

It is `llog.embedded` with its stores in memory, and flushes each append at once, so that a test does not wait for
batching. A directory or settings override this. (The function is `broker`; a module of that name would hide it.)
"""

from __future__ import annotations

import os

from llog.embedding import EmbeddedBroker


def broker(directory: str | os.PathLike[str] | None = None, **settings: object) -> EmbeddedBroker:
    """In memory, unless a directory is given: other processes, and the sync faces, need one to see the records."""
    return EmbeddedBroker(directory, memory=directory is None, **{"batch_max_delay_ms": 0, **settings})
