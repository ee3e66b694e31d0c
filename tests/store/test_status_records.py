"""Records of `__mirror_status`: round trips, small, and any bytes."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.log.compression import Codec, compress
from twinlog.mirror.absence import Absence
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import NO_LOSSES, RecordLosses
from twinlog.mirror.states import State
from twinlog.store.json_fields import encode_json
from twinlog.store.state_records import MAX_REASON
from twinlog.store.status_records import (
    FetcherStatus,
    PartitionStatus,
    Status,
    ThrottleStatus,
    decode,
    encode,
    status_key,
)

text = st.text(max_size=20)
offsets = st.integers(-1, 2**63 - 1)
numbers = st.integers(0, 2**62)
losses = st.just(NO_LOSSES) | st.builds(RecordLosses, numbers, numbers, st.none() | text)
rows = st.builds(
    PartitionStatus,
    partition=st.builds(MirrorPartition, text, text, st.integers(0, 2**31 - 1)),
    state=st.sampled_from(State),
    source_end=offsets,
    source_last_stable=offsets,
    destination_end=offsets,
    records=st.integers(0, 2**62),
    bytes=st.integers(0, 2**62),
    reason=st.none() | text,
    lag_ms=st.none() | st.integers(0, 2**40),
    source_time_ms=st.none() | st.integers(0, 2**50),
    filled=st.tuples(*[numbers] * len(Absence)),
    mirrored_end=st.none() | offsets,
    gap_ms=st.just(0) | numbers,
    losses=losses,
    source_losses=losses,
)
statuses = st.builds(
    Status,
    state_partition=st.integers(0, 10_000),
    lane=text,
    node=text,
    time_ms=st.integers(0, 2**50),
    partitions=st.lists(rows, max_size=5).map(tuple),
    fetchers=st.lists(st.builds(FetcherStatus, text, *[numbers] * 4), max_size=3).map(tuple),
    throttles=st.lists(
        st.builds(ThrottleStatus, text, numbers, numbers, st.booleans()), max_size=3
    ).map(tuple),
)


@given(statuses)
def test_statuses_survive_encoding_and_decoding(status: Status) -> None:
    key, value = encode(status)
    found = decode(key, value)
    assert found == status
    assert [row.source_time_ms for row in found.partitions] == [
        row.source_time_ms for row in status.partitions
    ]
    assert key == status_key(status.state_partition)
    assert decode(key, None) is None


def test_the_time_of_last_contact_does_not_make_a_status_different() -> None:
    """The time of contact makes no status different, and rows of versions without it are read."""
    row = PartitionStatus(partition=MirrorPartition("m", "t", 0), state=State.MIRRORING)
    assert row == replace(row, source_time_ms=7)
    assert row != replace(row, source_end=7)
    body = {"version": 1, "lane": "l", "node": "n", "time_ms": 1}
    old = ["m", "t", 0, 2, 5, 5, 4, 1, 100, None, 7]
    value = bytes(compress(Codec.ZSTD, encode_json({**body, "partitions": [old]})))
    status = decode(b"1", value)
    assert status is not None
    (found,) = status.partitions
    assert (found.lag_ms, found.source_time_ms) == (7, None)
    assert found.filled == (0,) * len(Absence)
    assert (found.mirrored_end, found.gap_ms) == (None, 0)
    assert (found.losses, found.source_losses) == (NO_LOSSES, NO_LOSSES)


@pytest.mark.parametrize("counts", [[], [3], [3, 0, 0, 0, 0, 9]])
def test_filled_counts_of_other_versions_are_padded_or_cut(counts: list[int]) -> None:
    """Fewer reasons are padded with 0, reasons of a later version are left out."""
    added = [None, 0, 0, 0, None, 0, 0, None, "later"]
    row = ["m", "t", 0, 2, 5, 5, 4, 1, 100, None, 7, None, counts, *added]
    body = {"version": 1, "lane": "l", "node": "n", "time_ms": 1, "partitions": [row]}
    status = decode(b"1", bytes(compress(Codec.ZSTD, encode_json(body))))
    assert status is not None
    assert status.partitions[0].filled == (*counts, *(0,) * len(Absence))[: len(Absence)]


def test_a_status_of_a_thousand_partitions_is_small() -> None:
    """It is written each second, so the size matters: under 10 bytes for a partition."""
    partitions = tuple(
        PartitionStatus(
            partition=MirrorPartition("mirror", f"orders-{index // 10}", index % 10),
            state=State.MIRRORING,
            source_end=index * 1009,
            source_last_stable=index * 1009,
            destination_end=index * 1009,
        )
        for index in range(1000)
    )
    status = Status(state_partition=1, lane="l", node="n", time_ms=1, partitions=partitions)
    assert len(encode(status)[1]) < 10_000


def test_a_long_reason_is_truncated() -> None:
    """Goal: a source's texts for each of its partitions do not make a status unreadably large."""
    partition = MirrorPartition("m", "t", 0)
    row = PartitionStatus(partition=partition, state=State.FAILED, reason="x" * 1_000_000)
    status = Status(state_partition=1, lane="l", node="n", time_ms=1, partitions=(row,) * 100)
    found = decode(*encode(status))
    assert found is not None
    assert {partition.reason for partition in found.partitions} == {"x" * MAX_REASON}


@pytest.mark.parametrize(
    ("source", "destination", "lag"), [(10, 7, 3), (7, 7, 0), (7, 9, 0), (-1, 7, -1), (7, -1, -1)]
)
def test_the_lag_is_unknown_or_not_negative(source: int, destination: int, lag: int) -> None:
    """The lag is unknown or not negative: the source's end is read before the destination's."""
    status = PartitionStatus(
        partition=MirrorPartition("m", "t", 0),
        state=State.MIRRORING,
        source_end=source,
        destination_end=destination,
    )
    assert status.lag == lag


def packed(body: object) -> bytes:
    return bytes(compress(Codec.ZSTD, encode_json(body)))


HEAD = {"version": 1, "lane": "l", "node": "n", "time_ms": 1}


@pytest.mark.parametrize(
    ("key", "value", "trouble"),
    [
        (None, b"", "expected the number of a partition"),
        (b"x", b"", "expected the number of a partition"),
        (b"1" * 20, b"", "expected the number of a partition"),
        (b"1", b"not zstd", "cannot decompress"),
        (b"1", packed([]), "is not a JSON object"),
        (b"1", packed({**HEAD, "version": 2}), "version is 2"),
        (b"1", packed(HEAD), "partitions is '\\(missing\\)'"),
        (b"1", packed({**HEAD, "partitions": [[1]]}), "a list of rows"),
        (b"1", packed({**HEAD, "partitions": [list("abcdefghijk")]}), "names and numbers"),
        (
            b"1",
            packed({**HEAD, "partitions": [["m", "t", 0, 9, *[0] * 5, None, None]]}),
            "unknown state 9",
        ),
        (b"1", packed({**HEAD, "partitions": [], "fetchers": [["m", 1]]}), "names and numbers"),
        (b"1", packed({**HEAD, "partitions": [], "throttles": [["m", 1, 2, 3]]}), "fetchers|names"),
        (b"1", packed({**HEAD, "partitions": [], "fetchers": None}), "fetchers is None"),
    ],
)
def test_invalid_status_records_are_refused(key: bytes | None, value: bytes, trouble: str) -> None:
    with pytest.raises(ProtocolError, match=trouble):
        decode(key, value)


def test_a_status_without_lane_fields_is_read() -> None:
    status = decode(b"1", packed({**HEAD, "partitions": []}))
    assert status is not None
    assert (status.fetchers, status.throttles) == ((), ())


def test_columns_of_later_versions_are_ignored() -> None:
    row: Any = ["m", "t", 0, 2, 1, 1, 1, 0, 0, *[None] * 3, [], None, 0, *[0, 0, None] * 2, "new"]
    status = decode(b"1", packed({**HEAD, "partitions": [row]}))
    assert status is not None
    assert status.partitions[0].partition == MirrorPartition("m", "t", 0)


cells = st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.booleans()


@given(
    st.sampled_from([b"1", b"", b"-1", "²".encode()]) | st.binary(max_size=4),
    st.binary(max_size=40)
    | st.lists(st.lists(cells, max_size=14), max_size=2).map(
        lambda rows: packed({**HEAD, "partitions": rows})
    ),
)
def test_any_bytes_give_a_status_or_a_protocol_error(key: bytes, value: bytes) -> None:
    """Any bytes give a status, or ProtocolError."""
    with suppress(ProtocolError):
        decode(key, value)
