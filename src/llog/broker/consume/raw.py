"""An answer of whole batches, as Kafka's Fetch returns them: nothing is decoded, copied or divided.

Limits count the bytes of batches. Batches are taken in request order as long as the next one fits, up to `max_bytes` in
total and `partition_max_bytes` per log; the first batch of the answer is returned whatever its size, so every consumer
advances. The first batch of a partition may begin below the wanted offset: clients skip those records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llog.broker.consume.request import AnswerFill, ConsumeRequest, PartitionFill, TakeCost
from llog.broker.tail.cached_batch import CachedBatch

NO_COST: Final = TakeCost(0, 0)


class RawFill(AnswerFill):
    """A raw answer that is being filled."""

    def __init__(self, request: ConsumeRequest, parts: list[PartitionFill]) -> None:
        super().__init__(request, parts)
        self._limited = False
        """A batch did not fit into `max_bytes`: the answer is not kept waiting for others."""

    def is_done(self) -> bool:
        if self._limited or self.byte_length >= self._bytes_min:
            return True
        return any(part.ended for part in self.parts) or not any(part.open for part in self.parts)

    # -- how much to look up ---------------------------------------------------------------------------------------
    def wanted_bytes(self, part: PartitionFill) -> int:
        return max(min(part.bytes_left, self.bytes_left), 0)

    def store_bytes(self, first: PartitionFill) -> int:
        left = self.bytes_left
        for part in self.parts:
            if part is first:
                break
            left -= min(part.found_bytes, part.bytes_left)
        return max(left, 0 if self.byte_length else 1)

    def wants_more(self, part: PartitionFill) -> bool:
        """Whether the limits allow further batches that exist and were not looked up."""
        if self.bytes_left <= 0 or not part.open or part.offset > part.answer.high_watermark:
            return False
        return part.passed_over or part.found_bytes >= part.wanted_bytes

    def take_cost(self, parts: Sequence[PartitionFill]) -> TakeCost:
        return NO_COST

    # -- taking ----------------------------------------------------------------------------------------------------
    def _take(self, part: PartitionFill, item: CachedBatch) -> bool:
        if part.incarnation is not None and item.incarnation not in (None, part.incarnation):
            part.full = part.ended = True  # the topic was re-created: not in the same answer
            return False
        if item.incarnation is not None:
            part.incarnation = item.incarnation
        left = min(part.bytes_left, self.bytes_left)
        taken = item.take(part.offset, left, at_least_one=not self.byte_length)
        part.answer.batches += taken.buffers
        part.bytes_left -= taken.byte_length
        self.bytes_left -= taken.byte_length
        self.byte_length += taken.byte_length
        if taken.byte_length:  # offsets are counted, no record is looked at
            self.record_count += taken.next_offset - part.offset
            self.payload_bytes += item.payload_bytes_of(taken)
        part.offset = part.answer.next_fetch_offset = max(part.offset, taken.next_offset)
        if taken.is_all and left > taken.byte_length:
            return True
        part.full = not taken.is_all or part.bytes_left <= 0
        self._limited = self._limited or (self.bytes_left <= part.bytes_left)
        return False
