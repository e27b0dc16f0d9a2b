from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import (
    BadMagic,
    ChecksumMismatch,
    FormatError,
    InvalidArgument,
    InvalidField,
    TruncatedInput,
    UnsupportedFormat,
)
from llog.formats.records.record_batch import (
    HEADER_BYTES,
    OFFSET_MAX,
    BatchColumns,
    BatchHeader,
    BatchRule,
    Codec,
    TimestampType,
    first_mismatch,
    parse_header,
    patch_offsets,
    verify_crcs,
    walk,
)
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX
from tests.unit.formats.record_strategies import examples
from tests.unit.formats.reference_records import HEADER, Record, decode_batch, encode_batch

SOURCE = "memory://bucket/blob"
PRODUCED, COMPACTED = BatchRule.PRODUCED, BatchRule.COMPACTED


def batch(count: int = 3, base_offset: int = 0, **fields: object) -> bytes:
    rows = [Record(base_offset + i, 1000 + i, b"k%d" % i, b"v" * i, []) for i in range(count)]
    return encode_batch(rows, base_offset=base_offset, **fields)  # type: ignore[arg-type]


def with_field(data: bytes, **changes: int) -> bytes:
    """The batch with some header fields changed, whatever that does to it."""
    header = BatchHeader._make(HEADER.unpack_from(data))._replace(**changes)
    return HEADER.pack(*header) + data[HEADER_BYTES:]


def all_headers(data: bytes, rule: BatchRule) -> list[BatchHeader]:
    headers, at = [], 0
    while at < len(data):
        header = parse_header(data, at, SOURCE, rule=rule)
        headers.append(header)
        at += header.length
    return headers


def test_importing_the_module_does_not_import_numba_or_pyarrow() -> None:
    code = "import sys, llog.formats.records.record_batch as b; b.parse_header(bytes.fromhex(sys.argv[1]), 0, 'x');"
    code += "print([m for m in ('numba', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, batch().hex()], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_header_has_every_field() -> None:
    data = batch(3, 7, attributes=0b1011100, producer=(11, 12, 13), max_timestamp=99)
    header = parse_header(data, 0, SOURCE)
    assert header == BatchHeader(7, len(data) - 12, -1, 2, header.crc, 0b1011100, 2, 1000, 99, 11, 12, 13, 3)
    assert (header.length, header.last_offset, header.codec) == (len(data), 9, Codec.ZSTD)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (True, False, True)
    verify_crcs(data, walk(data, SOURCE), SOURCE)


def test_walking_gives_the_headers_as_columns() -> None:
    parts = [batch(n, 10 * n, producer=(n, n + 1, n + 2)) for n in (1, 2, 5)]
    data = b"".join(parts)
    batches = walk(data, SOURCE)
    assert [batches.header(i) for i in range(len(batches))] == all_headers(data, PRODUCED)
    assert batches.position.tolist() == [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    assert batches.length.tolist() == [len(p) for p in parts]
    assert batches.last_offset.tolist() == [10, 21, 54]
    assert batches.record_count.tolist() == [1, 2, 5]
    assert batches.producer_id.tolist() == [1, 2, 5]
    assert batches.offset_count == 8
    verify_crcs(data, batches, SOURCE)


def test_flags_are_columns_too() -> None:
    batches = walk(b"".join(batch(1, attributes=flags) for flags in (0, 3, 0x08, 0x10, 0x20, 0x40)), SOURCE)
    assert batches.codec.tolist() == [0, 3, 0, 0, 0, 0]
    flags = [
        batches.is_log_append_time,
        batches.is_transactional,
        batches.is_control,
        batches.has_delete_horizon,
    ]
    assert [np.flatnonzero(flag).tolist() for flag in flags] == [[2], [3], [4], [5]]


def test_no_bytes_are_no_batches() -> None:
    batches = walk(b"", SOURCE)
    assert len(batches) == batches.offset_count == 0
    verify_crcs(b"", batches, SOURCE)
    assert len(patch_offsets(bytearray(), batches, 5, 0)) == 0


def test_patched_batches_have_consecutive_offsets_and_keep_their_checksums() -> None:
    data = bytearray(b"".join(batch(n) for n in (3, 1, 4)))
    before = walk(data, SOURCE)
    after = patch_offsets(data, before, 1000, 6)
    assert after.base_offset.tolist() == [1000, 1003, 1004]
    assert after.partition_leader_epoch.tolist() == [6, 6, 6]
    assert before.base_offset.tolist() == [0, 0, 0]
    assert after.fields.tolist() == walk(data, SOURCE, rule=COMPACTED).fields.tolist()
    verify_crcs(data, after, SOURCE)
    last = decode_batch(bytes(data[int(after.position[2]) :]))
    assert [r.offset for r in last] == [1004, 1005, 1006, 1007]


def test_patching_advances_by_offsets_not_by_records() -> None:
    sparse = [batch(2, last_offset_delta=9), batch(1, last_offset_delta=0)]
    data = bytearray(b"".join(sparse))
    assert patch_offsets(data, walk(data, SOURCE, rule=COMPACTED), 5, 0).base_offset.tolist() == [5, 15]


@pytest.mark.parametrize(("start", "epoch"), [(-1, 0), (OFFSET_MAX, 0), (OFFSET_MAX - 2, 0), (0, -2), (0, 2**31)])
def test_offsets_and_epochs_that_do_not_exist_are_refused(start: int, epoch: int) -> None:
    data = bytearray(batch(3))
    with pytest.raises(InvalidArgument):
        patch_offsets(data, walk(data, SOURCE), start, epoch)
    assert data == batch(3)


def test_the_last_offset_there_is_can_be_given() -> None:
    data = bytearray(batch(3))
    assert patch_offsets(data, walk(data, SOURCE), OFFSET_MAX - 3, -1).last_offset.tolist() == [OFFSET_MAX - 1]
    walk(data, SOURCE, rule=COMPACTED)


def test_read_only_and_foreign_buffers_are_refused() -> None:
    data = batch(3)
    batches = walk(data, SOURCE)
    with pytest.raises(InvalidArgument, match="read-only"):
        patch_offsets(data, batches, 0, 0)
    with pytest.raises(InvalidArgument, match="shorter than the buffer"):
        patch_offsets(bytearray(data[:-1]), batches, 0, 0)
    with pytest.raises(InvalidArgument, match="shorter than the buffer"):
        verify_crcs(data[:-1], batches, SOURCE)


def test_every_flipped_bit_behind_the_checksum_is_found() -> None:
    data = batch(2)
    for at in range(17, len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            with pytest.raises(FormatError) as caught:
                verify_crcs(bad, walk(bad, SOURCE), SOURCE)
            assert caught.value.source == SOURCE


def test_the_first_batch_with_a_wrong_checksum_is_named() -> None:
    data = bytearray(batch(2) * 3)
    size = len(data) // 3
    data[2 * size - 1] ^= 1
    data[3 * size - 1] ^= 1
    batches = walk(data, SOURCE)
    with pytest.raises(ChecksumMismatch, match=f"batch at byte {size}:") as caught:
        verify_crcs(data, batches, SOURCE)
    assert first_mismatch(memoryview(data), batches) == (1, caught.value.computed)
    assert first_mismatch(memoryview(batch(2)), walk(batch(2), SOURCE)) == (-1, 0)


def test_a_buffer_cut_anywhere_is_truncated_or_ends_between_batches() -> None:
    data = batch(2) + batch(1)
    for length in range(len(data)):
        if length in (0, len(batch(2))):
            continue
        with pytest.raises(TruncatedInput) as caught:
            walk(data[:length], SOURCE)
        assert caught.value.source == SOURCE


LIES: list[tuple[dict[str, int], BatchRule, type[FormatError]]] = [
    ({"magic": 0}, PRODUCED, UnsupportedFormat),
    ({"magic": 1}, PRODUCED, UnsupportedFormat),
    ({"magic": 3}, PRODUCED, BadMagic),
    ({"magic": -1}, PRODUCED, BadMagic),
    ({"batch_length": 48}, PRODUCED, InvalidField),
    ({"batch_length": 0}, PRODUCED, InvalidField),
    ({"batch_length": -1}, PRODUCED, InvalidField),
    ({"batch_length": -(2**31)}, PRODUCED, InvalidField),
    ({"batch_length": RECORD_BATCH_BYTES_MAX - 11}, PRODUCED, InvalidField),
    ({"batch_length": 2**31 - 1}, PRODUCED, InvalidField),
    ({"batch_length": RECORD_BATCH_BYTES_MAX - 12}, PRODUCED, TruncatedInput),
    ({"attributes": 5}, PRODUCED, UnsupportedFormat),
    ({"attributes": 7}, PRODUCED, UnsupportedFormat),
    ({"record_count": -1, "last_offset_delta": -2}, PRODUCED, InvalidField),
    ({"record_count": 0, "last_offset_delta": -1}, PRODUCED, InvalidField),
    ({"record_count": 2}, PRODUCED, InvalidField),
    ({"last_offset_delta": 3}, PRODUCED, InvalidField),
    ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, PRODUCED, InvalidField),
    ({"record_count": 100, "last_offset_delta": 99}, PRODUCED, InvalidField),
    ({"attributes": 1, "record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, PRODUCED, InvalidField),
    ({"last_offset_delta": 1}, COMPACTED, InvalidField),
    ({"last_offset_delta": -1, "record_count": 0}, COMPACTED, InvalidField),
    ({"base_offset": -1}, COMPACTED, InvalidField),
    ({"base_offset": OFFSET_MAX - 2}, COMPACTED, InvalidField),
]


@pytest.mark.parametrize(("changes", "rule", "kind"), LIES)
def test_a_lying_header_is_refused_by_parser_and_walker_alike(
    changes: dict[str, int], rule: BatchRule, kind: type[FormatError]
) -> None:
    data = batch(1) + with_field(batch(3), **changes)
    at = len(batch(1))
    with pytest.raises(kind, match=f"batch at byte {at}:") as parsed:
        parse_header(data, at, SOURCE, rule=rule)
    with pytest.raises(kind) as walked:
        walk(data, SOURCE, rule=rule)
    assert str(walked.value) == str(parsed.value)
    assert walked.value.source == SOURCE


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"base_offset": -1}, PRODUCED),
        ({"base_offset": OFFSET_MAX}, PRODUCED),
        ({"last_offset_delta": 2**31 - 1}, COMPACTED),
        ({"base_offset": OFFSET_MAX - 3}, COMPACTED),
        ({"record_count": 0, "last_offset_delta": 0}, COMPACTED),
        ({"attributes": -1 & ~7}, PRODUCED),
        ({"attributes": 4, "record_count": RECORD_BATCH_DECODED_BYTES_MAX // 7}, COMPACTED),
    ],
)
def test_what_only_looks_odd_is_read(changes: dict[str, int], rule: BatchRule) -> None:
    if changes.get("record_count", 0) > 3:
        changes["last_offset_delta"] = 2**31 - 1
    assert walk(with_field(batch(3), **changes), SOURCE, rule=rule).header(0)._asdict().items() >= changes.items()


hostile = st.lists(
    st.one_of(
        st.builds(lambda n: batch(n), st.integers(1, 3)),
        st.builds(
            lambda changes: with_field(batch(3), **changes),
            st.fixed_dictionaries(
                {},
                optional={
                    "batch_length": st.sampled_from([48, 49, 50, 60, 70, 81, 82, 2**31 - 1, -(2**31)]),
                    "magic": st.integers(-1, 3),
                    "attributes": st.integers(-(2**15), 2**15 - 1),
                    "last_offset_delta": st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1, -(2**31)]),
                    "record_count": st.sampled_from([-1, 0, 1, 2, 3, 4, 2**31 - 1, -(2**31)]),
                    "base_offset": st.sampled_from([-1, 0, OFFSET_MAX, OFFSET_MAX - 3, -(2**63)]),
                },
            ),
        ),
        st.binary(max_size=80),
    ),
    max_size=3,
).map(b"".join)


@examples(300)
@given(hostile, st.sampled_from(BatchRule))
def test_parser_and_walker_keep_the_same_rules(data: bytes, rule: BatchRule) -> None:
    try:
        expected: list[BatchHeader] | str = all_headers(data, rule)
    except FormatError as error:
        expected = f"{type(error).__name__} {error}"
    try:
        batches = walk(data, SOURCE, rule=rule)
        found: list[BatchHeader] | str = [batches.header(i) for i in range(len(batches))]
    except FormatError as error:
        found = f"{type(error).__name__} {error}"
    assert found == expected


def test_walking_allocates_at_most_twice_its_input() -> None:
    empty = with_field(batch(1)[:HEADER_BYTES], batch_length=49, record_count=0)
    data = empty * 10_000
    walk(empty, SOURCE, rule=COMPACTED)
    tracemalloc.start()
    batches = walk(data, SOURCE, rule=COMPACTED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(batches, BatchColumns)
    assert len(batches) == 10_000
    assert peak <= 2 * len(data) + 8192


def test_a_position_outside_the_buffer_is_an_error() -> None:
    with pytest.raises(TruncatedInput):
        parse_header(batch(), 10_000, SOURCE)
    with pytest.raises(InvalidArgument):
        parse_header(batch(), -1, SOURCE)
