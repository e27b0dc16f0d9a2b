from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import (
    ChecksumMismatch,
    DecodedTooLarge,
    FormatError,
    InvalidArgument,
    InvalidField,
    TruncatedInput,
    ValueTooLarge,
)
from llog.formats.records import batch_kernels, decode_kernels, encode_kernels, record_columns
from llog.formats.records import decode as records_decode
from llog.formats.records.compression import compress
from llog.formats.records.decode import decode_batches, decode_in_chunks, decode_records
from llog.formats.records.encode import encode_columns, encode_records, record_bytes
from llog.formats.records.kernel import kernel
from llog.formats.records.record_batch import (
    CONTROL,
    LOG_APPEND_TIME,
    BatchRule,
    Codec,
    TimestampType,
    parse_header,
    walk,
)
from llog.formats.records.record_columns import (
    BinaryColumn,
    Header,
    HeaderColumn,
    Ints,
    RecordColumns,
    columns_from_rows,
    frozen,
)
from llog.formats.warm_up import warm_up
from tests.unit.formats.record_strategies import as_columns, as_rows, examples, records
from tests.unit.formats.reference_records import (
    Record,
    decode_batch,
    encode_batch,
    encode_section,
    fix_crc,
    put_varint,
)

SOURCE = "memory://bucket/blob"
COMPACTED = BatchRule.COMPACTED
NOW_MS = 1_800_000_000_000


def renumbered(rows: list[Record], base_offset: int = 0) -> list[Record]:
    return [row._replace(offset=base_offset + i) for i, row in enumerate(rows)]


def compressed(rows: list[Record], codec: Codec, base_offset: int = 0) -> bytes:
    section = bytes(compress(codec, encode_section(rows, base_offset)))
    return encode_batch(rows, base_offset=base_offset, attributes=int(codec), section=section)


def section_batch(section: bytes, count: int = 1) -> bytes:
    """A batch whose records are these bytes, whatever they are."""
    return encode_batch([Record(i, NOW_MS, None, None, []) for i in range(count)], section=section)


def record(*fields: int | bytes) -> bytes:
    """A record of varints and bytes behind its attributes, with the length it deserves."""
    body = bytearray(1)
    for field in fields:
        if isinstance(field, int):
            put_varint(body, field)
        else:
            body += field
    output = bytearray()
    put_varint(output, len(body))
    return bytes(output + body)


@examples(60)
@given(records(), st.sampled_from(Codec))
def test_what_the_model_encodes_is_decoded(rows: list[Record], codec: Codec) -> None:
    rows = renumbered(rows, rows[0].offset)
    data = compressed(rows, codec, rows[0].offset)
    assert as_rows(decode_records(data, SOURCE)) == rows


@examples(60)
@given(records())
def test_we_encode_the_bytes_the_model_encodes(rows: list[Record]) -> None:
    rows = renumbered(rows)
    assert bytes(encode_columns(as_columns(rows))) == encode_batch(rows)


@examples(40)
@given(records(), st.sampled_from(Codec))
def test_records_come_back_through_every_codec(rows: list[Record], codec: Codec) -> None:
    data = encode_columns(as_columns(rows), codec=codec)
    assert parse_header(data, 0, SOURCE).codec is codec
    assert as_rows(decode_records(data, SOURCE)) == renumbered(rows)


@examples(40)
@given(st.lists(st.tuples(records(gaps=True, max_size=4), st.sampled_from(Codec)), max_size=5), st.integers(1, 400))
def test_many_batches_of_any_codec_are_decoded_in_one_go_and_in_chunks(
    groups: list[tuple[list[Record], Codec]], chunk_bytes: int
) -> None:
    data = b"".join(compressed(rows, codec, rows[0].offset) for rows, codec in groups)
    expected = [row for rows, _ in groups for row in rows]
    assert as_rows(decode_records(data, SOURCE, rule=COMPACTED)) == expected
    chunks = list(
        decode_in_chunks(data, walk(data, SOURCE, rule=COMPACTED), SOURCE, rule=COMPACTED, chunk_bytes=chunk_bytes)
    )
    assert [row for chunk in chunks for row in as_rows(chunk)] == expected
    assert all(len(chunk) for chunk in chunks)


@examples(40)
@given(records(gaps=True), st.integers(0, 5))
def test_a_batch_that_lost_records_keeps_its_offsets(rows: list[Record], tail: int) -> None:
    base = rows[0].offset - 3 if rows[0].offset > 3 else 0
    last_delta = rows[-1].offset - base + tail
    data = encode_batch(rows, base_offset=base, last_offset_delta=last_delta)
    columns = decode_records(data, SOURCE, rule=COMPACTED)
    assert as_rows(columns) == rows
    again = encode_columns(columns, base_offset=base, last_offset_delta=last_delta)
    assert bytes(again) == data


def test_chunks_keep_to_their_size_where_batches_allow() -> None:
    one = encode_records([b"v" * 1000], timestamps_ms=NOW_MS)
    data = bytes(one) * 10 + bytes(encode_records([b"w" * 1000] * 3, timestamps_ms=NOW_MS, codec=Codec.ZSTD)) * 2
    batches = walk(data, SOURCE)
    sizes = [len(chunk) for chunk in decode_in_chunks(data, batches, SOURCE, chunk_bytes=4 * len(one))]
    assert sizes == [4, 4, 2 + 3 - 3, 3, 3]
    assert [len(c) for c in decode_in_chunks(data, batches, SOURCE, chunk_bytes=1)] == [1] * 10 + [3, 3]


def test_log_append_time_is_every_record_s_time() -> None:
    rows = [Record(i, 1000 + i, None, b"v", []) for i in range(3)]
    columns = decode_records(
        encode_batch(rows, attributes=LOG_APPEND_TIME, max_timestamp=7777) + encode_batch(rows), "x"
    )
    assert columns.timestamps_ms.tolist() == [7777] * 3 + [1000, 1001, 1002]
    assert columns.timestamp_types.tolist() == [1, 1, 1, 0, 0, 0]


def test_control_batches_are_left_out_unless_asked_for() -> None:
    rows = [Record(0, 1000, b"k", b"v", [])]
    marker = encode_batch(rows, attributes=CONTROL)
    for data, left in (
        (marker, 0),
        (marker + encode_batch(rows) + marker, 1),
        (compressed(rows, Codec.ZSTD) + marker, 1),
    ):
        assert len(decode_records(data, SOURCE)) == left
        assert len(decode_records(data, SOURCE, skip_control=False)) == len(walk(data, SOURCE))


def test_empty_batches_hold_no_records() -> None:
    rows = [Record(5, 1000, None, b"v", [])]
    empty = bytearray(encode_batch(rows, base_offset=5)[:61])
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    data = fix_crc(empty) + encode_batch(rows, base_offset=5)
    assert as_rows(decode_records(data, SOURCE, rule=COMPACTED)) == rows
    assert len(decode_records(fix_crc(empty), SOURCE, rule=COMPACTED)) == 0


def test_a_wrong_checksum_is_found_before_anything_is_decoded() -> None:
    data = bytearray(encode_records([b"v"], timestamps_ms=NOW_MS))
    data[-1] ^= 1
    with pytest.raises(ChecksumMismatch):
        decode_records(data, SOURCE)
    decode_records(data[:-1] + b"\x00", SOURCE, verify=False)


def test_all_fields_of_an_encoded_batch_can_be_given() -> None:
    data = encode_columns(
        columns_from_rows([b"a", b"b"], timestamps_ms=[5, 3]),
        base_offset=40,
        partition_leader_epoch=2,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        transactional=True,
        control=True,
        producer_id=7,
        producer_epoch=8,
        base_sequence=9,
    )
    header = parse_header(data, 0, SOURCE)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (40, 41, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 8, 9)
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (5, 5, 2)
    assert header.is_transactional
    assert header.is_control
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_a_batch_without_producer_says_so() -> None:
    header = parse_header(encode_records([b"v"], timestamps_ms=1), 0, SOURCE)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.base_offset, header.partition_leader_epoch) == (0, -1)


BAD_SECTIONS: list[tuple[str, bytes, type[FormatError], str]] = [
    ("length passes the batch", b"\x28" + bytes(8), TruncatedInput, "ends inside"),
    ("negative length", b"\x01" + bytes(8), InvalidField, "not positive"),
    ("zero length", bytes(9), InvalidField, "not positive"),
    ("endless length", b"\xff" * 9, TruncatedInput, "ends inside"),
    ("length of 33 bits", b"\x80\x80\x80\x80\x10" + bytes(6), TruncatedInput, "ends inside"),
    ("timestamp of 65 bits", record(b"\xff" * 9 + b"\x02", 0, -1, -1, 0), TruncatedInput, "ends inside"),
    ("wrong offset delta", record(0, 1, -1, -1, 0), InvalidField, "offset delta"),
    ("negative offset delta", record(0, -1, -1, -1, 0), InvalidField, "offset delta"),
    ("key passes the record", record(0, 0, 4, -1, 0), InvalidField, "key passes"),
    ("key of 2 GiB", record(0, 0, 2**31 - 1, -1, 0), InvalidField, "key passes"),
    ("key length -2", record(0, 0, -2, -1, 0), InvalidField, "key passes"),
    ("value passes the record", record(0, 0, -1, 3, 0), InvalidField, "value passes"),
    ("value length -2", record(0, 0, -1, -2, 0), InvalidField, "value passes"),
    ("no header count", record(0, 0, -1, 1, b"x"), TruncatedInput, "ends inside"),
    ("negative header count", record(0, 0, -1, -1, -1), InvalidField, "more headers"),
    ("a billion headers", record(0, 0, -1, -1, 2**30), InvalidField, "more headers"),
    ("null header key", record(0, 0, -1, -1, 1, -1, -1), InvalidField, "header's key passes"),
    ("header key passes", record(0, 0, -1, -1, 1, 3, b"a", -1), InvalidField, "header's key passes"),
    ("header key no text", record(0, 0, -1, -1, 1, 1, b"\xff", -1), InvalidField, "not UTF-8"),
    ("header value passes", record(0, 0, -1, -1, 1, 1, b"k", 3), InvalidField, "header's value passes"),
    ("header value -2", record(0, 0, -1, -1, 1, 1, b"k", -2), InvalidField, "header's value passes"),
    ("record too long", record(0, 0, -1, -1, 0, b"\0\0"), InvalidField, "longer than its fields"),
    ("bytes behind", record(0, 0, -1, -1, 0) + b"\0", InvalidField, "bytes follow"),
    ("a record too few", record(0, 0, -1, -1, 0) * 2, InvalidField, "bytes follow"),
]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
@pytest.mark.parametrize(
    ("section", "kind", "words"), [row[1:] for row in BAD_SECTIONS], ids=[r[0] for r in BAD_SECTIONS]
)
def test_a_lying_record_is_refused_and_named(section: bytes, kind: type[FormatError], words: str, codec: Codec) -> None:
    rows = [Record(0, NOW_MS, None, None, [])]
    sound = encode_batch(rows)
    data = sound + encode_batch(rows, attributes=int(codec), section=bytes(compress(codec, section)))
    with pytest.raises(kind, match=words) as caught:
        decode_records(data, SOURCE)
    assert caught.value.source == SOURCE
    assert f"batch at byte {len(sound)}, record" in str(caught.value)


def test_offset_deltas_that_do_not_rise_are_refused_in_compacted_batches_too() -> None:
    for deltas in ((1, 1), (2, 1), (0, 5)):
        section = b"".join(record(0, delta, -1, -1, 0) for delta in deltas)
        rows = [Record(i, NOW_MS, None, None, []) for i in range(2)]
        with pytest.raises(InvalidField, match="offset delta"):
            decode_records(encode_batch(rows, section=section, last_offset_delta=4), SOURCE, rule=COMPACTED)


UTF8_EDGES = [
    b"\x7f", b"\x80", b"\xbf", b"\xc1\xbf", b"\xc2\x80", b"\xdf\xbf", b"\xdf", b"\xe0\x9f\xbf", b"\xe0\xa0\x80",
    b"\xe0\xa0",
    b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xef\xbf\xbf", b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf0\x90\x80", b"\xf0\x90\x80\x41", b"\xe2\x82\xac", b"\xc3\x28",
]  # fmt: skip


@examples(100)
@given(st.one_of(st.sampled_from(UTF8_EDGES), st.binary(max_size=6), st.text(max_size=4).map(str.encode)))
def test_header_keys_are_text_exactly_when_python_says_so(key: bytes) -> None:
    data = section_batch(record(0, 0, -1, -1, 1, len(key), key, -1))
    try:
        expected = [(key.decode(), None)]
    except UnicodeDecodeError:
        with pytest.raises(InvalidField, match="not UTF-8"):
            decode_records(data, SOURCE)
    else:
        assert decode_records(data, SOURCE).headers[0] == expected


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_cut_anywhere_is_a_format_error(codec: Codec) -> None:
    data = compressed(
        [Record(0, 5, b"key", b"value" * 3, [("h", b"x"), ("g", None)]), Record(1, 6, None, None, [])], codec
    )
    for length in range(1, len(data)):
        cut = bytearray(data[:length])
        if length >= 61:
            # A batch that is whole by its length field and its checksum, with records that end too early.
            cut[8:12] = (length - 12).to_bytes(4, "big")
            cut = bytearray(fix_crc(cut))
        with pytest.raises(FormatError) as caught:
            decode_records(cut, SOURCE)
        assert caught.value.source == SOURCE


def test_every_byte_may_be_anything() -> None:
    """Each byte of the records in turn becomes each value: the kernel refuses, or agrees with the model."""
    data = encode_batch([Record(0, 5, b"ke", b"val", [("h", b"x")]), Record(1, 6, None, b"", [])])
    sources = set()
    for at in range(61, len(data)):
        for value in range(256):
            bad = bytearray(data)
            bad[at] = value
            fixed = fix_crc(bad)
            try:
                rows = as_rows(decode_records(fixed, SOURCE))
            except FormatError as error:
                sources.add(error.source)
            else:
                assert rows == decode_batch(fixed)
    assert sources == {SOURCE}


def test_decoding_allocates_within_its_bound() -> None:
    """Worst case: records of 7 bytes."""
    rows = [Record(i, 5, None, None, []) for i in range(20_000)]
    data = b"".join(encode_batch(renumbered(rows[:50])) for _ in range(400))
    warm_up()
    tracemalloc.start()
    decode_records(data, SOURCE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(data) + 32 * len(rows) + 64 * 1024


def test_compressed_batches_together_keep_to_one_limit() -> None:
    one = compressed([Record(0, 5, None, bytes(100_000), [])], Codec.ZSTD)
    assert len(decode_records(one * 3, SOURCE, inflated_bytes_max=310_000)) == 3
    tracemalloc.start()
    with pytest.raises(DecodedTooLarge) as caught:
        decode_records(one * 30, SOURCE, inflated_bytes_max=310_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.source == SOURCE
    assert peak < 2_000_000


def test_a_column_beyond_32_bit_offsets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(encode_records([b"v" * 10] * 3, timestamps_ms=1))
    monkeypatch.setattr(records_decode, "BINARY_COLUMN_BYTES_MAX", 29)
    with pytest.raises(DecodedTooLarge, match="fewer batches") as caught:
        decode_records(data, SOURCE)
    assert caught.value.source == SOURCE
    monkeypatch.setattr(record_columns, "BINARY_COLUMN_BYTES_MAX", 29)
    with pytest.raises(ValueTooLarge):
        encode_records([b"v" * 10] * 3, timestamps_ms=1)


def test_a_foreign_walk_is_refused() -> None:
    data = bytes(encode_records([b"v"], timestamps_ms=1))
    with pytest.raises(InvalidArgument):
        decode_batches(data, walk(data * 2, SOURCE), SOURCE)


def test_rows_that_do_not_fit_together_are_refused() -> None:
    fields: list[dict[str, Any]] = [{"keys": [b"k"]}, {"headers": [[]]}, {"timestamps_ms": [1]}]
    for field in fields:
        with pytest.raises(InvalidArgument):
            encode_records([b"a", b"b"], **{"timestamps_ms": 1, **field})


@pytest.mark.parametrize(
    "fields",
    [
        {"values": ["text"]},
        {"values": [5]},
        {"values": [b"v"], "keys": ["text"]},
        {"values": [b"v"], "headers": [[(b"key", b"v")]]},
        {"values": [b"v"], "headers": [[("key",)]]},
        {"values": [b"v"], "headers": [[("key", "text")]]},
        {"values": [b"v"], "headers": [[("\ud800", b"v")]]},
        {"values": [b"v"], "timestamps_ms": ["soon"]},
        {"values": [b"v"], "timestamps_ms": 2**63},
        {"values": [b"v", b"w"], "timestamps_ms": [2**63 - 1, -(2**63)]},
        {"values": []},
        {"values": [np.zeros(2, np.int64).data]},
    ],
)
def test_rows_of_other_types_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        encode_records(**{"timestamps_ms": 1, **fields})  # type: ignore[arg-type]


def test_any_bytes_like_object_is_a_value() -> None:
    data = encode_records([bytearray(b"a"), memoryview(b"bc"), None], timestamps_ms=1)  # type: ignore[list-item]
    assert decode_records(data, SOURCE).values.tolist() == [b"a", b"bc", None]


def test_columns_with_unsound_offsets_are_refused() -> None:
    good = columns_from_rows([b"a", b"b"], headers=[[("k", b"v")], []], timestamps_ms=1)

    def ints(*values: int) -> Ints:
        return frozen(np.array(values, np.int32))

    def changed(**fields: Any) -> RecordColumns:
        names = ("offsets", "timestamps_ms", "timestamp_types", "keys", "values", "headers")
        return RecordColumns(**{name: fields.get(name, getattr(good, name)) for name in names})

    headers = good.headers
    for bad in (
        changed(values=BinaryColumn(ints(0, 5, 2), good.values.data)),
        changed(values=BinaryColumn(ints(0, 1, 3), good.values.data)),
        changed(keys=BinaryColumn(ints(-1, 1, 2), good.values.data)),
        changed(headers=HeaderColumn(ints(0, 2, 2), headers.keys, headers.values)),
        changed(headers=HeaderColumn(ints(1, 0, 1), headers.keys, headers.values)),
        changed(headers=HeaderColumn(ints(0, 1, 1), BinaryColumn(ints(0, 9), NOTHING_READ), headers.values)),
    ):
        with pytest.raises(InvalidArgument, match="row"):
            encode_columns(bad)
    with pytest.raises(InvalidArgument):
        changed(values=BinaryColumn(ints(0, 1), good.values.data))
    with pytest.raises(InvalidArgument):
        BinaryColumn(ints(0, 1, 2, 2, 2, 2, 2, 2, 2, 2), good.values.data, frozen(np.zeros(1, np.uint8)))


NOTHING_READ = frozen(np.zeros(3, np.uint8))


def two_records_with_a_gap() -> RecordColumns:
    rows = [Record(7, 1, None, b"v", []), Record(9, 1, b"", b"w", [])]
    return decode_records(encode_batch(rows, base_offset=5), SOURCE, rule=COMPACTED)


def test_offsets_outside_the_range_given_are_refused() -> None:
    columns = decode_records(
        encode_batch([Record(7, 1, None, b"v", []), Record(9, 1, None, b"v", [])], base_offset=5), "x", rule=COMPACTED
    )
    for base, last_delta in ((8, 5), (5, 3), (-1, 20), (0, 2**31)):
        with pytest.raises(InvalidArgument):
            encode_columns(columns, base_offset=base, last_offset_delta=last_delta)


def test_a_batch_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueTooLarge):
        encode_records([bytes(1024 * 1024)] * 128, timestamps_ms=1)


def test_picked_rows_are_encoded_like_columns_of_those_rows() -> None:
    values, keys = [b"a", None, b"c", b"dd"], [None, b"k1", b"", b"k3"]
    headers: list[list[Header]] = [[("a", b"1")], [], [("b", None), ("c", b"2")], []]
    columns = columns_from_rows(values, keys=keys, headers=headers, timestamps_ms=[40, 30, 20, 10])
    for picked in ([3, 0, 2], [1], [2, 2, 0]):
        alone = columns_from_rows(
            [values[row] for row in picked],
            keys=[keys[row] for row in picked],
            headers=[headers[row] for row in picked],
            timestamps_ms=[columns.timestamps_ms[row] for row in picked],
        )
        assert bytes(encode_columns(columns, rows=np.array(picked))) == bytes(encode_columns(alone))
    for missing in (-1, 4):
        with pytest.raises(InvalidArgument, match="record 1: its row does not exist"):
            encode_columns(columns, rows=np.array([0, missing]))


def test_columns_know_their_rows() -> None:
    columns = decode_records(
        encode_batch([Record(7, 1, None, b"v", []), Record(9, 1, b"", b"w", [])], base_offset=5), "x", rule=COMPACTED
    )
    assert [columns.row_of(offset) for offset in (0, 7, 8, 9, 10)] == [0, 0, 1, 1, 2]
    assert columns.keys.tolist() == [None, b""]
    with pytest.raises(ValueError, match="read-only"):
        columns.offsets[0] = 1


def test_kernels_are_compiled_for_one_kind_of_arguments() -> None:
    """Whatever the buffers are: a second compilation would stop a server for seconds."""
    for buffer in (bytes, bytearray, memoryview):
        data = buffer(bytes(encode_records([b"v"], keys=[None], timestamps_ms=1, codec=Codec.ZSTD)) * 2)
        columns = decode_records(data, SOURCE)
        encode_columns(columns, rows=np.argsort(columns.offsets)[1:])
        record_bytes(columns)
        encode_columns(
            columns_from_rows([b"v", None], keys=[b"", None], headers=[None, [("a", None)]], timestamps_ms=1)
        )
    kernels = [
        batch_kernels.count_batches,
        batch_kernels.read_headers,
        decode_kernels.measure,
        decode_kernels.fill,
        encode_kernels.measure_records,
        encode_kernels.write_records,
    ]
    if batch_kernels.CRC_AVAILABLE:
        kernels.append(batch_kernels.first_mismatch)
    assert {kernel.__name__: len(kernel.signatures) for kernel in kernels} == dict.fromkeys(  # type: ignore[attr-defined]
        (kernel.__name__ for kernel in kernels), 1
    )


def test_threads_decode_at_the_same_time() -> None:
    rows = [Record(i, 5 + i, b"k%d" % i, b"v" * i, [("h", b"%d" % i)]) for i in range(200)]
    data = encode_batch(rows)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: as_rows(decode_records(data, SOURCE)), range(16)))
    assert all(answer == rows for answer in answers)


def test_a_kernel_works_where_nothing_can_be_cached() -> None:
    names: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x\n", names)  # no file, so no place for a cache beside it
    assert kernel(names["twice"])(21) == 42
