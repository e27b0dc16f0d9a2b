from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from random import Random

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import DecodedTooLarge, FormatError, InvalidField, TruncatedInput, UnsupportedFormat
from llog.formats.records.compression import SNAPPY_BLOCKS_MAX, XERIAL_BLOCK_BYTES, XERIAL_MAGIC, compress, decompress
from llog.formats.records.record_batch import Codec
from tests.unit.formats.record_strategies import examples

SOURCE = "memory://bucket/blob"
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
MIB = 1024 * 1024
SAMPLE = b"".join(b"line %d of some text\n" % i for i in range(4000)) + Random(3).randbytes(5000)

OTHERS: dict[Codec, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    Codec.GZIP: (gzip.compress, gzip.decompress),
    Codec.LZ4: (lz4.frame.compress, lz4.frame.decompress),
    Codec.ZSTD: (zstandard.ZstdCompressor().compress, lambda data: zstandard.ZstdDecompressor().decompress(data)),
}


def xerial(*blocks: bytes, version: int = 1) -> bytes:
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return struct.pack(">8sii", XERIAL_MAGIC, version, 1) + framed


@examples(40)
@given(st.sampled_from(Codec), st.one_of(st.binary(max_size=300), st.integers(0, 200_000).map(lambda n: b"ab" * n)))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data), SOURCE)) == data


@pytest.mark.parametrize("codec", COMPRESSING)
def test_any_buffer_can_be_compressed_and_decompressed(codec: Codec) -> None:
    packed = bytes(compress(codec, memoryview(bytearray(SAMPLE))[10:]))
    assert len(packed) < len(SAMPLE) / 3
    assert bytes(decompress(codec, memoryview(b"xx" + packed)[2:], SOURCE)) == SAMPLE[10:]


@pytest.mark.parametrize("codec", OTHERS)
def test_other_libraries_read_what_we_write_and_we_what_they_write(codec: Codec) -> None:
    theirs, back = OTHERS[codec]
    assert back(bytes(compress(codec, SAMPLE))) == SAMPLE
    assert bytes(decompress(codec, theirs(SAMPLE), SOURCE)) == SAMPLE


@pytest.mark.parametrize("codec", OTHERS)
def test_several_streams_in_a_row_are_read_as_one(codec: Codec) -> None:
    theirs, _ = OTHERS[codec]
    assert bytes(decompress(codec, theirs(b"one") + theirs(b"") + theirs(b"two"), SOURCE)) == b"onetwo"


def test_streaming_writers_that_do_not_tell_the_size_are_read() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    assert bytes(decompress(Codec.ZSTD, stream.compress(SAMPLE) + stream.flush(), SOURCE)) == SAMPLE
    linked = lz4.frame.compress(SAMPLE, block_linked=True, content_checksum=True, block_checksum=True)
    assert bytes(decompress(Codec.LZ4, linked, SOURCE)) == SAMPLE


def test_our_lz4_frames_have_independent_blocks() -> None:
    """Java clients refuse linked ones."""
    info = lz4.frame.get_frame_info(bytes(compress(Codec.LZ4, SAMPLE)))
    assert info["block_linked"] is False


def test_our_snappy_is_the_java_library_s_stream() -> None:
    packed = bytes(compress(Codec.SNAPPY, SAMPLE))
    assert packed.startswith(XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01")
    at, blocks = 16, []
    while at < len(packed):
        [length] = struct.unpack_from(">i", packed, at)
        blocks.append(snappy.uncompress(packed[at + 4 : at + 4 + length]))
        at += 4 + length
    assert b"".join(blocks) == SAMPLE
    assert {len(block) for block in blocks[:-1]} == {XERIAL_BLOCK_BYTES}


def test_a_bare_snappy_block_is_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, snappy.compress(SAMPLE), SOURCE)) == SAMPLE


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_exact(codec: Codec) -> None:
    packed = bytes(compress(codec, SAMPLE))
    assert len(decompress(codec, packed, SOURCE, bytes_max=len(SAMPLE))) == len(SAMPLE)
    with pytest.raises(DecodedTooLarge, match=SOURCE):
        decompress(codec, packed, SOURCE, bytes_max=len(SAMPLE) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_ends_at_the_limit_and_never_takes_more_memory(codec: Codec) -> None:
    bomb = bytes(compress(codec, bytes(64 * MIB)))
    assert len(bomb) < 4 * MIB
    tracemalloc.start()
    with pytest.raises(DecodedTooLarge) as caught:
        decompress(codec, bomb, SOURCE, bytes_max=8 * MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.source == SOURCE
    assert peak <= 8 * MIB + 128 * 1024 + 64 * (len(bomb) // XERIAL_BLOCK_BYTES + 1) * 30


def test_a_kilobyte_that_lies_about_its_size_takes_no_memory() -> None:
    lie = b"\xff\xff\xff\x7f" + bytes(1000)  # snappy: 256 MiB - 1
    tracemalloc.start()
    with pytest.raises(InvalidField, match="claim to hold"):
        decompress(Codec.SNAPPY, lie, SOURCE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_stream_cut_anywhere_is_an_error_that_names_its_source(codec: Codec) -> None:
    packed = bytes(compress(codec, SAMPLE[:3000]))
    for length in range(len(packed)):
        if codec is Codec.SNAPPY and length == 16:
            continue  # a stream without a block is whole, and empty
        if codec is Codec.SNAPPY and length == 0:
            continue
        with pytest.raises((TruncatedInput, InvalidField)) as caught:
            decompress(codec, packed[:length], SOURCE)
        assert caught.value.source == SOURCE


@pytest.mark.parametrize("codec", COMPRESSING)
def test_flipped_bits_give_bytes_or_a_format_error(codec: Codec) -> None:
    packed = bytes(compress(codec, SAMPLE[:2000]))
    sources = set()
    for at in range(min(len(packed), 400)):
        bad = bytearray(packed)
        bad[at] ^= 1 << at % 8
        try:
            decompress(codec, bad, SOURCE, bytes_max=MIB)
        except FormatError as error:
            sources.add(error.source)
    assert sources == {SOURCE}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (XERIAL_MAGIC, TruncatedInput),
        (xerial(b"x", version=0), UnsupportedFormat),
        (xerial() + b"\0\0", TruncatedInput),
        (xerial() + struct.pack(">i", 5), TruncatedInput),
        (xerial() + struct.pack(">i", 0), InvalidField),
        (xerial() + struct.pack(">i", -1), InvalidField),
        (xerial(b"\x05abc"), InvalidField),
        (xerial(b"\x00") + struct.pack(">ib", 1, 0) * SNAPPY_BLOCKS_MAX, InvalidField),
    ],
)
def test_lying_snappy_streams_are_refused(data: bytes, kind: type[FormatError]) -> None:
    with pytest.raises(kind) as caught:
        decompress(Codec.SNAPPY, data, SOURCE)
    assert caught.value.source == SOURCE
