"""Offsets that Kafka Connect stores for MirrorMaker 2's source connector."""

import pytest

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.connect_offsets import ConnectOffset, decode, encode, last_copied

KEY = b'["MirrorSourceConnector",{"cluster":"us","partition":1,"topic":"orders"}]'
VALUE = b'{"offset":41}'
RECORD = ConnectOffset("MirrorSourceConnector", "us", TopicPartition("orders", 1), 41)


def test_records_are_encoded_as_connect_writes_them() -> None:
    """Goal: Connect finds an offset by the bytes of its key (test_mirror_maker_takeover.py)."""
    assert encode(RECORD) == (KEY, VALUE)
    assert encode(RECORD._replace(offset=None)) == (KEY, None)


def test_records_are_decoded() -> None:
    assert decode(KEY, VALUE) == RECORD
    assert decode(KEY, None) == RECORD._replace(offset=None)
    spaced = b'[ "MirrorSourceConnector", {"topic": "orders", "cluster": "us", "partition": 1} ]'
    assert decode(spaced, b' {"offset": 41, "more": true}') == RECORD


@pytest.mark.parametrize(
    "key",
    [
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"us","targetClusterAlias":"eu"}]',
        b'["MirrorCheckpointConnector",{"group":"g","partition":0,"topic":"us.orders"}]',
        b'["jdbc",{"table":"orders"}]',
    ],
)
def test_other_connectors_are_left_out(key: bytes) -> None:
    assert decode(key, b'{"offset":0}') is None
    assert decode(key, b"\xff") is None


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"\xff",
        b"{}",
        b"[]",
        b'["a"]',
        b'["a",1]',
        b'[1,{"cluster":"us","partition":1,"topic":"orders"}]',
        b'["a",{"cluster":"us","partition":-1,"topic":"orders"}]',
        b'["a",{"cluster":"us","partition":"1","topic":"orders"}]',
        b'["a",{"cluster":"us","partition":true,"topic":"orders"}]',
        b'["a",{"cluster":1,"partition":1,"topic":"orders"}]',
        b'["a",{"cluster":"us","partition":2147483648,"topic":"orders"}]',
        b"[" * 100_000,
    ],
)
def test_other_keys_are_refused(key: bytes | None) -> None:
    with pytest.raises(ProtocolError, match="Connect offset"):
        decode(key, VALUE)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"41",
        b"null",
        b"[]",
        b"{}",
        b'{"offset":-1}',
        b'{"offset":1.5}',
        b'{"offset":true}',
        b'{"offset":"1"}',
        b'{"offset":9223372036854775808}',
        b"\xff",
    ],
)
def test_other_values_are_refused(value: bytes) -> None:
    """Goal: what cannot be read is no offset of 0, and no missing offset."""
    with pytest.raises(ProtocolError, match="Connect offset"):
        decode(KEY, value)


def test_the_last_record_of_a_key_counts() -> None:
    """Goal: of each partition of this source the last offset, unless it was removed."""
    orders, clicks = TopicPartition("orders", 1), TopicPartition("clicks", 0)
    records = [
        RECORD._replace(offset=7),
        RECORD._replace(partition=clicks, offset=3),
        RECORD,
        RECORD._replace(cluster="asia", offset=99),
        RECORD._replace(partition=clicks, offset=None),
    ]
    assert last_copied(map(encode, records), "us") == {orders: {RECORD.connector: 41}}


def test_the_offsets_of_all_connectors_are_told() -> None:
    """Goal: all below the lowest was copied, and nothing behind the highest is known to be."""
    records = [RECORD, RECORD._replace(connector="former", offset=12)]
    found = last_copied(map(encode, records), "us")
    assert found == {RECORD.partition: {RECORD.connector: 41, "former": 12}}
