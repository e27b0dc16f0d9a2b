"""Fuzz targets: shared blob, bytes batch, segment footer, metadata values, keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from llog.errors import InvalidArgument
from llog.formats.buffers import crc32c
from llog.formats.records.bytes_batch import decode_bytes_batch, encode_bytes_batch
from llog.formats.segment import footer_length, parse_footer
from llog.formats.shared_blob import parse_header, parse_shared_blob
from llog.formats.values import decode_value
from llog.log.keys import Keys
from tests import samples

SOURCE = "memory://fuzz/object"


def bytes_batch(data: bytes) -> None:
    decode_bytes_batch(data, SOURCE).to_list()


def bytes_batch_behind_its_checksum(data: bytes) -> None:
    """The checksum is made right, so that what is wrong lies in the fields."""
    if len(data) > 4:
        data = data[:-4] + crc32c(data[:-4]).to_bytes(4, "big")
    decode_bytes_batch(data, SOURCE).to_list()


def shared_blob(data: bytes) -> None:
    parse_shared_blob(data, SOURCE)


def shared_blob_header(data: bytes) -> None:
    parse_header(data, SOURCE)


def segment_footer(data: bytes) -> None:
    footer = parse_footer(data, len(data), SOURCE)
    footer.byte_range(0, 2**62)


def segment_tail(data: bytes) -> None:
    footer_length(data[-40:], len(data), SOURCE)


def values(data: bytes) -> None:
    """The first byte chooses the kind, so that every kind sees hostile JSON."""
    kinds = samples.VALUE_SAMPLES
    kind = type(kinds[data[0] % len(kinds)]) if data else type(kinds[0])
    decode_value(kind, data[1:], SOURCE)


def keys(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    tree = Keys()
    for parsed in (tree.parse(text), tree.parse_object(text)):
        assert parsed is None or parsed.kind
    with contextlib.suppress(InvalidArgument):
        Keys(text)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bytes_batch": bytes_batch,
    "bytes_batch_fields": bytes_batch_behind_its_checksum,
    "shared_blob": shared_blob,
    "shared_blob_header": shared_blob_header,
    "segment_footer": segment_footer,
    "segment_tail": segment_tail,
    "values": values,
    "keys": keys,
}

_BATCHES = [
    b"".join(bytes(b) for b in encode_bytes_batch(payloads))
    for payloads in ([b"a"], [b"", b"xyz", b""], [b"v" * n for n in range(20)])
]
SEEDS: dict[str, list[bytes]] = {
    "bytes_batch": _BATCHES,
    "bytes_batch_fields": _BATCHES,
    "shared_blob": [samples.blob_bytes()],
    "shared_blob_header": [samples.blob_bytes()],
    "segment_footer": [samples.segment_bytes(), samples.plain_segment_bytes(), samples.empty_segment_bytes()],
    "segment_tail": [samples.segment_bytes()],
    "values": [bytes([i]) + samples.encoded(value) for i, value in enumerate(samples.VALUE_SAMPLES)],
    "keys": [key.path.encode() for key in samples.metadata_keys()] + [name.encode() for name in samples.object_names()],
}
