"""Snapshots of a cluster: answers come out of order, topics are deleted and recreated."""

from uuid import UUID

import pytest
from kafka.protocol.metadata import MetadataResponse

from twinlog.kafka.client.metadata import (
    EMPTY,
    MAX_BROKERS,
    Leader,
    Metadata,
    check_cluster_id,
    merge,
)
from twinlog.kafka.errors import ProtocolError, Refusal, UserError
from twinlog.kafka.types import TopicPartition

A0 = TopicPartition("a", 0)
ONE, TWO = UUID(int=1), UUID(int=2)


def _response(
    *topics: MetadataResponse.MetadataResponseTopic, cluster_id: str = "c", nodes: int = 3
) -> MetadataResponse:
    broker = MetadataResponse.MetadataResponseBroker
    brokers = [broker(node_id=n, host="h", port=9000 + n, rack=None) for n in range(nodes)]
    return MetadataResponse(
        version=12, brokers=brokers, cluster_id=cluster_id, controller_id=0, topics=list(topics)
    )


def _topic(
    name: str = "a",
    *,
    leader: int = 0,
    epoch: int = 5,
    topic_id: UUID = ONE,
    error: int = 0,
    partition_error: int = 0,
) -> MetadataResponse.MetadataResponseTopic:
    topic = MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition(
        error_code=partition_error,
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[0, 1],
        isr_nodes=[0],
        offline_replicas=[],
    )
    return topic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=[] if error else [partition],
    )


def _metadata_of(*topics: MetadataResponse.MetadataResponseTopic) -> Metadata:
    return merge(EMPTY, _response(*topics), all_topics=False)


def test_metadata_gives_leader_and_epoch() -> None:
    metadata = _metadata_of(_topic(leader=2))
    assert metadata.leader(A0) == Leader(2, 5)
    assert metadata.by_id[ONE].name == "a"
    assert metadata.topics["a"].partitions[0].isr == (0,)


def test_only_the_leader_leads() -> None:
    """Goal: the same as `leader` tells, for whatever reason there is none."""
    metadata = _metadata_of(_topic(leader=2), _topic("b", leader=-1), _topic("c", error=29))
    named = [TopicPartition(topic, index) for topic in "abcd" for index in (0, 1)]
    for partition in named:
        leader = metadata.leader(partition)
        leads = [node for node in range(-1, 4) if metadata.leads(node, partition)]
        assert leads == ([leader.node_id] if isinstance(leader, Leader) else [])


def test_an_older_leader_epoch_is_ignored() -> None:
    """Brokers learn of a new leader one after the other (KIP-320)."""
    metadata = merge(
        _metadata_of(_topic(leader=2, epoch=6)),
        _response(_topic(leader=1, epoch=5)),
        all_topics=False,
    )
    assert metadata.leader(A0) == Leader(2, 6)


def test_a_topic_that_loses_its_describe_right_is_not_removed() -> None:
    """Brokers then name no id and no partitions: known values stay, and the code is kept."""
    denied = _response(_topic(error=29, topic_id=UUID(int=0)))
    metadata = merge(_metadata_of(_topic(leader=2)), denied, all_topics=False)
    assert metadata.leader(A0) == Refusal(29)
    assert metadata.topics["a"].topic_id == ONE
    assert list(metadata.topics["a"].partitions) == [0]
    assert metadata.by_id[ONE].error == 29


def test_a_recreated_topic_starts_with_new_leader_epochs() -> None:
    new = _response(_topic(leader=1, epoch=0, topic_id=TWO))
    metadata = merge(_metadata_of(_topic(epoch=6)), new, all_topics=False)
    assert metadata.leader(A0) == Leader(1, 0)
    assert ONE not in metadata.by_id


def test_topics_not_requested_are_kept() -> None:
    metadata = merge(
        _metadata_of(_topic("a"), _topic("b")), _response(_topic("b")), all_topics=False
    )
    assert set(metadata.topics) == {"a", "b"}
    assert set(merge(metadata, _response(_topic("b")), all_topics=True).topics) == {"b"}


def test_a_deleted_topic_is_removed_from_the_metadata() -> None:
    metadata = merge(_metadata_of(_topic()), _response(_topic(error=3)), all_topics=False)
    assert metadata.leader(A0) == Refusal(3, "the topic is not in the metadata")


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (_topic(leader=-1, partition_error=5), 5),
        (_topic(leader=-1), 5),
        (_topic(error=29), 29),
    ],
)
def test_the_reason_for_a_missing_leader_is_given(
    topic: MetadataResponse.MetadataResponseTopic, code: int
) -> None:
    refusal = _metadata_of(topic).leader(A0)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code


def test_a_partition_beyond_the_partition_count_is_refused() -> None:
    refusal = _metadata_of(_topic()).leader(TopicPartition("a", 7))
    assert isinstance(refusal, Refusal)
    assert "1 partitions" in refusal.message


def test_metadata_of_another_cluster_id_is_refused() -> None:
    """Another cluster at the address must never be taken for the same log."""
    with pytest.raises(UserError, match="cluster id d, expected c"):
        merge(_metadata_of(), _response(cluster_id="d"), all_topics=False)


def test_the_number_of_brokers_is_limited() -> None:
    """Goal: a source does not make a node connect to as many addresses as an answer can contain.

    Requests for groups and ACLs go to all brokers at the same time.
    """
    merge(EMPTY, _response(nodes=MAX_BROKERS), all_topics=False)
    with pytest.raises(ProtocolError, match="contains 1001 brokers, expected at most 1000"):
        merge(EMPTY, _response(nodes=MAX_BROKERS + 1), all_topics=False)


def test_error_for_another_cluster_id_names_both_ids() -> None:
    """Goal: the one check that an address leads to the expected cluster, with both ids."""
    check_cluster_id("the source", "a", "a")
    with pytest.raises(UserError, match="of the source lead to cluster b, expected a"):
        check_cluster_id("the source", "b", "a")
