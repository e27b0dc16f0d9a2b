"""Kernels over the records of whole batches: bytes to Arrow-shaped columns, and how many records fit a limit.

Two passes over the same bytes: `measure` checks everything and adds up sizes, `fill` copies into buffers of exactly
those sizes and checks nothing. So no allocation depends on an unchecked count, and `fill` must only see bytes that
`measure` accepted. Call them through `decode`. `sum_batches` and `cut` check as `measure` does, and are called through
`cut`.

A record: varint length · i8 attributes · varlong timestamp delta · varint offset delta · varint key length · key ·
varint value length · value · varint header count · (varint key length · key · varint value length · value)…
Varints are zigzag; a length of -1 is null, which a header's key cannot be.
"""

# The type of an int inside a kernel is the one that numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import copy_bytes, inlined, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

# The rows of `BatchColumns.fields` that are read here.
_POSITION = 0
_LENGTH = 1
_BASE_OFFSET = 2
_ATTRIBUTES = 5
_LAST_OFFSET_DELTA = 6
_BASE_TIMESTAMP = 7
_MAX_TIMESTAMP = 8
_RECORD_COUNT = 12
_HEADER = 61
_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_CONTROL = 0x20

# Faults that `measure` returns; `decode` has the messages.
SOUND = 0
ENDS_EARLY = 1
RECORD_LENGTH = 2
OFFSET_DELTA = 3
KEY_LENGTH = 4
VALUE_LENGTH = 5
HEADER_COUNT = 6
HEADER_KEY_LENGTH = 7
HEADER_KEY_TEXT = 8
HEADER_VALUE_LENGTH = 9
RECORD_REST = 10
BATCH_REST = 11

# Indexes of the sums that `measure` returns.
RECORDS = 0
KEY_BYTES = 1
VALUE_BYTES = 2
HEADERS = 3
HEADER_KEY_BYTES = 4
HEADER_VALUE_BYTES = 5
KEY_NULLS = 6
VALUE_NULLS = 7
HEADER_VALUE_NULLS = 8
SUMS = 9

# Indexes of a summary that `walk_produced` fills.
BAD_RECORD = 0
OLDEST = 1
NEWEST = 2
NULL_KEY = 3
VALUES = 4
SUMMARY = 5
NO_TIMESTAMP = -1

# Why `cut` stopped.
ALL_TAKEN = 0
RECORD_TOO_MANY = 1
BATCHES_TOO_LONG = 2
AT_COMPRESSED = 3
AT_UNSOUND = 4

# Indexes of what `cut` returns, in the order of `cut.Counted`.
CUT_RECORDS = 0
CUT_RECORD_BYTES = 1
CUT_NEXT_OFFSET = 2
CUT_FIRST_BATCH = 3
CUT_FIRST_BEGIN = 4
CUT_FIRST_END = 5
CUT_FIRST_RECORDS = 6
CUT_WHOLE_BEGIN = 7
CUT_WHOLE_END = 8
CUT_LAST_BATCH = 9
CUT_LAST_BEGIN = 10
CUT_LAST_END = 11
CUT_LAST_RECORDS = 12
CUT_LAST_DELTA = 13
CUT_FIELDS = 14


@inlined
def _varint(data: Bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    """(value, position after it); the position is -1 if the number reaches past the end or has more than `bits`."""
    if at >= end:
        return 0, -1
    byte = np.int64(data[at])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = byte & 0x7F
    shift = 7
    while True:
        at += 1
        if at >= end:
            return 0, -1
        byte = np.int64(data[at])
        room = bits - shift
        if room < 7 and byte >> room != 0:
            return 0, -1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), at + 1
        shift += 7


@inlined
def _is_text(data: Bytes, at: int, end: int) -> bool:
    """Whether the bytes are UTF-8: shortest forms only, no surrogates, nothing above U+10FFFF."""
    while at < end:
        lead = np.int64(data[at])
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
        if at + more > end:
            return False
        second = np.int64(data[at])
        low = 0xA0 if lead == 0xE0 else (0x90 if lead == 0xF0 else 0x80)
        high = 0x9F if lead == 0xED else (0x8F if lead == 0xF4 else 0xBF)
        if second < low or second > high:
            return False
        for i in range(1, more):
            if data[at + i] & 0xC0 != 0x80:
                return False
        at += more
    return True


@inlined
def _measure_headers(data: Bytes, at: int, end: int, sums: Longs) -> tuple[int, int]:
    """(fault, position after the headers)."""
    count, at = _varint(data, at, end, 32)
    if at < 0:
        return ENDS_EARLY, at
    if count < 0 or count > (end - at) // 2:
        return HEADER_COUNT, at
    sums[HEADERS] += count
    for _ in range(count):
        length, at = _varint(data, at, end, 32)
        if at < 0:
            return ENDS_EARLY, at
        if length < 0 or length > end - at:
            return HEADER_KEY_LENGTH, at
        if not _is_text(data, at, at + length):
            return HEADER_KEY_TEXT, at
        sums[HEADER_KEY_BYTES] += length
        at += length
        length, at = _varint(data, at, end, 32)
        if at < 0:
            return ENDS_EARLY, at
        if length < -1 or length > end - at:
            return HEADER_VALUE_LENGTH, at
        if length < 0:
            sums[HEADER_VALUE_NULLS] += 1
        else:
            sums[HEADER_VALUE_BYTES] += length
            at += length
    return SOUND, at


@inlined
def _measure_record(data: Bytes, at: int, end: int, sums: Longs) -> tuple[int, int]:
    """(fault, offset delta) of the record whose body is `at` … `end`."""
    _, at = _varint(data, at + 1, end, 64)
    if at < 0:
        return ENDS_EARLY, 0
    delta, at = _varint(data, at, end, 32)
    if at < 0:
        return ENDS_EARLY, 0
    length, at = _varint(data, at, end, 32)
    if at < 0:
        return ENDS_EARLY, 0
    if length < -1 or length > end - at:
        return KEY_LENGTH, 0
    if length < 0:
        sums[KEY_NULLS] += 1
    else:
        sums[KEY_BYTES] += length
        at += length
    length, at = _varint(data, at, end, 32)
    if at < 0:
        return ENDS_EARLY, 0
    if length < -1 or length > end - at:
        return VALUE_LENGTH, 0
    if length < 0:
        sums[VALUE_NULLS] += 1
    else:
        sums[VALUE_BYTES] += length
        at += length
    fault, at = _measure_headers(data, at, end, sums)
    if fault == SOUND and at != end:
        fault = RECORD_REST
    return fault, delta


@inlined
def _bounds(data: Bytes, fields: Longs, batch: int, plain: bool) -> tuple[int, int]:
    """Start of the records of a batch: after its header, or at 0 in a buffer of decompressed records."""
    if plain:
        start = fields[_POSITION, batch]
        return start + _HEADER, start + fields[_LENGTH, batch]
    return 0, data.size


@kernel
def measure(data: Bytes, fields: Longs, chosen: Longs, plain: bool, dense: bool, sums: Longs) -> tuple[int, int, int]:
    """Check the records of the chosen batches and add up their sizes: (fault, batch, record)."""
    for batch in chosen:
        at, end = _bounds(data, fields, batch, plain)
        count = fields[_RECORD_COUNT, batch]
        last_delta = fields[_LAST_OFFSET_DELTA, batch]
        previous = -1
        for record in range(count):
            length, at = _varint(data, at, end, 32)
            if at < 0:
                return ENDS_EARLY, batch, record
            if length < 1:
                return RECORD_LENGTH, batch, record
            if length > end - at:
                return ENDS_EARLY, batch, record
            fault, delta = _measure_record(data, at, at + length, sums)
            if fault != SOUND:
                return fault, batch, record
            if delta <= previous or delta > last_delta or (dense and delta != record):
                return OFFSET_DELTA, batch, record
            previous = delta
            at += length
        if at != end:
            return BATCH_REST, batch, count
        sums[RECORDS] += count
    return SOUND, 0, 0


@kernel
def walk_produced(data: Bytes, at: int, headers: Longs, summary: Longs, row: int) -> int:
    """Check the records of one producer's batch, which begin at `at` and end with the data; returns the fault.

    The batch's header is a row of `headers`. The same row of `summary` gets the record with the fault, the oldest and
    the newest timestamp (NO_TIMESTAMP if no record has one), the first record with a null key, or -1, and the bytes of
    the values.
    """
    sums = np.zeros(SUMS, np.int64)
    end = data.size
    base_timestamp = headers[row, _BASE_TIMESTAMP]
    oldest, newest, null_key = np.int64(NO_TIMESTAMP), np.int64(NO_TIMESTAMP), np.int64(-1)
    for record in range(headers[row, _RECORD_COUNT]):
        summary[row, BAD_RECORD] = record
        length, at = _varint(data, at, end, 32)
        if at < 0 or length > end - at:
            return ENDS_EARLY
        if length < 1:
            return RECORD_LENGTH
        sums[KEY_NULLS] = 0
        fault, delta = _measure_record(data, at, at + length, sums)
        if fault != SOUND:
            return fault
        if delta != record:
            return OFFSET_DELTA
        if sums[KEY_NULLS] != 0 and null_key < 0:
            null_key = record
        timestamp, _ = _varint(data, at + 1, end, 64)
        timestamp += base_timestamp
        if timestamp != NO_TIMESTAMP:
            if oldest == NO_TIMESTAMP:
                oldest, newest = timestamp, timestamp
            else:
                oldest, newest = min(oldest, timestamp), max(newest, timestamp)
        at += length
    summary[row, OLDEST], summary[row, NEWEST], summary[row, NULL_KEY] = oldest, newest, null_key
    summary[row, VALUES] = sums[VALUE_BYTES]
    if at != end:
        return BATCH_REST
    summary[row, BAD_RECORD] = -1
    return SOUND


@inlined
def _read(data: Bytes, at: int) -> tuple[int, int]:
    """A varint that `measure` has accepted."""
    byte = np.int64(data[at])
    at += 1
    raw = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        byte = np.int64(data[at])
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), at


@inlined
def _take(data: Bytes, at: int, offsets: Ints, target: Bytes, validity: Bytes, row: int) -> int:
    """Copy one nullable byte string into row `row` of a column; returns the position after it."""
    length, at = _read(data, at)
    filled = offsets[row]
    if length < 0:
        offsets[row + 1] = filled
        return at
    copy_bytes(target, filled, data, at, length)
    offsets[row + 1] = filled + length
    if validity.size:
        validity[row >> 3] |= np.uint8(1 << (row & 7))
    return at + length


@kernel
def fill(
    data: Bytes,
    fields: Longs,
    chosen: Longs,
    plain: bool,
    row: int,
    header: int,
    offsets: Longs,
    timestamps: Longs,
    timestamp_types: npt.NDArray[np.int8],
    key_offsets: Ints,
    key_data: Bytes,
    key_validity: Bytes,
    value_offsets: Ints,
    value_data: Bytes,
    value_validity: Bytes,
    header_lists: Ints,
    header_key_offsets: Ints,
    header_key_data: Bytes,
    header_value_offsets: Ints,
    header_value_data: Bytes,
    header_value_validity: Bytes,
) -> tuple[int, int]:
    """Copy measured records into the rows from `row` on, headers from `header` on: (next row, next header).

    A column is passed as offsets, data and validity bitmap (empty if no row is null).
    """
    no_validity = header_value_validity[:0]
    for batch in chosen:
        at, _ = _bounds(data, fields, batch, plain)
        base_offset = fields[_BASE_OFFSET, batch]
        append_time = fields[_ATTRIBUTES, batch] & _LOG_APPEND_TIME != 0
        timestamp = fields[_MAX_TIMESTAMP if append_time else _BASE_TIMESTAMP, batch]
        for _ in range(fields[_RECORD_COUNT, batch]):
            _, at = _read(data, at)
            delta, at = _read(data, at + 1)
            timestamps[row] = timestamp if append_time else timestamp + delta
            timestamp_types[row] = append_time
            delta, at = _read(data, at)
            offsets[row] = base_offset + delta
            at = _take(data, at, key_offsets, key_data, key_validity, row)
            at = _take(data, at, value_offsets, value_data, value_validity, row)
            headers, at = _read(data, at)
            for _ in range(headers):
                at = _take(data, at, header_key_offsets, header_key_data, no_validity, header)
                at = _take(data, at, header_value_offsets, header_value_data, header_value_validity, header)
                header += 1
            row += 1
            header_lists[row] = header
    return row, header


@inlined
def _record_end(data: Bytes, at: int, end: int, sums: Longs) -> tuple[int, int, int]:
    """(position after the record that begins at `at`, its offset delta, its bytes); the position is -1 if unsound."""
    length, at = _varint(data, at, end, 32)
    if at < 0 or length < 1 or length > end - at:
        return -1, 0, 0
    sums[:] = 0
    fault, delta = _measure_record(data, at, at + length, sums)
    if fault != SOUND:
        return -1, 0, 0
    size = sums[KEY_BYTES] + sums[VALUE_BYTES] + sums[HEADER_KEY_BYTES] + sums[HEADER_VALUE_BYTES]
    return at + length, delta, size


@inlined
def _batch_with(fields: Longs, offset: int) -> int:
    """The first batch that ends at `offset` or behind it; the number of batches if none does."""
    low, high = 0, fields.shape[1]
    while low < high:
        middle = (low + high) >> 1
        if fields[_BASE_OFFSET, middle] + fields[_LAST_OFFSET_DELTA, middle] < offset:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def sum_batches(data: Bytes, fields: Longs, sizes: Longs) -> int:
    """Fill `sizes` with the bytes of the records of each batch; returns why it stopped before the end."""
    sums = np.zeros(SUMS, np.int64)
    for batch in range(fields.shape[1]):
        sizes[batch] = 0
        if fields[_ATTRIBUTES, batch] & _CODEC != 0:
            return AT_COMPRESSED
        if fields[_ATTRIBUTES, batch] & _CONTROL != 0:
            continue
        at, end = _bounds(data, fields, batch, True)
        previous = np.int64(-1)
        for _ in range(fields[_RECORD_COUNT, batch]):
            at, delta, size = _record_end(data, at, end, sums)
            if at < 0 or delta <= previous or delta > fields[_LAST_OFFSET_DELTA, batch]:
                return AT_UNSOUND
            sizes[batch] += size
            previous = delta
        if at != end:
            return AT_UNSOUND
    return ALL_TAKEN


@kernel
def cut(
    data: Bytes,
    fields: Longs,
    sizes: Longs,
    first: int,
    stop: int,
    plain: bool,
    from_offset: int,
    record_bytes_max: int,
    batch_bytes_max: int,
    at_least_one: bool,
    result: Longs,
) -> int:
    """Count the records of the batches `first` … `stop` - 1 from `from_offset` on, as long as the next one fits: its
    key, value and headers into `record_bytes_max`, it and what was passed into `batch_bytes_max`.

    `sizes` is what `sum_batches` found, or empty: batches of a known size that are taken whole are not looked at.
    Returns why it stopped; `result` says where. An unsound batch, and a compressed one in a buffer of batches, ends the
    count before its first record. Control batches are passed without being counted.
    """
    sums = np.zeros(SUMS, np.int64)
    first = max(first, _batch_with(fields, from_offset))
    result[:] = 0
    result[CUT_NEXT_OFFSET] = from_offset
    result[CUT_FIRST_BATCH] = first
    result[CUT_LAST_BATCH] = stop
    records, record_bytes, passed, whole, reason = 0, 0, 0, first, ALL_TAKEN
    for batch in range(first, stop):
        attributes, base_offset = fields[_ATTRIBUTES, batch], fields[_BASE_OFFSET, batch]
        result[CUT_LAST_BATCH] = batch
        if plain and attributes & _CODEC != 0:
            reason = AT_COMPRESSED
            break
        at, end = _bounds(data, fields, batch, plain)
        if attributes & _CONTROL != 0:
            passed += end - at
            result[CUT_LAST_BATCH] = stop
            continue
        end_offset = base_offset + fields[_LAST_OFFSET_DELTA, batch]
        known = sizes.size > 0 and base_offset >= from_offset and end - at <= batch_bytes_max - passed
        # A batch that uses the limit up to the last byte is looked at: records without bytes may be at its end.
        if known and sizes[batch] < record_bytes_max - record_bytes:
            records += fields[_RECORD_COUNT, batch]
            record_bytes += sizes[batch]
            passed += end - at
            result[CUT_RECORDS], result[CUT_RECORD_BYTES], result[CUT_NEXT_OFFSET] = (
                records,
                record_bytes,
                end_offset + 1,
            )
            result[CUT_LAST_BATCH] = stop
            continue
        begin, skipped, taken, previous, next_offset = at, 0, 0, np.int64(-1), result[CUT_NEXT_OFFSET]
        for _ in range(fields[_RECORD_COUNT, batch]):
            behind, delta, size = _record_end(data, at, end, sums)
            if behind < 0 or delta <= previous or delta > fields[_LAST_OFFSET_DELTA, batch]:
                reason = AT_UNSOUND
                break
            if base_offset + delta < from_offset:
                skipped += 1
                begin = behind
            else:
                if records + taken > 0 or not at_least_one:
                    if record_bytes >= record_bytes_max or size > record_bytes_max - record_bytes:
                        reason = RECORD_TOO_MANY
                        break
                    if behind - at > batch_bytes_max - passed:
                        reason = BATCHES_TOO_LONG
                        break
                taken += 1
                record_bytes += size
                passed += behind - at
                next_offset = base_offset + delta + 1
            previous, at = delta, behind
        if reason == AT_UNSOUND or (reason == ALL_TAKEN and at != end):
            reason = AT_UNSOUND
            break
        records += taken
        next_offset = end_offset + 1 if reason == ALL_TAKEN else next_offset
        result[CUT_RECORDS], result[CUT_RECORD_BYTES], result[CUT_NEXT_OFFSET] = records, record_bytes, next_offset
        if reason != ALL_TAKEN:
            result[CUT_LAST_BEGIN], result[CUT_LAST_END] = begin, at
            result[CUT_LAST_RECORDS], result[CUT_LAST_DELTA] = taken, previous
            break
        if batch == first and (skipped > 0 or not plain):
            result[CUT_FIRST_BEGIN], result[CUT_FIRST_END], result[CUT_FIRST_RECORDS] = begin, end, taken
            whole = first + 1
        result[CUT_LAST_BATCH] = stop
    last = result[CUT_LAST_BATCH]
    if plain and last > whole:
        result[CUT_WHOLE_BEGIN] = fields[_POSITION, whole]
        result[CUT_WHOLE_END] = fields[_POSITION, last - 1] + fields[_LENGTH, last - 1]
    return reason
