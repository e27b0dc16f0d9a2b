"""From commits to the tail cache: each append with the life and the epoch it was committed in.

Why it exists: a committed batch tells offsets and bytes. Which life of the topic took them, this process knows at that
instant, because it has just written the control record: told along, the cache need not wait for proof.

What must stay true: this is called while the log's commit is the last thing known of it. An append that the known
control record does not end with (part of a group whose rest went another way) is handed on without a life.
"""

from __future__ import annotations

from collections.abc import Callable

from llog.broker.tail.cache import Committed, TailCache
from llog.log.append.known import KnownLogs


def feed(cache: TailCache, known_logs: KnownLogs) -> Callable[[Committed], None]:
    """What to call with every committed batch: `feed(cache, appender.committer.known)`."""

    def add(batch: Committed) -> None:
        known = known_logs.get(batch.log)
        if known is None or known.control.sequence_counter != batch.end_offset + 1:
            cache.add(batch)
        else:
            cache.add(batch, incarnation=known.control.incarnation, epoch=known.control.epoch)

    return add
