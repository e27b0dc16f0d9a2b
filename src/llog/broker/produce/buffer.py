"""What is accepted and not yet being flushed: a queue of batches, each of which will be one blob.

A group goes into the first batch that has room for it, but never before one of its log that came earlier. So the next
blob is as full as it can be, while a group that cannot join (another encoding, a bare bytes-batch, one too many claims)
waits in the next batch without holding anybody up. A group that is larger than a batch gets one of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from llog.broker.produce.groups import Share
from llog.broker.produce.requests import Entry
from llog.log.keys import Log

# Groups of requests in one flush: each is a piece to be judged and answered.
BATCH_GROUPS_PER_FLUSH_MAX: Final = 8_192


class Batch:
    __slots__ = ("byte_length", "first_ms", "group_count", "hurry", "number", "shares")

    def __init__(self, number: int, now_ms: float) -> None:
        self.number, self.first_ms = number, now_ms
        self.shares: dict[Log, Share] = {}
        self.byte_length = self.group_count = 0
        self.hurry = ""
        """Why it must not wait."""

    def takes(self, entry: Entry, max_bytes: int) -> bool:
        if not self.group_count:
            return True
        if self.byte_length + entry.byte_length > max_bytes or self.group_count >= BATCH_GROUPS_PER_FLUSH_MAX:
            return False
        share = self.shares.get(entry.log)
        return share is None or share.takes(entry)

    def add(self, entry: Entry) -> None:
        share = self.shares.get(entry.log)
        if share is None:
            share = self.shares[entry.log] = Share()
        share.add(entry)
        self.byte_length += entry.byte_length
        self.group_count += 1

    def entries(self) -> list[Entry]:
        return [entry for share in self.shares.values() for entry in share.entries]


class Buffer:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[Batch] = deque()
        self._latest: dict[Log, int] = {}
        """The number of the last waiting batch that holds something of a log."""
        self._next_number = 0
        self._full_until = -1
        """Up to this batch nobody waits, and nothing is added: it is full, and those before it go first."""

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, entry: Entry, now_ms: float) -> None:
        batch = self._place(entry, now_ms)
        batch.add(entry)
        self._latest[entry.log] = batch.number
        if batch.byte_length >= self._max_bytes or batch.group_count >= BATCH_GROUPS_PER_FLUSH_MAX:
            self._full_until = batch.number

    def _place(self, entry: Entry, now_ms: float) -> Batch:
        if self._batches:
            head = self._batches[0].number
            first = max(head, self._full_until + 1, self._latest.get(entry.log, head))
            for position in range(first - head, len(self._batches)):
                batch = self._batches[position]
                if batch.takes(entry, self._max_bytes):
                    return batch
                if batch.byte_length + entry.byte_length > self._max_bytes:
                    # No room for one of this size: as full as such groups make it.
                    self._full_until = batch.number
        self._batches.append(Batch(self._next_number, now_ms))
        self._next_number += 1
        return self._batches[-1]

    @property
    def head(self) -> Batch:
        return self._batches[0]

    def head_is_full(self) -> bool:
        return bool(self._batches) and self._batches[0].number <= self._full_until

    def pop(self) -> Batch:
        batch = self._batches.popleft()
        for log in batch.shares:
            if self._latest[log] == batch.number:
                del self._latest[log]
        return batch

    def hurry(self, reason: str) -> None:
        """What is here now waits no longer."""
        for batch in self._batches:
            batch.hurry = reason
