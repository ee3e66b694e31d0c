"""The codecs against data of other programs, and against invalid data."""

import gzip
import random

import cramjam
import pytest
from batch_builders import codecs
from captures import NAMES, capture
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log import compression
from twinlog.kafka.log.compression import SNAPPY_JAVA_MAGIC, Codec, TooLong, compress, decompress

CODED = [codec for codec in Codec if codec is not Codec.NONE]


def back(codec: Codec, data: bytes | memoryview, limit: int = 1 << 20) -> bytes:
    return bytes(decompress(codec, memoryview(data), limit))


@given(codecs, st.binary(max_size=300), st.sampled_from([1, 1, 200, 1500]))
def test_compressed_data_decompresses_to_the_same_bytes(
    codec: Codec, data: bytes, times: int
) -> None:
    """Goal: nothing at all, one block, and several."""
    assert back(codec, bytes(compress(codec, data * times))) == data * times


@pytest.mark.parametrize("name", NAMES)
def test_data_of_real_clients_and_brokers_is_decompressed(name: str) -> None:
    """Goal: librdkafka's and Java's framing of each codec."""
    log = capture(name)
    for header in log.headers:
        records = header.records(log.buffer)
        plain = decompress(header.codec, records)
        assert back(header.codec, bytes(compress(header.codec, plain)), 1 << 27) == plain


def test_both_framings_of_snappy_are_in_the_captures() -> None:
    """Goal: the test above covers both framings."""
    starts = {
        bytes(header.records(log.buffer)[:8]) == SNAPPY_JAVA_MAGIC
        for log in (capture("client-snappy"), capture("broker-snappy"))
        for header in log.headers
        if header.codec is Codec.SNAPPY
    }
    assert starts == {True, False}


def test_gzip_is_compatible_with_the_standard_library() -> None:
    """Goal: an independent decoder."""
    assert gzip.decompress(bytes(compress(Codec.GZIP, b"abc" * 999))) == b"abc" * 999
    assert back(Codec.GZIP, gzip.compress(b"abc" * 999)) == b"abc" * 999


def test_incompressible_lz4_blocks_are_stored() -> None:
    """Goal: noise of several blocks, and of a broken one."""
    noise = random.Random(1).randbytes(200_001)
    assert back(Codec.LZ4, bytes(compress(Codec.LZ4, noise))) == noise
    assert bytes(cramjam.lz4.decompress(compress(Codec.LZ4, noise))) == noise


@pytest.mark.parametrize("codec", CODED)
def test_decompression_bombs_are_refused_at_the_bound(codec: Codec) -> None:
    """Goal: small data that grows is refused at the bound; just below it is read."""
    bomb = bytes(compress(codec, bytes(3_000_000)))
    with pytest.raises(TooLong, match="decompresses to"):
        back(codec, bomb, 2_999_999)
    assert len(back(codec, bomb, 3_000_000)) == 3_000_000


def test_a_snappy_block_with_an_excessive_size_is_refused() -> None:
    """Goal: 4 GB are not allocated because five bytes say so."""
    with pytest.raises(TooLong):
        decompress(Codec.SNAPPY, memoryview(b"\xff\xff\xff\xff\x0fabc"))
    assert compression.MAX_DECOMPRESSED < 1 << 30


@pytest.mark.parametrize("codec", CODED)
@pytest.mark.parametrize("data", [b"", b"\0", b"nonsense", b"\xff" * 50, bytes(50)])
def test_arbitrary_bytes_are_reported_as_corrupt(codec: Codec, data: bytes) -> None:
    """Goal: nonsense gives one documented error, or nothing for no data."""
    try:
        assert back(codec, data) in (b"", bytes(len(data)))
    except CorruptBatch as error:
        assert codec.name.lower() in str(error)  # noqa: PT017 (either is right)


@pytest.mark.parametrize(
    "blocks",
    [b"\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x09abc", b"\0\0\0\x03\xff\xff\xff"],
)
def test_invalid_snappy_block_lengths_are_corrupt(blocks: bytes) -> None:
    """Goal: the framing's own lengths are checked before they are used."""
    framed = bytes(compress(Codec.SNAPPY, b"abc")) + blocks
    with pytest.raises(CorruptBatch, match="snappy"):
        back(Codec.SNAPPY, framed)


@pytest.mark.parametrize("codec", CODED)
def test_truncated_data_is_corrupt(codec: Codec) -> None:
    """Goal: cut data does not give the part that was there."""
    data = bytes(compress(codec, random.Random(2).randbytes(5000)))
    for cut in (len(data) - 1, len(data) // 2, 20):
        with pytest.raises(CorruptBatch):
            back(codec, data[:cut])


def test_uncompressed_data_is_not_copied() -> None:
    """Goal: uncompressed data stays in its buffer."""
    data = memoryview(b"abc")
    assert decompress(Codec.NONE, data) is data
