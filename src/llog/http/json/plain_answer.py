"""Answers of plain records, made straight from the batches that were found, in one buffer.

Why it exists: nearly all answers are nothing but offsets and texts. Decoding those into columns, and these into JSON,
copies every record three times and passes from thread to thread; here its bytes are copied once, by a kernel.

What must stay true: the answer is the one that `consume_answer` would have made (a test compares them); where anything
is not plain there is none, and the batches are decoded. It takes no more memory than `quick_bytes` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from llog.broker.consume.consume import PartitionFetched, quick_bytes
from llog.formats.buffers import total_length
from llog.http.json.consume_answer import result_of
from llog.http.json.plain_show import show_batches
from llog.listener.http1 import ENCODER

_START: Final = b'{"results":['
_TAIL: Final = b'],"success_count":%d,"error_count":%d}'
# Of a result's text that has no records: they go before these two.
_CLOSING: Final = b"]}"


class PlainAnswer:
    """For one request, which tries it first (`ConsumeRequest.quick`)."""

    def __init__(self) -> None:
        self.text: memoryview | None = None
        """None: it was not made."""

    def __call__(self, fetched: Sequence[PartitionFetched]) -> int | None:
        """How many records are in the answer; None: something among them has to be decoded, or there is no room."""
        try:
            return self._made(fetched)
        except _NotMade:
            return None

    def _made(self, fetched: Sequence[PartitionFetched]) -> int:
        frames = [ENCODER.encode(result_of(partition)) for partition in fetched]  # nothing is decoded: no records yet
        failed = sum(partition.error is not None for partition in fetched)
        tail = _TAIL % (len(fetched) - failed, failed)
        found = sum(total_length(partition.batches) for partition in fetched)
        frame_bytes = len(_START) + total_length(frames) + len(frames) + len(tail)
        writing = _Writing(quick_bytes(found) + frame_bytes)
        writing.put(_START)
        for number, (partition, frame) in enumerate(zip(fetched, frames, strict=True)):
            writing.put(b"," if number else b"")
            if not partition.batches:
                writing.put(frame)
                continue
            writing.put(frame[: -len(_CLOSING)])
            writing.show(partition)
            writing.put(_CLOSING)
        writing.put(tail)
        self.text = writing.written()
        return writing.records


class _NotMade(Exception):
    pass


class _Writing:
    def __init__(self, size: int) -> None:
        self._output, self._at, self.records = np.empty(size, np.uint8), 0, 0

    def put(self, text: bytes) -> None:
        end = self._at + len(text)
        if end > len(self._output):  # records before it took the room: they are tiny, or full of escapes
            raise _NotMade
        self._output[self._at : end] = np.frombuffer(text, np.uint8)
        self._at = end

    def show(self, partition: PartitionFetched) -> None:
        first = True
        for batches in partition.batches:
            shown = show_batches(self._output, self._at, batches, partition.fetch_offset, first=first)
            if shown is None:
                raise _NotMade
            self._at, records = shown
            self.records += records
            first = first and records == 0

    def written(self) -> memoryview:
        return self._output[: self._at].data
