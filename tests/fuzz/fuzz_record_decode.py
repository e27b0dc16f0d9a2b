"""Fuzz targets: the records of a batch behind a right checksum, and every codec."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llog.formats.arrow import to_arrow
from llog.formats.records.compression import compress, decompress
from llog.formats.records.cut import CutEnd, cut
from llog.formats.records.decode import decode_batches, decode_records
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import HEADER, BatchRule, Codec, walk
from llog.formats.records.record_columns import columns_from_rows

SOURCE = "memory://fuzz/object"
INFLATED_BYTES_MAX = 16 * 1024


def records(data: bytes) -> None:
    """Batches as they come, checksums left aside so that changed records are reached."""
    batches = walk(data, SOURCE, rule=BatchRule.COMPACTED)
    decode_batches(data, batches, SOURCE, rule=BatchRule.COMPACTED, inflated_bytes_max=INFLATED_BYTES_MAX)


def section(data: bytes) -> None:
    """The input is a count and the records of one batch, whose header tells the truth."""
    body = data[1:]
    count = max(1, min(data[0] if data else 1, len(body) // 7))
    header = HEADER.pack(0, 49 + len(body), -1, 2, 0, 0, count - 1, 5, 9, -1, -1, -1, count)
    columns = decode_records(header + body, SOURCE, verify=False)
    # Whatever was accepted can be written again and shown, unless its times are out of range.
    if int(columns.timestamps_ms.max()) - int(columns.timestamps_ms.min()) < 2**63:
        again = decode_records(encode_columns(columns), SOURCE)
        assert again.timestamps_ms.tolist() == columns.timestamps_ms.tolist()
        assert again.keys.tolist() == columns.keys.tolist()
        assert again.values.tolist() == columns.values.tolist()
    to_arrow(columns)


def cut_batches(data: bytes) -> None:
    """A cut holds the first of the records that the decoder finds, or a batch that the decoder refuses."""
    batches = walk(data, SOURCE, rule=BatchRule.COMPACTED)
    limit, most = data[-1] if data else 0, INFLATED_BYTES_MAX // 4
    taken = cut(data, batches, 0, SOURCE, record_bytes_max=limit, at_least_one=True, inflated_bytes_max=most)
    joined = b"".join(taken.batches)
    found = decode_records(joined, SOURCE, rule=BatchRule.COMPACTED, verify=False, inflated_bytes_max=most)
    assert len(found) == taken.records.record_count
    if taken.end is CutEnd.ALL:
        whole = decode_batches(data, batches, SOURCE, rule=BatchRule.COMPACTED, inflated_bytes_max=most)
        assert whole.offsets.tolist() == found.offsets.tolist()
        assert whole.values.tolist() == found.values.tolist()
    elif len(found) > 1:
        assert taken.records.byte_length <= limit


def inflate(codec: Codec, data: bytes) -> None:
    assert len(decompress(codec, data, SOURCE, bytes_max=INFLATED_BYTES_MAX)) <= INFLATED_BYTES_MAX


_COLUMNS = columns_from_rows(
    [b"value", None, b"", b"v" * 70],
    keys=[b"key", b"", None, b"k"],
    headers=[[("h", b"x"), ("ü", None)], [], None, [("", b"")]],
    timestamps_ms=[1_760_000_000_000, 5, 6, 1_760_000_000_000],
)
_PLAIN = bytes(encode_columns(_COLUMNS))
_SMALL = bytes(encode_columns(columns_from_rows([b"v"], timestamps_ms=5)))
_PACKED = {codec: bytes(encode_columns(_COLUMNS, codec=codec)) for codec in Codec if codec is not Codec.NONE}
_TEXT = b"some text that repeats, some text that repeats, some more of it " * 4

TARGETS: dict[str, Callable[[bytes], None]] = {
    "records": records,
    "records_section": section,
    "records_cut": cut_batches,
    **{f"decompress_{codec.name.lower()}": partial(inflate, codec) for codec in _PACKED},
}
SEEDS: dict[str, list[bytes]] = {
    "records": [_PLAIN, _PLAIN + _PLAIN, *_PACKED.values(), _PLAIN + _PACKED[Codec.SNAPPY] + _PLAIN],
    "records_cut": [_PLAIN, _SMALL * 3, _PLAIN + _PACKED[Codec.LZ4] + _PLAIN],
    "records_section": [
        b"\x04" + _PLAIN[61:],
        b"\x01" + bytes(encode_columns(columns_from_rows([b"v"], timestamps_ms=5)))[61:],
    ],
    **{
        f"decompress_{codec.name.lower()}": [bytes(compress(codec, text)) for text in (b"", b"short", _TEXT)]
        for codec in _PACKED
    },
}
