"""`llog.testing.broker()`: a real broker for one test, over in milliseconds.

    @pytest.fixture
    def broker():
        with llog.testing.broker() as running:
            yield running

It is `llog.embedded` with its stores in memory and nothing that waits: each append is flushed at once, so a test does
not pay for batching. With a directory, or with settings, it is as told. (The function is `broker`; a module of that
name would hide it.)
"""

from __future__ import annotations

import os

from llog.embedding import EmbeddedBroker


def broker(directory: str | os.PathLike[str] | None = None, **settings: object) -> EmbeddedBroker:
    """In memory, unless a directory is given: other processes, and the sync faces, need one to see the records."""
    return EmbeddedBroker(directory, memory=directory is None, **{"batch_max_delay_ms": 0, **settings})
