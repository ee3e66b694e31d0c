"""Where the partitions of a remote topic end, and whether all of their records can be read."""

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.requests.partitions import DEBUGGING, PATIENCE, list_offsets
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.lifecycle.taken_over import begins_anew


class RemoteEnds(NamedTuple):
    """The partitions of a topic, by what their remote partitions hold.

    A partition that the remote topic lacks is in neither, if there is a remote topic.
    """

    remote: str | None
    """The remote topic; None: there is none."""
    filled: Mapping[TopicPartition, TopicPartition]
    """By the source's partitions, the remote ones that have, or had, records."""
    empty: Set[TopicPartition]
    """The source's partitions whose remote ones never had any."""
    bounds: Mapping[TopicPartition, LogBounds]
    """Of all remote partitions."""
    log_ends: Mapping[TopicPartition, int]
    """Their log end offsets, as their leaders have them."""

    def require_replicated(self) -> None:
        """Check that all records of the remote partitions can be read.

        Records above the high watermark are in the log, and will be read one day. The leader does
        not raise it while fewer than `min.insync.replicas` are in sync (Kafka 4.3,
        `Partition.maybeIncrementLeaderHW`), or a replica that is in sync lags.

        Raises:
            Retriable: a partition has some.
        """
        for name, end in sorted(self.log_ends.items()):
            if end != (readable := self.bounds[name].high_watermark):
                raise Retriable(
                    f"records [{readable}, {end}) are not replicated yet, and may be copies that "
                    "MirrorMaker 2 has made",
                    topic=name.topic,
                    partition=name.partition,
                    hint="wait until its replicas are in sync and nothing writes to it, then try "
                    "again",
                )


class RemoteLogs:
    """Reads where remote partitions end.

    Args:
        destination: the target.
        logs: its logs.
    """

    def __init__(self, destination: KafkaCluster, logs: ClusterLogs) -> None:
        self._destination = destination
        self._logs = logs

    async def ends(self, topic: Topic, remote: Topic | None) -> RemoteEnds:
        """What the remote partitions of a topic hold.

        Args:
            topic: the source's topic.
            remote: the remote topic as it was before the flow; None: there is none.

        Raises:
            Retriable: the target is unreachable, or does not show the topic or a partition of it.
            UserError: a right is missing.
        """
        if remote is None:
            return RemoteEnds(None, {}, {*_partitions(topic)}, {}, {})
        shown = (await self._logs.refresh([remote.name])).topics.get(remote.name)
        if shown is None:
            raise Retriable("the target does not show the topic", topic=remote.name)
        if unseen := remote.partitions.keys() - shown.partitions.keys():
            raise Retriable(
                "the target does not show a partition any more",
                topic=remote.name,
                partition=min(unseen),
            )
        names = {
            one: TopicPartition(remote.name, one.partition)
            for one in _partitions(topic)
            if one.partition in shown.partitions
        }
        bounds = await self._logs.bounds(list(names.values()))
        known = {name: known_bounds(bounds, name) for name in names.values()}
        log_ends = await self.log_ends(known)  # behind the bounds, so that no record is between
        filled = {one: name for one, name in names.items() if log_ends[name] > 0}
        return RemoteEnds(remote.name, filled, names.keys() - filled.keys(), known, log_ends)

    async def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The log end offsets of remote partitions, which may be above their high watermarks.

        Raises:
            TwinlogError: a leader refuses it.
        """
        answers = await list_offsets(
            self._destination, list(partitions), replica_id=DEBUGGING, patience=PATIENCE
        )
        ends: dict[TopicPartition, int] = {}
        for name, answer in answers.items():
            if isinstance(answer, Refusal):
                answer.fail("read the log end offset", topic=name.topic)
            ends[name] = answer.offset
        return ends


def require_shown(topic: Topic, ends: RemoteEnds, recorded: Mapping[TopicPartition, int]) -> None:
    """Check that both clusters show all partitions that MirrorMaker 2 has copied.

    A broker that is cut off from the controllers shows the former partitions of a topic that has
    grown. Those that it leaves out would be added later, and begin as if nobody had copied them.

    Raises:
        Retriable: one of them is not shown.
    """
    for partition in sorted(recorded.keys() - ends.filled.keys() - ends.empty):
        if partition.topic != topic.name:
            continue
        side = "target" if partition.partition in topic.partitions else "source"
        raise Retriable(
            f"MirrorMaker 2 has copied {partition} up to offset {recorded[partition]}, and the "
            f"{side} does not show the partition",
            hint="try again: a broker's answer may be old; if the topic was recreated with fewer "
            f"partitions, {begins_anew(topic.name)}",
        )


def known_bounds(
    bounds: Mapping[TopicPartition, LogBounds], partition: TopicPartition
) -> LogBounds:
    """The bounds of a partition's log.

    Raises:
        TwinlogError: the broker has refused them.
    """
    bound = bounds[partition]
    if bound.error:
        Refusal(bound.error).fail("read the log's bounds", topic=partition.topic)
    return bound


def _partitions(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in topic.partitions]
