"""Kernels over answers of brokers: where the stamped records are, and what their stamps say.

A consumer of 100,000 records per second may not do Python work for each, so these kernels walk the answers.
`list_fetched` reads a Fetch answer (version 13) and lists its partitions and whole batches; `scan_batches` reads the
records of batches, `scan_text` those of a JSON answer. Both append a column per stamped record of this run to `found`.
`fold_runs` then joins records with consecutive sequences, so that Python sees runs, not records.

Answers come from brokers under test, so every position is checked before it is read. Call the kernels through `scan`.
"""

# The type of an int inside a kernel is the one that numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

STAMP_BYTES = 62
_RUN_AT = 5
_PRODUCER_AT = 14
_TOPIC_AT = 20
_PARTITION_AT = 25
_SEQUENCE_AT = 32
_DUE_AT = 45
_END_AT = 61

# The rows of `found`.
KEY = 0
"""(topic * 10**6 + partition) * 10**5 + producer."""
SEQUENCE = 1
DUE = 2
FOUND_ROWS = 3
PARTITIONS_OF_KEY = 10**6
PRODUCERS_OF_KEY = 10**5

# `sums`.
FOREIGN = 0
"""Records with the stamp of another run."""
UNSTAMPED = 1
MISPLACED = 2
"""Records of this run in a partition that their stamp does not name."""
PAYLOAD_BYTES = 3
"""Of stamped records of this run."""
OFFSET_GAPS = 4
"""Offsets that the answers passed and that hold no record."""
SUMS = 5

# The rows of `partitions`, a column per partition of a Fetch answer.
PLACE = 0
"""Row of the caller's table, -1 for a partition that it does not have."""
ERROR = 1
HIGH_WATERMARK = 2
LOG_START = 3
NEXT_OFFSET = 4
PARTITION_ROWS = 5

# The rows of `batches`. PLACE is the first of them too.
BEGIN = 1
"""Where the records begin."""
END = 2
BASE_OFFSET = 3
CODEC = 4
COUNT = 5
BATCH_ROWS = 6

# The rows of `runs`.
PRODUCER = 0
TOPIC = 1
PARTITION = 2
FIRST = 3
RUN_LENGTH = 4
RUN_ROWS = 5

SOUND = 0
ENDS_EARLY = 1
TOO_MANY = 2
UNKNOWN_TOPIC = 3

_HEADER = 61
_CONTROL = 0x20


@inlined
def _int32(data: Bytes, at: int) -> int:
    value = (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )
    return (value ^ 0x80000000) - 0x80000000


@inlined
def _int16(data: Bytes, at: int) -> int:
    value = (np.int64(data[at]) << 8) | np.int64(data[at + 1])
    return (value ^ 0x8000) - 0x8000


@inlined
def _int64(data: Bytes, at: int) -> int:
    return (_int32(data, at) << 32) | (_int32(data, at + 4) & 0xFFFFFFFF)


@inlined
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned varint and the position behind it; that position is -1 where the bytes end or it is too long."""
    value = np.int64(0)
    shift = np.int64(0)
    while at < end and shift < 64:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return np.int64(0), -1


@inlined
def _zigzag(data: Bytes, at: int, end: int) -> tuple[int, int]:
    value, at = _varint(data, at, end)
    return (value >> 1) ^ -(value & 1), at


@inlined
def _digits(data: Bytes, at: int, count: int) -> int:
    """The number that the digits are, or -1."""
    value = np.int64(0)
    for place in range(count):
        digit = np.int64(data[at + place]) - 0x30
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@inlined
def _is_mark(data: Bytes, at: int) -> bool:
    return bool(
        data[at] == 0x4C
        and data[at + 1] == 0x4C
        and data[at + 2] == 0x54
        and data[at + 3] == 0x31
        and data[at + 4] == 0x3A
    )


@inlined
def _take(
    data: Bytes, at: int, length: int, run: Bytes, topic: int, partition: int, found: Longs, n: int, sums: Longs
) -> int:
    """Add the record whose value is data[at : at + length] to `found`; the number of columns then."""
    if length < STAMP_BYTES or not _is_mark(data, at) or data[at + _END_AT] != 0x3B:
        sums[UNSTAMPED] += 1
        return n
    for place in range(8):
        if data[at + _RUN_AT + place] != run[place]:
            sums[FOREIGN] += 1
            return n
    producer = _digits(data, at + _PRODUCER_AT, 5)
    sequence = _digits(data, at + _SEQUENCE_AT, 12)
    due = _digits(data, at + _DUE_AT, 16)
    if producer < 0 or sequence < 0 or due < 0:
        sums[UNSTAMPED] += 1
        return n
    if _digits(data, at + _TOPIC_AT, 4) != topic or _digits(data, at + _PARTITION_AT, 6) != partition:
        sums[MISPLACED] += 1
        return n
    found[KEY, n] = (topic * PARTITIONS_OF_KEY + partition) * PRODUCERS_OF_KEY + producer
    found[SEQUENCE, n] = sequence
    found[DUE, n] = due
    sums[PAYLOAD_BYTES] += length
    return n + 1


@inlined
def _records(
    data: Bytes,
    at: int,
    end: int,
    count: int,
    base_offset: int,
    from_offset: int,
    run: Bytes,
    topic: int,
    partition: int,
    found: Longs,
    n: int,
    sums: Longs,
) -> int:
    """Walk `count` records; -1 where one of them passes the end."""
    for _ in range(count):
        length, at = _zigzag(data, at, end)
        if at < 0 or length < 1 or length > end - at:
            return -1
        record_end = at + length
        _, at = _varint(data, at + 1, record_end)  # behind the attributes: the timestamp
        if at < 0:
            return -1
        delta, at = _zigzag(data, at, record_end)
        if at < 0:
            return -1
        key_length, at = _zigzag(data, at, record_end)
        if at < 0 or key_length > record_end - at:
            return -1
        at += max(key_length, 0)
        value_length, at = _zigzag(data, at, record_end)
        if at < 0 or value_length > record_end - at:
            return -1
        if base_offset + delta >= from_offset:
            n = _take(data, at, value_length, run, topic, partition, found, n, sums)
        at = record_end
    return n


@kernel
def scan_batches(
    data: Bytes,
    batches: Longs,
    first: int,
    stop: int,
    topics: Longs,
    numbers: Longs,
    offsets: Longs,
    run: Bytes,
    found: Longs,
    n: int,
    sums: Longs,
) -> int:
    """The records of batches first to stop, which are not compressed: the number of columns of `found` then, -1 for a
    bad batch."""
    for batch in range(first, stop):
        place = batches[PLACE, batch]
        n = _records(
            data,
            batches[BEGIN, batch],
            batches[END, batch],
            batches[COUNT, batch],
            batches[BASE_OFFSET, batch],
            offsets[place],
            run,
            topics[place],
            numbers[place],
            found,
            n,
            sums,
        )
        if n < 0:
            return -1
    return n


@kernel
def scan_text(
    data: Bytes, topic: int, partition: int, value_bytes: int, run: Bytes, found: Longs, n: int, sums: Longs
) -> int:
    """The stamps in the JSON of records. A value of this run has `value_bytes`, and JSON never shortens it, so the
    search goes on behind it."""
    at = 0
    end = data.size - STAMP_BYTES
    while at <= end:
        if data[at] != 0x4C or not _is_mark(data, at):
            at += 1
            continue
        before = n
        n = _take(data, at, value_bytes, run, topic, partition, found, n, sums)
        at += value_bytes if n > before else STAMP_BYTES
    return n


@inlined
def _skip_tags(data: Bytes, at: int, end: int) -> int:
    count, at = _varint(data, at, end)
    if at < 0 or count > end - at:
        return -1
    for _ in range(count):
        _, at = _varint(data, at, end)
        if at < 0:
            return -1
        size, at = _varint(data, at, end)
        if at < 0 or size > end - at:
            return -1
        at += size
    return at


@kernel
def list_fetched(
    frame: Bytes,
    at: int,
    topic_ids: Bytes,
    bases: Longs,
    places: Longs,
    offsets: Longs,
    partitions: Longs,
    batches: Longs,
    sums: Longs,
) -> tuple[int, int, int, int]:
    """Read a Fetch answer whose body begins at `at`: (fault, its error code, partitions, batches).

    `topic_ids` has 16 bytes per topic; partition p of topic t has row `places[bases[t] + p]` of the caller's table, and
    is read from `offsets[row]`.
    """
    end = frame.size
    if end - at < 10:
        return ENDS_EARLY, 0, 0, 0
    error = _int16(frame, at + 4)
    at += 10
    filled = 0
    listed = 0
    topics, at = _varint(frame, at, end)
    if at < 0:
        return ENDS_EARLY, error, 0, 0
    for _ in range(topics - 1):
        if end - at < 16:
            return ENDS_EARLY, error, filled, listed
        topic = -1
        for candidate in range(bases.size):
            same = True
            for place in range(16):
                if topic_ids[candidate * 16 + place] != frame[at + place]:
                    same = False
                    break
            if same:
                topic = candidate
                break
        if topic < 0:
            return UNKNOWN_TOPIC, error, filled, listed
        room = (bases[topic + 1] if topic + 1 < bases.size else places.size) - bases[topic]
        at += 16
        count, at = _varint(frame, at, end)
        if at < 0:
            return ENDS_EARLY, error, filled, listed
        for _ in range(count - 1):
            if end - at < 31:
                return ENDS_EARLY, error, filled, listed
            if filled >= partitions.shape[1]:
                return TOO_MANY, error, filled, listed
            number = _int32(frame, at)
            row = places[bases[topic] + number] if 0 <= number < room else np.int64(-1)
            partitions[PLACE, filled] = row
            partitions[ERROR, filled] = _int16(frame, at + 4)
            partitions[HIGH_WATERMARK, filled] = _int64(frame, at + 6)
            partitions[LOG_START, filled] = _int64(frame, at + 22)
            aborted, at = _varint(frame, at + 30, end)
            for _ in range(aborted - 1):
                if at < 0 or end - at < 17:
                    return ENDS_EARLY, error, filled, listed
                at = _skip_tags(frame, at + 16, end)
            if at < 0 or end - at < 5:
                return ENDS_EARLY, error, filled, listed
            size, at = _varint(frame, at + 4, end)  # behind the preferred read replica
            size = max(size - 1, 0)
            if at < 0 or size > end - at:
                return ENDS_EARLY, error, filled, listed
            next_offset = offsets[row] if row >= 0 else np.int64(0)
            next_offset, listed = _list_batches(frame, at, at + size, row, next_offset, batches, listed, sums)
            if listed < 0:
                return TOO_MANY, error, filled, 0
            partitions[NEXT_OFFSET, filled] = next_offset
            filled += 1
            at = _skip_tags(frame, at + size, end)
            if at < 0:
                return ENDS_EARLY, error, filled, listed
        at = _skip_tags(frame, at, end)
        if at < 0:
            return ENDS_EARLY, error, filled, listed
    return SOUND, error, filled, listed


@inlined
def _list_batches(
    data: Bytes, at: int, end: int, row: int, next_offset: int, batches: Longs, listed: int, sums: Longs
) -> tuple[int, int]:
    """List the whole batches with offsets from `next_offset` on: (the offset behind them, batches listed or -1)."""
    while row >= 0 and end - at >= _HEADER:
        length = 12 + _int32(data, at + 8)
        if length < _HEADER or length > end - at:
            break  # a broker may cut the last batch
        base_offset = _int64(data, at)
        last_offset = base_offset + _int32(data, at + 23)
        if last_offset >= next_offset:
            count = _int32(data, at + 57)
            attributes = np.int64(data[at + 22])
            sums[OFFSET_GAPS] += max(base_offset - next_offset, 0)
            if attributes & _CONTROL == 0:
                sums[OFFSET_GAPS] += max(last_offset + 1 - base_offset - count, 0)
                if listed >= batches.shape[1]:
                    return next_offset, -1
                batches[PLACE, listed] = row
                batches[BEGIN, listed] = at + _HEADER
                batches[END, listed] = at + length
                batches[BASE_OFFSET, listed] = base_offset
                batches[CODEC, listed] = attributes & 7
                batches[COUNT, listed] = count
                listed += 1
            next_offset = last_offset + 1
        at += length
    return next_offset, listed


@kernel
def fold_runs(found: Longs, n: int, runs: Longs) -> int:
    """Join records with consecutive sequences of one key into `runs`; their number."""
    folded = 0
    key = np.int64(-1)
    expected = np.int64(-1)
    for column in range(n):
        if found[KEY, column] != key or found[SEQUENCE, column] != expected:
            key = found[KEY, column]
            expected = found[SEQUENCE, column]
            runs[PRODUCER, folded] = key % PRODUCERS_OF_KEY
            runs[TOPIC, folded] = key // PRODUCERS_OF_KEY // PARTITIONS_OF_KEY
            runs[PARTITION, folded] = key // PRODUCERS_OF_KEY % PARTITIONS_OF_KEY
            runs[FIRST, folded] = expected
            runs[RUN_LENGTH, folded] = 0
            folded += 1
        runs[RUN_LENGTH, folded - 1] += 1
        expected += 1
    return folded
