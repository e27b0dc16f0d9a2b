"""`python -m tests.system.loadtest.faulty_broker broker`: the command `llog`, whose broker damages one append to some
topics.

A topic `drop-…` loses one record of a batch that is acknowledged, `duplicate-…` has one record of a batch a second
time, in `reorder-…` two neighbours of a batch are swapped. Other topics are sound. Which append to a topic is damaged
does not depend on time: the first one of several records after `SOUND_APPENDS`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from llog.broker.produce.producer import BatchingProducer
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import Codec, walk
from llog.log.append.append import EncodedGroup

FAULTS: Final = ("drop", "duplicate", "reorder")
SOUND_APPENDS: Final = 2
RECORDS_MIN: Final = 4
DAMAGED: Final = 1
"""The record that is lost, repeated, or swapped with the next one."""


def rows_of(fault: str, count: int) -> list[int]:
    """The records of the damaged batch, by their positions in the sound one."""
    rows = list(range(count))
    if fault == "drop":
        del rows[DAMAGED]
    if fault == "reorder":
        rows[DAMAGED], rows[DAMAGED + 1] = rows[DAMAGED + 1], rows[DAMAGED]
    return rows


def damaged(group: EncodedGroup, rows: Sequence[int], *, keep_offsets: bool) -> EncodedGroup:
    """The group with these records of its first batch. With `keep_offsets` the batch covers the offsets that the sound
    one has, so the producer's numbers stay right."""
    first, *others = group.body
    header = walk(first, "batch").header(0)
    batch = encode_columns(
        decode_records(first, "batch"),
        rows=np.array(rows, np.int64),
        codec=Codec(header.codec),
        last_offset_delta=header.last_offset_delta if keep_offsets else None,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    body = [batch, *others]
    piece = group.pieces[0]
    piece = piece._replace(byte_length=piece.byte_length + len(batch) - memoryview(first).nbytes)
    return replace(group, body=body, pieces=(piece, *group.pieces[1:]))


def repeated(group: EncodedGroup) -> EncodedGroup:
    """A group of one record of the first batch, from no producer."""
    batch = encode_columns(decode_records(group.body[0], "batch"), rows=np.array([DAMAGED], np.int64))
    return EncodedGroup(group.log, 1, group.encoding, [batch], group.max_timestamp_ms)


class Faults:
    """Wraps `BatchingProducer.submit`, through which all records of a broker go."""

    def __init__(self, submit: Callable[[BatchingProducer, Sequence[EncodedGroup]], Any]) -> None:
        self._submit = submit
        self._appends: Counter[str] = Counter()
        self._beside: list[Any] = []

    def submit(self, producer: BatchingProducer, groups: Sequence[EncodedGroup]) -> Any:
        given: list[EncodedGroup] = []
        again: list[EncodedGroup] = []
        for group in groups:
            fault = group.log.topic.partition("-")[0]
            if not self._is_due(fault, group):
                given.append(group)
                continue
            print(f"fault: {fault} in {group.log}", file=sys.stderr, flush=True)
            if fault == "duplicate":
                given.append(group)
                again.append(repeated(group))
            else:
                rows = rows_of(fault, walk(group.body[0], "batch").header(0).record_count)
                given.append(damaged(group, rows, keep_offsets=fault == "drop"))
        answer = self._submit(producer, given)
        if again:
            self._beside.append(self._submit(producer, again))
        return answer

    def _is_due(self, fault: str, group: EncodedGroup) -> bool:
        if fault not in FAULTS or group.msg_count < RECORDS_MIN:
            return False
        self._appends[group.log.topic] += 1
        return self._appends[group.log.topic] == SOUND_APPENDS + 1


def plant() -> None:
    faults = Faults(BatchingProducer.submit)
    # A function, not a bound method, so that it becomes a method of each producer.
    setattr(BatchingProducer, "submit", lambda producer, groups: faults.submit(producer, groups))  # noqa: B010


if __name__ == "__main__":
    from llog.cli.app import app

    plant()
    app()
