"""Twin of twinlog.kafka.protocol.group_messages: bytes that are written out by Kafka's schemas.

Compact lengths are one more than the length; a struct ends in its tags (here: none, 0).
"""

import struct
from uuid import UUID

from twinlog.kafka.protocol.group_messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)

TOPIC_ID = UUID(int=5)
NONE = b"\0"
"""A compact string that is null; an array's would be null, too."""
TAGS = b"\0"


def compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def array(*items: bytes) -> bytes:
    return bytes([len(items) + 1]) + b"".join(items)


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def test_describe_share_group_offsets_follows_the_schema() -> None:
    """Goal: all partitions of a group are asked for, and the answer's start offsets are read."""
    group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request = DescribeShareGroupOffsetsRequest(groups=[group(group_id="g", topics=None)])
    assert request.encode(version=0) == array(compact("g") + NONE + TAGS) + TAGS
    partition = int32(3) + int64(70) + int32(2) + int16(0) + NONE + TAGS
    topic = compact("t") + TOPIC_ID.bytes + array(partition) + TAGS
    answer = int32(0) + array(compact("g") + array(topic) + int16(0) + NONE + TAGS) + TAGS
    (found,) = DescribeShareGroupOffsetsResponse.decode(answer, version=0).groups
    (of_topic,) = found.topics
    (of_partition,) = of_topic.partitions
    assert (found.group_id, of_topic.topic_name, of_topic.topic_id) == ("g", "t", TOPIC_ID)
    assert (of_partition.partition_index, of_partition.start_offset) == (3, 70)
    assert (of_partition.leader_epoch, of_partition.error_code) == (2, 0)


def test_alter_share_group_offsets_follows_the_schema() -> None:
    """Goal: a start offset is written, and a refused partition is read."""
    topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = topic.AlterShareGroupOffsetsRequestPartition
    request = AlterShareGroupOffsetsRequest(
        group_id="g",
        topics=[
            topic(topic_name="t", partitions=[partition(partition_index=3, start_offset=70)]),
        ],
    )
    asked = compact("t") + array(int32(3) + int64(70) + TAGS) + TAGS
    assert request.encode(version=0) == compact("g") + array(asked) + TAGS
    refused = int32(3) + int16(68) + compact("busy") + TAGS
    named = compact("t") + TOPIC_ID.bytes + array(refused) + TAGS
    answer = int32(0) + int16(0) + NONE + array(named) + TAGS
    (of_topic,) = AlterShareGroupOffsetsResponse.decode(answer, version=0).responses
    (of_partition,) = of_topic.partitions
    assert (of_partition.error_code, of_partition.error_message) == (68, "busy")


def test_consumer_group_describe_follows_the_schema() -> None:
    """Goal: the partitions that a member has, and those that it is to have, are told apart."""
    request = ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    assert request.encode(version=0) == array(compact("g")) + b"\0" + TAGS

    def assignment(partition: int) -> bytes:
        topic = TOPIC_ID.bytes + compact("t") + array(int32(partition)) + TAGS
        return array(topic) + TAGS

    member = compact("m") + NONE + NONE + int32(4) + compact("c") + compact("h")
    member += array(compact("t")) + NONE + assignment(1) + assignment(2) + TAGS
    group = int16(0) + NONE + compact("g") + compact("Stable") + int32(4) + int32(4)
    group += compact("uniform") + array(member) + int32(-(2**31)) + TAGS
    answer = int32(0) + array(group) + TAGS
    (found,) = ConsumerGroupDescribeResponse.decode(answer, version=0).groups
    (one,) = found.members
    assert (found.group_state, one.member_id, one.member_epoch) == ("Stable", "m", 4)
    assert [topic.partitions for topic in one.assignment.topic_partitions] == [[1]]
    assert [topic.partitions for topic in one.target_assignment.topic_partitions] == [[2]]
