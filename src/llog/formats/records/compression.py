"""Kafka's compression codecs gzip, snappy, lz4 and zstd, compatible with Kafka clients.

- gzip, zstd: one stream or frame; several in a row are read as one.
- lz4: the frame format, written with independent blocks, because Java clients refuse linked ones.
- snappy: blocks of 32 KiB after the header of snappy-java, like Java clients; the raw block of librdkafka is read too.

Compressed input is untrusted: a kilobyte may claim to be a gigabyte. Output goes only into a buffer of at most
`bytes_max`, so a decompression bomb ends in `DecodedTooLarge` after that much work. (A zstd decoder also keeps a window
of at most 128 MiB, of which it touches only as much as it has decoded.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import cramjam
import numpy as np

from llog.errors import DecodedTooLarge, InvalidField, TruncatedInput, UnsupportedFormat
from llog.formats.buffers import Buffer
from llog.formats.records.record_batch import Codec
from llog.limits import KIB, RECORD_BATCH_DECODED_BYTES_MAX

# Blocks of one snappy stream: a whole batch in the smallest blocks that snappy-java allows (1 KiB).
SNAPPY_BLOCKS_MAX: Final = RECORD_BATCH_DECODED_BYTES_MAX // KIB

GZIP_LEVEL: Final = 6
LZ4_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_VERSION: Final = 1
XERIAL_BLOCK_BYTES: Final = 32 * 1024
_XERIAL_HEADER: Final = struct.Struct(">8sii")
_XERIAL_LENGTH: Final = struct.Struct(">i")

# Untouched memory is not committed, so a generous first guess is cheap and a second pass is rare.
_GUESS_BYTES_MIN: Final = 64 * 1024
_GUESS_RATIO: Final = 32
# Three compressed bytes become at most 64; input that claims more is refused before anything is allocated.
_SNAPPY_RATIO_MAX: Final = 32
_OUTPUT_FULL: Final = "failed to write whole buffer"
_ENDED_EARLY: Final = ("unexpected end", "incomplete", "truncated", "empty input")


def compress(codec: Codec, data: Buffer) -> Buffer:
    """`data` as the records section of a batch with this codec."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return memoryview(cramjam.gzip.compress(data, level=GZIP_LEVEL))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            stream = cramjam.lz4.Compressor(level=LZ4_LEVEL, content_checksum=False, block_linked=False)
            stream.compress(bytes(data))  # it takes no other buffer
            return memoryview(stream.finish())
        case Codec.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=ZSTD_LEVEL))


def decompress(
    codec: Codec, data: Buffer, source: str, *, bytes_max: int = RECORD_BATCH_DECODED_BYTES_MAX
) -> memoryview:
    """`data` decompressed, at most `bytes_max`. `source` names the origin in errors."""
    view = memoryview(data).cast("B")
    match codec:
        case Codec.NONE:
            if len(view) > bytes_max:
                raise _too_large(codec, source, bytes_max)
            return view
        case Codec.GZIP:
            return _inflate(codec, cramjam.gzip.decompress_into, view, source, bytes_max)
        case Codec.SNAPPY:
            if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
                return _decompress_xerial(view, source, bytes_max)
            return _decompress_snappy([view], source, bytes_max)
        case Codec.LZ4:
            return _inflate(codec, cramjam.lz4.decompress_into, view, source, bytes_max)
        case Codec.ZSTD:
            return _inflate(codec, cramjam.zstd.decompress_into, view, source, bytes_max)


def _inflate(
    codec: Codec, decompress_into: Callable[..., int], view: memoryview, source: str, bytes_max: int
) -> memoryview:
    """Decompress into a buffer of guessed size, and again into the largest allowed one if that was too small."""
    guess = min(bytes_max, max(_GUESS_BYTES_MIN, _GUESS_RATIO * len(view)))
    for size in (guess, bytes_max):
        output = np.empty(size, np.uint8)
        try:
            count = decompress_into(view, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise _bad_stream(codec, source, error) from None
            del output
        else:
            return output.data[:count]
    raise _too_large(codec, source, bytes_max)


def _compress_xerial(data: Buffer) -> bytearray:
    view = memoryview(data).cast("B")
    output = bytearray(_XERIAL_HEADER.pack(XERIAL_MAGIC, XERIAL_VERSION, XERIAL_VERSION))
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        output += _XERIAL_LENGTH.pack(len(block))
        output += block
    return output


def _decompress_xerial(view: memoryview, source: str, bytes_max: int) -> memoryview:
    if len(view) < _XERIAL_HEADER.size:
        raise TruncatedInput(source, f"snappy: {len(view)} bytes are too few for the stream's header")
    _, version, _ = _XERIAL_HEADER.unpack_from(view)
    if version < XERIAL_VERSION:
        raise UnsupportedFormat(source, f"snappy: stream version {version}")
    blocks: list[memoryview] = []
    at = _XERIAL_HEADER.size
    while at < len(view):
        if len(blocks) == SNAPPY_BLOCKS_MAX:
            raise InvalidField(source, f"snappy: more than {SNAPPY_BLOCKS_MAX} blocks")
        if len(view) - at < _XERIAL_LENGTH.size:
            raise TruncatedInput(source, "snappy: the stream ends inside a block's length")
        [length] = _XERIAL_LENGTH.unpack_from(view, at)
        at += _XERIAL_LENGTH.size
        if length < 1:
            raise InvalidField(source, f"snappy: block of {length} bytes")
        if length > len(view) - at:
            raise TruncatedInput(source, f"snappy: block of {length} bytes, {len(view) - at} left")
        blocks.append(view[at : at + length])
        at += length
    return _decompress_snappy(blocks, source, bytes_max)


def _decompress_snappy(blocks: list[memoryview], source: str, bytes_max: int) -> memoryview:
    """Every block states its size, so the output is allocated before anything is decompressed."""
    try:
        sizes = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
        for block, size in zip(blocks, sizes, strict=True):
            if size > _SNAPPY_RATIO_MAX * len(block):
                raise InvalidField(source, f"snappy: {len(block)} bytes claim to hold {size}")
        total = sum(sizes)
        if total > bytes_max:
            raise _too_large(Codec.SNAPPY, source, bytes_max)
        output = np.empty(total, np.uint8)
        at = 0
        for block, size in zip(blocks, sizes, strict=True):
            count = cramjam.snappy.decompress_raw_into(block, output.data[at : at + size])
            if count != size:
                raise InvalidField(source, f"snappy: a block of {size} bytes held {count}")
            at += size
    except cramjam.DecompressionError as error:
        raise _bad_stream(Codec.SNAPPY, source, error) from None
    return output.data


def _bad_stream(codec: Codec, source: str, error: Exception) -> InvalidField | TruncatedInput:
    text = str(error)
    kind = TruncatedInput if any(mark in text for mark in _ENDED_EARLY) else InvalidField
    return kind(source, f"{codec.name.lower()}: {text}")


def _too_large(codec: Codec, source: str, bytes_max: int) -> DecodedTooLarge:
    return DecodedTooLarge(source, f"{codec.name.lower()}: inflates to more than {bytes_max} bytes")
