"""The memory of answers: records found, decoded, made into text, and waiting for their client to take them.

Why it exists: each answer is bounded, but how many there are at once is up to the clients, and one that does not read
keeps its answer here. So all of them share one pool, and who finds no room is told to come again. (How long a client
may take is bounded by `pace`.)

What must stay true: what an answer holds is counted from the first byte found until the client has taken the last one,
or is gone; waiting for records holds nothing. An answer that is larger than the pool gets it when it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from llog.broker.consume.consume import PartitionFetched
from llog.broker.produce.pool import MemoryPool
from llog.errors import RequestOverload
from llog.limits import CONSUME_RECORD_BYTES


class AnswerShare:
    """What one answer holds of the pool."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool, self._size = pool, 0

    def hold(self, size: int) -> None:
        """At least so much. `RequestOverload` when there is no room."""
        size = min(size, self._pool.limit_bytes)
        if size <= self._size:
            return
        if not self._pool.try_take(size - self._size):
            raise RequestOverload("answers to other clients take all the memory there is for them: ask again")
        self._size = size

    def shrink(self, size: int) -> None:
        """No more than that."""
        if size < self._size:
            self._pool.give(self._size - size)
            self._size = size

    def give(self) -> None:
        self.shrink(0)


def held_bytes(fetched: Sequence[PartitionFetched]) -> int:
    """Of an answer that is about to be made into text: its bytes as found and decoded, and what each record costs."""
    found = sum(len(data) for partition in fetched for data in partition.batches)
    columns = [run.columns for partition in fetched for run in partition.runs]
    values = sum(column.values.data.nbytes + column.keys.data.nbytes for column in columns)
    # The values are there as columns, as text, and in the answer.
    return found + 3 * values + sum(map(len, columns)) * CONSUME_RECORD_BYTES
