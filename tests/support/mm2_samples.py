"""Records of MirrorMaker 2, and the bytes that Kafka 4.3.1's classes encode them as.

`tests/interfaces/test_mirror_maker_java.py` checks the bytes; the unit tests use them without Java.
"""

from typing import Final, NamedTuple

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import Checkpoint, Heartbeat, Mm2Record, OffsetSync


class Sample(NamedTuple):
    """A record, its bytes in hexadecimal digits, and what Kafka's formatter prints."""

    record: Mm2Record
    key: str
    value: str
    text: str


SAMPLES: Final = (
    Sample(
        Heartbeat(
            source_cluster_alias="us-west", target_cluster_alias="us-east", timestamp=1700000000000
        ),
        "000775732d77657374000775732d65617374",
        "00000000018bcfe56800",
        "Heartbeat{sourceClusterAlias=us-west, targetClusterAlias=us-east, "
        "timestamp=1700000000000}",
    ),
    Sample(
        Checkpoint(
            group="billing",
            partition=TopicPartition("us-west.orders", 3),
            upstream_offset=1234567890123,
            downstream_offset=1234567890000,
            metadata="méta",
        ),
        "000762696c6c696e67000e75732d776573742e6f726465727300000003",
        "00000000011f71fb04cb0000011f71fb045000056dc3a97461",
        "Checkpoint{consumerGroupId=billing, topicPartition=us-west.orders-3, "
        "upstreamOffset=1234567890123, downstreamOffset=1234567890000, metadata=méta}",
    ),
    Sample(
        Checkpoint(
            group="g",
            partition=TopicPartition("t", 0),
            upstream_offset=(1 << 63) - 1,
            downstream_offset=0,
        ),
        "00016700017400000000",
        "00007fffffffffffffff00000000000000000000",
        "Checkpoint{consumerGroupId=g, topicPartition=t-0, upstreamOffset=9223372036854775807, "
        "downstreamOffset=0, metadata=}",
    ),
    Sample(
        OffsetSync(partition=TopicPartition("orders", 3), upstream_offset=100, downstream_offset=7),
        "00066f726465727300000003",
        "00000000000000640000000000000007",
        "OffsetSync{topicPartition=orders-3, upstreamOffset=100, downstreamOffset=7}",
    ),
)
