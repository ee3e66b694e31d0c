"""Groups of a cluster and their committed offsets.

list_groups        ListGroups, of every broker: a broker knows the groups that it coordinates
static_members     DescribeGroups: the instance ids of a group's members
group_members      DescribeGroups: the members of a group, and what each subscribes to
assigned           DescribeGroups, ConsumerGroupDescribe: what a group's members may read
committed_offsets  OffsetFetch, of all topics that the group has committed for, or of partitions
commit_offsets     OffsetCommit as a client that is no member: accepted while the group is empty
in_parts           what one such request may hold
start_offsets      DescribeShareGroupOffsets: where a share group's partitions start (SPSO)
set_start_offsets  AlterShareGroupOffsets: accepted while the share group is empty or does not exist
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from twinlog.kafka.acls import Operation
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.client.metadata import Leader
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import DENIED, TOPIC_GONE, Refusal, Retriable, check
from twinlog.kafka.groups.assignor import PROTOCOL_TYPE, decode_partitions
from twinlog.kafka.protocol.group_messages import (
    AlterShareGroupOffsetsRequest,
    ConsumerGroupDescribeRequest,
    DescribeShareGroupOffsetsRequest,
)
from twinlog.kafka.requests.topics import absent_everywhere, confirm_absent
from twinlog.kafka.types import TopicPartition

_DEAD: Final = "Dead"
_EMPTY: Final = frozenset({"Empty", _DEAD})
_STABLE: Final = "Stable"
CLASSIC: Final = "classic"
"""The type of groups whose members assign partitions themselves, as lanes do."""
MAX_COMMIT: Final = 256 * 1024
"""Bytes of records that one commit may become in `__consumer_offsets`: the coordinator writes them
as one batch, and refuses all of them above max.message.bytes, 1 MiB by default."""
_RECORD: Final = 100
"""Bytes of such a record besides the names and the metadata, at most."""
COMMIT_S: Final = 10.0
"""Seconds within which a commit is sent: the data that it is based on was read just before. Its
connection ends as long after it was sent, so that it does not arrive much later."""
_NO_MEMBER: Final = -1
NO_EPOCH: Final = -1
_BROKER_DEFAULT: Final = -1
_COORDINATED: Final = ("__consumer_offsets", "__share_group_state")
"""The leader of a partition of these topics coordinates the groups in it."""
ELECTION_S: Final = 15.0
"""Seconds for which a list of all groups waits for these partitions to have leaders."""


class Group(NamedTuple):
    """A group as its coordinator lists it. `kind` is classic, consumer, share or streams."""

    name: str
    state: str
    kind: str
    protocol: str = PROTOCOL_TYPE
    """Its protocol type: of a classic group what its clients have named, or nothing."""

    @property
    def idle(self) -> bool:
        """Whether it has no member."""
        return self.state in _EMPTY


class Committed(NamedTuple):
    """A committed offset, and the metadata that the application committed with it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH
    """Of the record before the offset, where the consumer has committed one."""


async def list_groups(cluster: KafkaCluster, *, whole: bool = True) -> dict[str, Group]:
    """All groups of a cluster that the client may describe, by name.

    A broker lists the groups that it coordinates. Groups of a partition without a leader are in no
    list, without an error. So the list counts as complete only if each partition had the same
    leader before and after, as far as the client may describe these topics.

    A broker that does not know yet that it is no coordinator any more lists the group as it was: of
    two answers, the one with members counts.

    Args:
        cluster: whose groups.
        whole: False: groups whose coordinator is unreachable may be missing.

    Raises:
        Retriable: some broker does not answer, loads its groups, or is not elected yet.
        UserError: a right is missing.
    """
    coordinators = (
        await cluster.persist(lambda: _coordinators(cluster), ELECTION_S) if whole else None
    )
    brokers = cluster.metadata.brokers
    # An answer of a broker that is behind may name too few brokers; known leaders stay.
    if any(leader.node_id not in brokers for leader in (coordinators or {}).values()):
        raise Retriable(
            "the list of groups may be incomplete: a coordinator is not in the metadata"
        )
    answers = await asyncio.gather(*(_list(cluster, node) for node in brokers))
    if whole and await _coordinators(cluster) != coordinators:
        raise Retriable("group coordinators changed while the groups were listed")
    groups_by_name: dict[str, Group] = {}
    for group in (group for groups in answers for group in groups):
        if group.name not in groups_by_name or groups_by_name[group.name].idle:
            groups_by_name[group.name] = group
    return groups_by_name


async def _coordinators(cluster: KafkaCluster) -> dict[TopicPartition, Leader]:
    """The leaders of the partitions that hold groups.

    Raises:
        Retriable: one of them has no leader, or not every broker knows the topic.
    """
    topics = (await cluster.refresh(_COORDINATED)).topics
    for name in _COORDINATED:
        if name not in topics:
            await confirm_absent(cluster, name)
    leaders: dict[TopicPartition, Leader] = {}
    for topic in (topics[name] for name in _COORDINATED if name in topics):
        if topic.error in DENIED:
            continue
        check(topic.error, "list all groups: find their coordinators")
        for index in topic.partitions:
            partition = TopicPartition(topic.name, index)
            leader = cluster.leader(partition)
            if isinstance(leader, Refusal):
                raise Retriable(f"the list of groups may be incomplete: {partition} has no leader")
            leaders[partition] = leader
    return leaders


async def lists_all_groups(cluster: KafkaCluster) -> bool:
    """Whether `list_groups` has every group.

    Brokers leave out groups that a client may not describe, without an error; with DESCRIBE on the
    cluster they leave out none.

    Raises:
        Retriable: the cluster does not answer.
    """
    request = DescribeClusterRequest(include_cluster_authorized_operations=True, max_version=1)
    response = await cluster.call(request)
    check(response.error_code, "describe the cluster", response.error_message)
    return Operation.DESCRIBE in (response.authorized_operations or ())


async def _list(cluster: KafkaCluster, node: int) -> list[Group]:
    request = ListGroupsRequest(states_filter=[], types_filter=[], min_version=4, max_version=5)
    response = await cluster.call(request, node=node)
    with cluster.needing("DESCRIBE", "the groups or the cluster"):
        check(response.error_code, "list the groups")
    # Before version 5 there were only classic groups.
    return [
        Group(
            group.group_id,
            group.group_state,
            (group.group_type or CLASSIC).lower(),
            group.protocol_type,
        )
        for group in response.groups
    ]


class Member(NamedTuple):
    """A member of a classic group, as its coordinator describes it."""

    member_id: str
    instance_id: str | None
    host: str
    subscription: bytes
    """What it has sent to the group's leader."""


async def group_members(cluster: KafkaCluster, group: str) -> tuple[Member, ...]:
    """The members of a stable classic group; none while it rebalances.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    description = await _described(cluster, group)
    if description.group_state != _STABLE:
        return ()
    return tuple(
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_host,
            bytes(member.member_metadata or b""),
        )
        for member in description.members
    )


async def member_clients(cluster: KafkaCluster, group: str) -> tuple[str, ...]:
    """`client id at host` of each member of a classic group, also while it rebalances.

    A member that was killed is one until its session timeout.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    description = await _described(cluster, group)
    clients = (f"{one.client_id} at {one.client_host.strip('/')}" for one in description.members)
    return tuple(sorted(clients))


async def static_members(cluster: KafkaCluster, group: str) -> frozenset[str]:
    """The instance ids of a classic group's members; none if the group does not exist.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    description = await _described(cluster, group)
    return frozenset(
        member.group_instance_id for member in description.members if member.group_instance_id
    )


async def _described(cluster: KafkaCluster, group: str) -> Any:
    request = DescribeGroupsRequest(
        groups=[group], include_authorized_operations=False, min_version=4, max_version=5
    )
    response = await cluster.coordinators.call(
        Coordinator.GROUP, group, request, code=lambda answer: answer.groups[0].error_code
    )
    [description] = response.groups
    with cluster.needing("DESCRIBE", f"the group {group}"):
        check(description.error_code, f"describe group {group}")
    return description


async def assigned(cluster: KafkaCluster, group: Group) -> frozenset[TopicPartition]:
    """The partitions that members of a classic or consumer group own, or are to own.

    Empty for groups of other types, and for classic groups that are no consumers (Kafka Connect).

    Raises:
        Retriable: the coordinator does not answer, or the group rebalances.
        ProtocolError: an assignment cannot be read.
        UserError: a right is missing.
    """
    if group.kind == "consumer":
        return await _assigned_by_the_broker(cluster, group.name)
    if group.kind != CLASSIC:
        return frozenset()
    description = await _described(cluster, group.name)
    if description.group_state == _DEAD:
        # Brokers describe a group that is not (or no longer) classic like this, without an error.
        raise Retriable(f"group {group.name} is no longer a classic group")
    if description.protocol_type != PROTOCOL_TYPE or description.group_state in _EMPTY:
        return frozenset()
    _check_stable(group.name, description.group_state)
    partition_sets = (
        decode_partitions(bytes(member.member_assignment or b"")) for member in description.members
    )
    return frozenset().union(*partition_sets)


def _check_stable(group: str, state: str) -> None:
    """Raise if the group rebalances: a new member has no partitions yet, which proves nothing."""
    if state != _STABLE and state not in _EMPTY:
        raise Retriable(f"group {group} is rebalancing")


async def _assigned_by_the_broker(cluster: KafkaCluster, group: str) -> frozenset[TopicPartition]:
    request = ConsumerGroupDescribeRequest(
        group_ids=[group], include_authorized_operations=False, max_version=1
    )
    response = await cluster.coordinators.call(
        Coordinator.GROUP, group, request, code=lambda answer: answer.groups[0].error_code
    )
    [description] = response.groups
    if description.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise Retriable(f"group {group} is no longer a consumer group")
    with cluster.needing("DESCRIBE", f"the group {group} and its topics"):
        check(description.error_code, f"describe group {group}", description.error_message)
    _check_stable(group, description.group_state)
    return frozenset(
        TopicPartition(topic.topic_name, index)
        for member in description.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


async def committed_offsets(
    cluster: KafkaCluster,
    group: str,
    *,
    stable: bool = False,
    partitions: Collection[TopicPartition] | None = None,
) -> dict[TopicPartition, Committed]:
    """The offsets that a group has committed, by partition.

    With `stable`, no offset may be pending: no transaction is open to which the group has sent
    offsets (KIP-447). Brokers leave out a partition whose first offset is pending, unless the
    request names it.

    Args:
        cluster: whose group.
        group: its name.
        stable: see above.
        partitions: only these.

    Raises:
        Retriable: the coordinator does not answer, or not about all of `partitions`; or offsets are
            not loaded yet, or not stable.
        UserError: a right is missing.
    """
    indexes_by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for partition in partitions or ():
        indexes_by_topic[partition.topic].append(partition.partition)
    topic_type = OffsetFetchRequest.OffsetFetchRequestTopic
    request = OffsetFetchRequest(
        group_id=group,
        topics=None
        if partitions is None
        else [
            topic_type(name=name, partition_indexes=indexes)
            for name, indexes in indexes_by_topic.items()
        ],
        require_stable=stable,
        min_version=7,  # Kafka 2.8 has it
        max_version=7,
    )
    action = f"fetch the offsets of group {group}"
    with cluster.needing("DESCRIBE", f"the group {group}"):
        response = await cluster.coordinators.call(Coordinator.GROUP, group, request)
        check(response.error_code, action)
    codes = {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }
    if missing := set(partitions or ()) - codes.keys():
        raise Retriable(f"{action}: the answer leaves out {min(missing)}")
    await _check_each(cluster, codes, action)
    return {
        TopicPartition(topic.name, part.partition_index): Committed(
            part.committed_offset, part.metadata or "", part.committed_leader_epoch
        )
        for topic in response.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


async def _check_each(
    cluster: KafkaCluster, codes: Mapping[TopicPartition, int], action: str
) -> None:
    """Raise if a partition's error may hide an offset: any, unless its topic is deleted.

    A coordinator whose metadata is old does not know a new topic, or knows it by another id. So a
    topic counts as deleted only if every broker reports it.
    """
    unknown = {p.topic for p, code in codes.items() if code in TOPIC_GONE}
    deleted = await absent_everywhere(cluster, unknown) if unknown else set[str]()
    for partition, code in codes.items():
        if code and not (code in TOPIC_GONE and partition.topic in deleted):
            Refusal(code).fail(action, topic=partition.topic)


def in_parts(
    group: str, offsets: Mapping[TopicPartition, Committed], max_bytes: int = MAX_COMMIT
) -> Iterator[dict[TopicPartition, Committed]]:
    """Split offsets into what one request may commit, at least one partition each.

    Args:
        group: the group's name, which is in each record.
        offsets: by partition.
        max_bytes: bytes of one part.
    """
    part: dict[TopicPartition, Committed] = {}
    size = 0
    for partition, committed in offsets.items():
        names = (group, partition.topic, committed.metadata)
        record = _RECORD + sum(len(name.encode("utf-8", "surrogatepass")) for name in names)
        if part and size + record > max_bytes:
            yield part
            part, size = {}, 0
        part[partition] = committed
        size += record
    if part:
        yield part


async def commit_offsets(
    cluster: KafkaCluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Refusal | None]:
    """Commit for a group that has no members; the result for each partition.

    The leader epoch is -1: an epoch of another cluster means nothing on this one. A group with
    members is refused: 25 UNKNOWN_MEMBER_ID for each partition. `offsets` is one of `in_parts`.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    request = _commit_request(group, offsets)
    with cluster.needing("READ", f"the group {group}"):
        response = await cluster.coordinators.call(
            Coordinator.GROUP,
            group,
            request,
            code=_about_all,
            timeout=COMMIT_S,
            request_timeout=COMMIT_S,
        )
        if denial_codes := _all_codes(response) & {ErrorCode.GROUP_AUTHORIZATION_FAILED}:
            check(denial_codes.pop(), f"commit for group {group}")
    return {
        TopicPartition(topic.name, part.partition_index): Refusal(part.error_code)
        if part.error_code
        else None
        for topic in response.topics
        for part in topic.partitions
    }


def _commit_request(group: str, offsets: Mapping[TopicPartition, Committed]) -> Any:
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for (topic, index), (offset, metadata, _) in offsets.items():
        part = topic_type.OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=NO_EPOCH,
            committed_metadata=metadata,
        )
        by_topic[topic].append(part)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_NO_MEMBER,
        member_id="",
        group_instance_id=None,
        retention_time_ms=_BROKER_DEFAULT,
        topics=[topic_type(name=name, partitions=parts) for name, parts in by_topic.items()],
        min_version=2,
        max_version=9,
    )


_ABOUT_ALL: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""


def _about_all(response: Any) -> int:
    return next(iter(_all_codes(response) & _ABOUT_ALL), 0)


def _all_codes(response: Any) -> set[int]:
    return {part.error_code for topic in response.topics for part in topic.partitions}


async def start_offsets(cluster: KafkaCluster, group: str) -> dict[TopicPartition, Committed]:
    """The start offsets of a share group's partitions; earlier records are done.

    Partitions without a start offset are left out; a group that does not exist gives nothing.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing, or the brokers know no share groups.
    """
    group_type = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request = DescribeShareGroupOffsetsRequest(
        groups=[group_type(group_id=group, topics=None)], max_version=0
    )
    action = f"describe the offsets of share group {group}"
    with cluster.needing("DESCRIBE", f"the group {group}"):
        response = await cluster.coordinators.call(
            Coordinator.GROUP, group, request, code=lambda answer: answer.groups[0].error_code
        )
        [description] = response.groups
        if description.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(description.error_code, action)
    codes = {
        TopicPartition(topic.topic_name, part.partition_index): part.error_code
        for topic in description.topics
        for part in topic.partitions
    }
    await _check_each(cluster, codes, action)
    return {
        TopicPartition(topic.topic_name, part.partition_index): Committed(part.start_offset)
        for topic in description.topics
        for part in topic.partitions
        if part.start_offset >= 0
    }


async def set_start_offsets(
    cluster: KafkaCluster, group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Refusal | None]:
    """Set the start offsets of a share group's partitions; the result for each. Creates the group.

    A group with members is refused (68 NON_EMPTY_GROUP), as is one of another type (69).

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing, the group is refused, or the brokers know no share groups.
    """
    topic_type = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for (topic, index), (offset, *_) in offsets.items():
        part = topic_type.AlterShareGroupOffsetsRequestPartition(
            partition_index=index, start_offset=offset
        )
        by_topic[topic].append(part)
    request = AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[topic_type(topic_name=name, partitions=parts) for name, parts in by_topic.items()],
    )
    with cluster.needing("READ", f"the group {group}"):
        response = await cluster.coordinators.call(
            Coordinator.GROUP, group, request, timeout=COMMIT_S, request_timeout=COMMIT_S
        )
        action = f"set the offsets of share group {group}"
        check(response.error_code, action, response.error_message)
    return {
        TopicPartition(topic.topic_name, part.partition_index): Refusal(part.error_code)
        if part.error_code
        else None
        for topic in response.responses
        for part in topic.partitions
    }
