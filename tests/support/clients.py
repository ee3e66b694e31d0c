"""twinlog's own client on the tests' clusters: topics, controllers, states, markers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kafka.protocol.admin import CreateTopicsRequest, DescribeQuorumRequest
from waiting import until_async

from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.engines.ports import MarkerRequest, Markers, ProducerIdentity
from twinlog.kafka.client.brokers import CONTROLLER
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, check
from twinlog.kafka.groups.offsets import Committed, commit_offsets
from twinlog.kafka.requests.topics import ConfigEntry, describe_configs, topic_resource
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.placement import state_partition
from twinlog.mirror.states import State
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.control_topics import epoch_entry, partition_count, state_entry
from twinlog.store.mirrors import MirrorStore
from twinlog.store.state_records import LastMirrored, PartitionState
from twinlog.store.topic_writer import ALL, Entry, append

PATIENCE_S: Final = 180.0
"""How long a test's client tries again: a busy broker aborts an open transaction later than after
default.api.timeout.ms, or elects a coordinator later."""


def client(cluster: LocalCluster, name: str | None = None, **settings: Any) -> KafkaCluster:
    """Return a client that is not started yet."""
    hosts = (server.rpartition(":") for server in cluster.bootstrap_servers.split(","))
    servers = tuple(Address(host, int(port)) for host, _, port in hosts)
    settings.setdefault("api_timeout", PATIENCE_S)
    return KafkaCluster(ClusterConfig(bootstrap_servers=servers, **settings), name=name)


def patient(servers: str) -> dict[str, str]:
    """The properties of a client, or of a command's, that is as patient."""
    return {
        "bootstrap.servers": servers,
        "default.api.timeout.ms": str(int(PATIENCE_S * 1000)),
    }


async def make_topic(
    cluster: KafkaCluster,
    name: str,
    partitions: int = 1,
    *,
    replication_factor: int = 1,
    replicas: Sequence[Sequence[int]] = (),
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic, and wait until each partition has a leader.

    `replicas` are the brokers of each partition; by default the cluster chooses them.
    """
    topic = CreateTopicsRequest.CreatableTopic
    brokers = topic.CreatableReplicaAssignment
    item = topic(
        name=name,
        num_partitions=-1 if replicas else partitions,
        replication_factor=-1 if replicas else replication_factor,
        assignments=[
            brokers(partition_index=index, broker_ids=list(ids))
            for index, ids in enumerate(replicas)
        ],
        configs=[
            topic.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )
    request = CreateTopicsRequest(topics=[item], timeout_ms=30_000, validate_only=False)
    answers: list[Any] = []

    async def created() -> bool:
        (answer,) = (await cluster.call(request, node=CONTROLLER)).topics
        answers.append(answer)
        # An earlier try whose answer was late, or lost, may have created it.
        is_late = len(answers) > 1 and answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        check(0 if is_late else answer.error_code, f"create {name}", answer.error_message)
        return True

    await until_async(created, what=f"{name} to be created")
    wanted = [TopicPartition(name, index) for index in range(partitions)]

    async def led() -> bool:
        leaders = await cluster.leaders(wanted)
        return all(hasattr(leader, "node_id") for leader in leaders.values())

    await until_async(led, what=f"leaders of {name}")


async def commit(
    cluster: KafkaCluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> None:
    """Commit as a client without membership, once the group's coordinator takes the offsets."""

    async def taken() -> bool:
        return not any((await commit_offsets(cluster, group, offsets)).values())

    await until_async(taken, what=f"the offsets of {group}")


async def topic_configs(cluster: KafkaCluster, topic: str) -> dict[str, ConfigEntry]:
    """Return a topic's configurations, once the broker that is asked knows the topic."""
    resource = topic_resource(topic)

    async def described() -> dict[str, ConfigEntry]:
        entries = (await describe_configs(cluster, [resource]))[resource]
        return {} if isinstance(entries, Refusal) else entries

    return await until_async(described, what=f"configurations of {topic}")


class Quorum(NamedTuple):
    """A cluster's controllers: the active one, and each voter's end of the metadata log."""

    leader: int
    high_watermark: int
    ends: Mapping[int, int]


async def describe_quorum(cluster: LocalCluster) -> Quorum:
    """Ask the active controller for the quorum: metadata names any broker as the controller."""
    topic = DescribeQuorumRequest.TopicData
    asked = topic(
        topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)]
    )
    async with client(cluster) as kafka:
        response = await kafka.call(DescribeQuorumRequest(topics=[asked]))
    found = response.topics[0].partitions[0]
    check(found.error_code, "describe the quorum")
    ends = {voter.replica_id: voter.log_end_offset for voter in found.current_voters}
    return Quorum(found.leader_id, found.high_watermark, ends)


async def put(cluster: KafkaCluster, entries: Sequence[Entry]) -> None:
    """Append, once each leader takes it.

    A broker refuses a new topic's records until it has opened the logs, although metadata names it
    the leader: with control topics, and on a busy machine, for longer than `append` tries.
    """
    missing = list(entries)

    async def taken() -> bool:
        answers = await append(cluster, missing, acks=ALL)
        refusals = {at: answer for at, answer in answers.items() if isinstance(answer, Refusal)}
        for at, refusal in refusals.items():
            assert refusal.code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (at, refusal)
        missing[:] = [one for one in missing if (one.topic, one.partition) in refusals]
        return not missing

    await until_async(taken, what="leaders that take records")


async def write_state(
    cluster: KafkaCluster,
    topic: MirrorTopic,
    state: State,
    ends: Mapping[int, LastMirrored] | None = None,
) -> None:
    """Store a state for all partitions of a topic, and ends for some; no lane does it here.

    A STOPPED topic also has no configuration left to set back, as after a node's stop.
    """
    count = await until_async(lambda: partition_count(cluster), what="control topics") or 0
    entries = []
    for name in topic.mirror_partitions:
        place = state_partition(name.mirror, topic.topic_id, name.partition, count)
        entries.append(state_entry(PartitionState(name, state), place))
        if (last := (ends or {}).get(name.partition)) is not None:
            entries.append(epoch_entry(name, last, place))
    await put(cluster, entries)
    if state is State.STOPPED:
        await MirrorStore(cluster).change(
            lambda now: [
                replace(one, set_back=None)
                for one in now.topics
                if (one.mirror, one.topic, one.wanted)
                == (topic.mirror, topic.topic, Wanted.STOPPED)
                and one.set_back is not None
            ]
        )


async def none_refused(_mirror: str, _topics: Collection[str]) -> Collection[str]:
    """Replace the function that sets configurations back; it does nothing and refuses nothing."""
    return ()


async def write_markers(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Write markers of an otherwise unused producer id to partition 0."""
    port = KafkaDestination(cluster, lambda: True)
    await port.leaders([topic])
    wanted = {TopicPartition(topic, 0): Markers(count, 0)}
    request = MarkerRequest(ProducerIdentity("markers", 987_654, 0), wanted)
    answers = await port.write_markers([request])
    assert set(answers.values()) == {0}
