"""What is written of the source's batches, against the same done record by record."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final
from unittest.mock import patch

import pytest
from batch_builders import THEN, batch, codecs, record, runs
from hypothesis import given
from hypothesis import strategies as st

from twinlog.engines.transactional import outputs
from twinlog.engines.transactional.outputs import Outputs, transformed
from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import DELETE_HORIZON, TRANSACTIONAL, batches, patched_header
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import (
    RawRecord,
    Record,
    decode,
    encode_tail,
    raw_records,
)
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.plan import Data, plan
from twinlog.mirror.record_converters import TransformError
from twinlog.mirror.record_transforms import FlowRecord
from twinlog.mirror.transform_chain import ChainStep, TransformChain, parse_transforms

REMOTE = TopicPartition("A.t", 3)


def data(start: int, end: int, codec: Codec = Codec.NONE, size: int = 1) -> Data:
    records = [record(at, THEN + at, b"v" * size, str(at).encode()) for at in range(start, end)]
    return data_of(batch(records, codec))


def data_of(whole: bytes) -> Data:
    (piece,) = plan(memoryview(whole), Offset(next(batches(memoryview(whole))).base_offset))
    assert isinstance(piece, Data)
    return piece


def written(chain: TransformChain, *pieces: Data) -> dict[TopicPartition, list[RawRecord]]:
    found = asyncio.run(transformed(chain, pieces, REMOTE))
    assert found.failure is None
    return {
        key: [one for each in built for one in raw_records(each.header, each.records)]
        for key, built in found.batches.items()
    }


def test_records_without_transforms_keep_all_but_their_offsets() -> None:
    for codec in Codec:
        (found,) = written(TransformChain(), data(7, 300, codec), data(300, 302)).items()
        assert found[0] == REMOTE
        assert [(one.timestamp, bytes(one.tail)) for one in found[1]] == [
            (THEN + at, encode_tail(str(at).encode(), b"v")) for at in range(7, 302)
        ]


def test_batches_are_bounded() -> None:
    small = [data(at, at + 3000) for at in (9, 3009, 6009)]
    pieces = [data(0, 9, size=300_000), *small]
    found = asyncio.run(transformed(TransformChain(), pieces, REMOTE))
    built = found.batches[REMOTE]
    assert sum(one.header.num_records for one in built) == 9009
    assert max(len(one.records) for one in built) < 900_000
    assert max(one.header.num_records for one in built) <= 4096


def test_records_are_dropped_and_routed() -> None:
    chain = parse_transforms(
        {
            "transforms": "f,r",
            "transforms.f.type": "Filter",
            "transforms.f.predicate": "p",
            "transforms.r.type": "InsertHeader",
            "transforms.r.header": "h",
            "transforms.r.value.literal": "x",
            "predicates": "p",
            "predicates.p.type": "RecordIsTombstone",
        }
    )
    (key, records), *_ = written(chain, data(0, 3)).items()
    assert key == REMOTE
    assert [decode(one).headers for one in records] == [(("h", b"x"),)] * 3
    tombstones = [record(at, value=None) for at in range(3)]
    whole = memoryview(batch(tombstones))
    (header,) = batches(whole)
    assert written(chain, Data(Offset(0), Offset(3), header, header.records(whole))) == {}


def test_records_before_one_that_fails_are_written() -> None:
    """Goal: an operator who skips that one loses no other."""
    chain = parse_transforms(
        {
            "transforms": "m",
            "transforms.m.type": "MaskField$Value",
            "transforms.m.fields": "a",
            "value.converter": "JsonConverter",
            "value.converter.schemas.enable": "false",
        }
    )
    values = [b'{"a":1}', b'{"a":2}', b"x", b'{"a":3}']
    whole = memoryview(batch([record(7 + at, value=value) for at, value in enumerate(values)]))
    (header,) = batches(whole)
    bad = Data(Offset(7), Offset(11), header, header.records(whole))
    found = asyncio.run(transformed(chain, [bad, data(11, 12)], REMOTE))
    assert found.failure is not None
    assert found.failure.offset == 9
    assert "offset 9 cannot be transformed: transform m: it is no JSON" in found.failure.reason
    (built,) = found.batches[REMOTE]
    assert built.header.num_records == 2


@pytest.mark.parametrize(
    "transforms",
    [
        {},
        {
            "transforms": "h",
            "transforms.h.type": "InsertHeader",
            "transforms.h.header": "h",
            "transforms.h.value.literal": "x",
        },
        {
            "transforms": "f, r",
            "transforms.f.type": "Filter",
            "transforms.f.predicate": "dropped",
            "transforms.r.type": "RegexRouter",
            "transforms.r.regex": ".*",
            "transforms.r.replacement": "other",
            "transforms.r.predicate": "routed",
            "predicates": "dropped, routed",
            "predicates.dropped.type": "RecordIsTombstone",
            "predicates.routed.type": "HasHeaderKey",
            "predicates.routed.name": "routed",
        },
    ],
)
def test_each_record_of_the_remote_partition_has_its_source(transforms: dict[str, str]) -> None:
    """Goal: the map is of the record itself, however batches are cut, merged and forwarded."""
    chain, pieces = parse_transforms(transforms), []
    for start, count in ((4, 3), (9, 700), (709, 2), (800, 5000)):
        records = [
            RawRecord(
                start + at,
                THEN,
                0,
                memoryview(
                    encode_tail(
                        str(start + at).encode(),
                        None if at % 7 == 3 else b"v" * 200,
                        (("routed", b""),) if at % 5 == 1 else (),
                    )
                ),
            )
            for at in range(count)
        ]
        whole = memoryview(batch(records))
        (header,) = batches(whole)
        pieces.append(Data(Offset(start), Offset(start + count), header, header.records(whole)))
    found = asyncio.run(transformed(chain, pieces, REMOTE, mapped=REMOTE))
    keys = [
        int(decode(raw).key or b"")
        for built in found.batches[REMOTE]
        for raw in raw_records(built.header, built.records)
    ]
    assert keys == [offset for start, end in found.sources for offset in range(start, end)]
    assert len(keys) == 5705 if len(transforms) < 5 else len(keys) < 5000
    assert not asyncio.run(transformed(chain, pieces, REMOTE)).sources


# ---- against the oracle ------------------------------------------------------------------------

_WHEN = {
    "predicates": "topic, header, null",
    "predicates.topic.type": "TopicNameMatches",
    "predicates.topic.pattern": r"A\..*",
    "predicates.header.type": "HasHeaderKey",
    "predicates.header.name": "h",
    "predicates.null.type": "RecordIsTombstone",
}
_TRANSFORMS: Final = (
    {"type": "InsertHeader", "header": "n", "value.literal": "é"},
    {"type": "InsertHeader", "header": "h", "value.literal": "x"},
    {"type": "RegexRouter", "regex": r"A\.(.*)", "replacement": "B.$1"},
    {"type": "RegexRouter", "regex": r".*", "replacement": "__$0"},
    {"type": "Filter", "predicate": "topic"},
    {"type": "Filter", "predicate": "header"},
    {"type": "Filter", "predicate": "null"},
    {"type": "DropHeaders", "headers": "h"},
    {"type": "TimestampRouter", "timestamp.format": "ss"},
)
_PREDICATES: Final[Sequence[Mapping[str, str]]] = (
    {},
    {"predicate": "topic"},
    {"predicate": "topic", "negate": "true"},
    {"predicate": "header"},
    {"predicate": "null", "negate": "true"},
)


def chain_of(*picked: tuple[Mapping[str, str], Mapping[str, str]]) -> TransformChain:
    """Transforms in this order, each with its predicate."""
    if not picked:
        return TransformChain()
    values = {"transforms": ",".join(f"t{at}" for at in range(len(picked))), **_WHEN}
    for at, (transform, predicate) in enumerate(picked):
        for name, value in {**transform, **predicate}.items():
            values[f"transforms.t{at}.{name}"] = value
    return parse_transforms(values)


@st.composite
def chains(draw: st.DrawFn) -> TransformChain:
    """Draw up to three transforms with predicates, of which most are uniform."""
    one = st.tuples(st.sampled_from(_TRANSFORMS), st.sampled_from(_PREDICATES))
    return chain_of(*draw(st.lists(one, max_size=3)))


def simply(
    chain: TransformChain, pieces: Sequence[Data]
) -> tuple[dict[TopicPartition, list[Record]], int | None]:
    """What each record becomes by itself, by partition; and the offset of the first failure."""
    found: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
    for piece in pieces:
        for raw in raw_records(piece.header, piece.records):
            try:
                result = chain.apply(decode(raw), *REMOTE)
            except TransformError:
                return found, raw.offset
            if result is not None:
                topic, partition, *rest = result
                found[TopicPartition(topic, partition)].append(Record._make([0, *rest]))
    return found, None


def sent(found: Outputs) -> dict[TopicPartition, list[Record]]:
    """The records of a result, with the headers that batches are sent with; offsets are 0."""
    records: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
    for key, built in found.batches.items():
        for each in built:
            header = patched_header(
                each.header,
                each.records,
                ProducerId(7),
                ProducerEpoch(1),
                SequenceNumber(0),
                attributes=TRANSACTIONAL,
            )
            whole = memoryview(header + each.records)
            (parsed,) = batches(whole)
            assert parsed.end == len(whole)
            assert parsed.attributes & ~7 == TRANSACTIONAL
            assert parsed.forwardable
            decoded = [decode(raw) for raw in raw_records(parsed, parsed.records(whole))]
            assert parsed.max_timestamp == max(one.timestamp for one in decoded)
            records[key] += [one._replace(offset=0) for one in decoded]
    return records


@st.composite
def headed(draw: st.DrawFn) -> bytes:
    """Draw batches of records with headers, at consecutive offsets."""
    made, offset = [], draw(st.sampled_from([0, 1 << 40]))
    names, contents = st.sampled_from(["h", "x", "é"]), st.sampled_from([None, b"", b"1"])
    headers = st.lists(st.tuples(names, contents), max_size=2).map(tuple)
    for _ in range(draw(st.integers(1, 3))):
        records = []
        for _ in range(draw(st.sampled_from([1, 2, 3, 130]))):
            value = draw(st.sampled_from([None, b"", b"v"]))
            tail = encode_tail(b"k", value, draw(headers))
            records.append(RawRecord(offset, THEN + offset % 7, 0, memoryview(tail)))
            offset += 1
        made.append(batch(records, draw(codecs)))
    return b"".join(made)


@given(chain=chains(), whole=runs() | headed(), forwarded=st.sampled_from([0, 100, 1 << 16]))
def test_records_are_those_of_the_oracle(
    chain: TransformChain, whole: bytes, forwarded: int
) -> None:
    """Goal: any chain, codec and size: the same records in the same order, and the same failure.

    A chain that is applied to whole batches does what it does to each record.
    """
    first = next(batches(memoryview(whole))).base_offset
    pieces = [one for one in plan(memoryview(whole), Offset(first)) if isinstance(one, Data)]
    with patch.object(outputs, "_FORWARDED_BYTES", forwarded):
        found = asyncio.run(transformed(chain, pieces, REMOTE))
    expected, failed_at = simply(chain, pieces)
    assert sent(found) == expected
    assert (None if found.failure is None else found.failure.offset) == failed_at


@pytest.mark.parametrize("transform", _TRANSFORMS, ids=lambda transform: transform["type"])
@pytest.mark.parametrize("predicate", _PREDICATES, ids=" ".join)
def test_each_transform_is_that_of_the_oracle(
    transform: Mapping[str, str], predicate: Mapping[str, str]
) -> None:
    """Goal: records that differ in all that a transform could look at."""
    tails = [
        encode_tail(key, value, headers)
        for key in (None, b"k")
        for value in (None, b"null", b"v")
        for headers in ((), (("h", b"1"),), (("x", None), ("h", b""), ("h", b"2")))
    ]
    records = [
        RawRecord(at, THEN + 7000 * at, 0, memoryview(tail)) for at, tail in enumerate(tails)
    ]
    pieces = [data_of(batch(records, Codec.ZSTD))]
    for chain in (
        chain_of((transform, predicate)),
        chain_of((transform, predicate), (_TRANSFORMS[0], {})),
        chain_of((_TRANSFORMS[2], {}), (transform, predicate)),
        chain_of((_TRANSFORMS[1], {"predicate": "topic"}), (transform, predicate)),
    ):
        found = asyncio.run(transformed(chain, pieces, REMOTE))
        expected, failed_at = simply(chain, pieces)
        assert sent(found) == expected
        assert (None if found.failure is None else found.failure.offset) == failed_at


def test_which_chains_are_uniform() -> None:
    """Goal: the two ways of the test above are both taken."""

    def uniform(*picked: int, predicate: Mapping[str, str] = _PREDICATES[0]) -> bool:
        return chain_of(*((_TRANSFORMS[at], predicate) for at in picked)).is_uniform

    assert TransformChain().is_uniform
    assert uniform(0, 1, 2, 3, 4)
    assert uniform(0, 2, predicate=_PREDICATES[1])
    assert uniform(0, predicate=_PREDICATES[2])
    assert not uniform(0, predicate=_PREDICATES[3])
    assert not uniform(0, predicate=_PREDICATES[4])
    assert [uniform(0, at) for at in (5, 6, 7, 8)] == [False] * 4


ROUTE = parse_transforms(
    {
        "transforms": "r",
        "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.r.regex": "A",
        "transforms.r.replacement": "B",
    }
)


def large(start: int, end: int, codec: Codec, attributes: int = 0) -> Data:
    rows = range(start, end)
    records = [
        record(at, THEN + at, bytes([at % 256]) * 900 + str(at).encode() * 20) for at in rows
    ]
    return data_of(batch(records, codec, attributes=attributes))


@pytest.mark.parametrize("chain", [TransformChain(), ROUTE], ids=["none", "route"])
@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL, DELETE_HORIZON])
def test_batches_of_records_that_do_not_change_are_forwarded(
    chain: TransformChain, attributes: int
) -> None:
    """Goal: the source producer's bytes, in order with what is merged, and sound as they are sent.

    The bits of the source's attributes that a broker refuses or sets are cleared (`sent`).
    """
    big, bigger = (large(at, at + 200, Codec.NONE, attributes) for at in (10, 230))
    pieces = [data(0, 10), big, data(210, 220), data(220, 230), bigger]
    found = asyncio.run(transformed(chain, pieces, REMOTE))
    (built,) = found.batches.values()
    assert [one.header.num_records for one in built] == [10, 200, 20, 200]
    assert built[1].records == big.records
    assert built[3].records == bigger.records
    assert sent(found) == simply(chain, pieces)[0]


def test_small_and_large_batches_are_not_forwarded() -> None:
    """Goal: small ones would take a request each; a large one may be too large for its topic."""
    for piece, count in ((large(0, 50, Codec.NONE), 1), (large(0, 700, Codec.NONE), 2)):
        found = asyncio.run(transformed(TransformChain(), [piece, data(700, 701)], REMOTE))
        (built,) = found.batches.values()
        assert len(built) == count
        assert sent(found) == simply(TransformChain(), [piece, data(700, 701)])[0]


def test_a_forwarded_batch_that_is_altered_on_the_way_is_refused() -> None:
    """Goal: the checksum is the source producer's, brought up to date: a broker sees the damage."""
    big = large(0, 200, Codec.NONE)
    damaged = bytearray(big.records)
    damaged[5000] ^= 1
    piece = Data(big.start, big.end, big.header, memoryview(bytes(damaged)))
    found = asyncio.run(transformed(TransformChain(), [piece], REMOTE))
    with pytest.raises(CorruptBatch, match="checksum"):
        sent(found)


@pytest.mark.parametrize("tail", [b"\1\1\x01", b"\1\1\x02\x06h\1", b"\1\1\x02"])
def test_malformed_headers_are_refused_before_anything_is_added(tail: bytes) -> None:
    chain = parse_transforms(
        {
            "transforms": "h",
            "transforms.h.type": "InsertHeader",
            "transforms.h.header": "n",
            "transforms.h.value.literal": "x",
        }
    )
    piece = data_of(batch([record(7), RawRecord(8, THEN, 0, memoryview(tail))]))
    with pytest.raises(CorruptBatch):
        asyncio.run(transformed(chain, [piece], REMOTE))


@pytest.mark.parametrize("uniform", [False, True])
def test_a_defect_of_a_transform_fails_one_record(uniform: bool) -> None:
    """Goal: its partition is FAILED at the record, which is not skipped; the flow goes on."""

    def broken(record: FlowRecord) -> FlowRecord:
        if uniform or record.value.data == b"bad":
            raise ZeroDivisionError("of the secret 4711")
        return record

    values = [b"a", b"bad", b"c"]
    whole = memoryview(batch([record(7 + at, value=value) for at, value in enumerate(values)]))
    (header,) = batches(whole)
    pieces = [Data(Offset(7), Offset(10), header, header.records(whole))]
    found = asyncio.run(
        transformed(TransformChain([ChainStep("mine", broken, uniform)]), pieces, REMOTE)
    )
    assert found.failure is not None
    assert found.failure.offset == (7 if uniform else 8)
    assert "cannot be transformed: ZeroDivisionError in test_ou" in found.failure.reason
    assert "4711" not in found.failure.reason
    assert [one.value for one in sent(found)[REMOTE]] == ([] if uniform else [b"a"])
