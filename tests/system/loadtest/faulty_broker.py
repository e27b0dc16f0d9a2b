"""`python -m tests.system.loadtest.faulty_broker drop broker`: the command `llog`, whose broker damages one append.

Faults: `drop` loses one record of a batch that it acknowledges, `duplicate` appends one record of a batch a second time,
`reorder` swaps two neighbours in a batch, `none` does nothing. Which append is damaged does not depend on time: the
first one of several records after `SOUND_APPENDS`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from llog.broker.produce.producer import Producer
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import Codec, walk
from llog.log.append.append import EncodedGroup

SOUND_APPENDS: Final = 5
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


def plant(fault: str) -> None:
    submit = Producer.submit
    appends = 0
    beside: list[asyncio.Future[Any]] = []

    def faulty(self: Producer, groups: Sequence[EncodedGroup]) -> Any:
        nonlocal appends
        if not groups or groups[0].msg_count < RECORDS_MIN:
            return submit(self, groups)
        appends += 1
        if appends != SOUND_APPENDS + 1:
            return submit(self, groups)
        first, *others = groups
        print(f"fault: {fault} in {first.log}", file=sys.stderr, flush=True)
        if fault == "duplicate":
            answer = submit(self, groups)
            beside.append(submit(self, [repeated(first)]))
            return answer
        rows = rows_of(fault, walk(first.body[0], "batch").header(0).record_count)
        return submit(self, [damaged(first, rows, keep_offsets=fault == "drop"), *others])

    Producer.submit = faulty  # type: ignore[method-assign]


if __name__ == "__main__":
    from llog.cli.app import app

    if (planted := sys.argv.pop(1)) != "none":
        plant(planted)
    app()
