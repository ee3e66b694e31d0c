"""What MirrorMaker 2 has left on the two clusters of a flow, and whether it still runs.

    members of its group   target             mirror/connect_worker.py
    recorded offsets       target             mirror/connect_offsets.py
    offset syncs           source or target   mirror/mm2_records.py

After a kill its group keeps a member for `session.timeout.ms`, 10 s by default.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.kafka.groups.offsets import member_clients
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.connect_offsets import CONNECTOR, last_copied
from twinlog.mirror.connect_worker import ConnectWorker
from twinlog.mirror.flow import FlowRules
from twinlog.mirror.flow_settings import TAKEOVER
from twinlog.mirror.mm2_records import OffsetSync, decode_offset_sync
from twinlog.store.control_topics import partition_count
from twinlog.store.topic_reader import read_whole

log = logging.getLogger(__name__)

_GROUP_S: Final = 30.0
"""How long members of MirrorMaker 2's group may remain: more than its session timeout."""
_POLL_S: Final = 0.5

Recorded: TypeAlias = Mapping[TopicPartition, Mapping[str, int]]
"""What an offsets topic has (`last_copied`)."""


class WorkerRecords:
    """Reads, once each, what MirrorMaker 2 has left.

    Args:
        destination: the target.
        source: the source.
        flow: the flow.
        worker: what MirrorMaker 2's Connect worker is called.
    """

    def __init__(
        self,
        destination: KafkaCluster,
        source: KafkaCluster,
        flow: FlowRules,
        worker: ConnectWorker,
    ) -> None:
        self._destination = destination
        self._source = source
        self._flow = flow
        self._worker = worker
        self._connector = flow.settings.twinlog_takeover_connector
        # A flow that is not to take over is refused whatever has copied its topics.
        takes_over = flow.settings.twinlog_takeover != "refuse"
        self._filters = takes_over and self._connector != CONNECTOR
        self._recorded: Sequence[Recorded] | None = None
        self._syncs: Mapping[TopicPartition, OffsetSync] | None = None
        self._trouble: UserError | None = None

    async def require_stopped(self) -> None:
        """Wait until MirrorMaker 2's group has no member.

        Raises:
            UserError: it keeps some.
            Retriable: the target is unreachable.
        """
        if self._trouble is not None:
            raise self._trouble
        group = self._worker.group
        deadline = asyncio.get_running_loop().time() + _GROUP_S
        waits = False
        while members := await member_clients(self._destination, group):
            if asyncio.get_running_loop().time() > deadline:
                self._trouble = UserError(
                    f"MirrorMaker 2 is running: its group {group} has the members "
                    f"{', '.join(members)}",
                    hint="stop it, then try again",
                )
                raise self._trouble
            if not waits:
                waits = True
                log.warning("waiting for the members of %s to end: %s", group, ", ".join(members))
            await asyncio.sleep(_POLL_S)

    async def require_copied(self) -> Mapping[TopicPartition, int]:
        """The offsets that MirrorMaker 2 has recorded.

        Raises:
            UserError: it has recorded none on this cluster, or they may not be read.
            ProtocolError: they cannot be decoded.
            Retriable: the target is unreachable.
        """
        copied = await self.copied()
        if copied is None:
            raise UserError(
                "MirrorMaker 2 has left no offsets: the target has no topic "
                f"{' or '.join(self._worker.offsets_topics)}",
                hint="start with the file of MirrorMaker 2, which may set its name "
                f"(offset.storage.topic); without the topic, {TAKEOVER}=ignore copies all records "
                "to the remote topics",
            )
        return copied

    async def copied(self) -> Mapping[TopicPartition, int] | None:
        """The offsets that MirrorMaker 2 has recorded; None: it has no topic for them.

        Of several connectors, the lowest counts; of several topics, the last one that has an offset
        of MirrorMaker 2's own, or else the last one that has any: Connect looks for each
        connector's key by itself, in the connector's topic first.

        Raises:
            UserError: they may not be read.
            ProtocolError, Retriable: see `require_copied`.
        """
        recorded = await self._read_recorded()
        if not recorded:
            return None
        counting: dict[TopicPartition, Mapping[str, int]] = {}
        for found in recorded:
            for partition, offsets in found.items():
                is_own = self._connector in offsets
                if is_own or self._connector not in counting.get(partition, {}):
                    counting[partition] = offsets
        return {partition: min(offsets.values()) for partition, offsets in counting.items()}

    async def only_by_others(self, partition: TopicPartition) -> bool:
        """Whether other connectors have recorded offsets of a partition, and MirrorMaker 2's not.

        Such a connector may copy the partition to another topic.

        Raises:
            UserError, ProtocolError, Retriable: see `copied`.
        """
        found = [one[partition] for one in await self._read_recorded() if partition in one]
        return bool(found) and not any(self._connector in one for one in found)

    async def highest(self) -> Mapping[TopicPartition, int]:
        """The highest offset that any connector has recorded of a partition, in any topic.

        Raises:
            UserError, ProtocolError, Retriable: see `copied`.
        """
        highest: dict[TopicPartition, int] = {}
        for found in await self._read_recorded():
            for partition, offsets in found.items():
                highest[partition] = max(highest.get(partition, 0), *offsets.values())
        return highest

    async def _read_recorded(self) -> Sequence[Recorded]:
        """What each topic has that exists."""
        if self._recorded is None:
            alias = self._flow.settings.source_cluster_alias
            recorded = list[Recorded]()
            for topic in self._worker.offsets_topics:
                if await _exists(self._destination, topic):
                    records = await read_whole(self._destination, topic)
                    found = last_copied(((one.key, one.value) for one in records), alias)
                    recorded.append(self._named(found) if self._filters else found)
            self._recorded = recorded
        return self._recorded

    def _named(self, recorded: Recorded) -> Recorded:
        """What the connector of a Connect cluster has recorded, which the operator has named."""
        return {
            partition: {self._connector: offsets[self._connector]}
            for partition, offsets in recorded.items()
            if self._connector in offsets
        }

    async def offset_syncs(self) -> Mapping[TopicPartition, OffsetSync]:
        """The last offset sync of each of the source's partitions; without their topic, none.

        Raises:
            UserError: they may not be read.
            ProtocolError: they cannot be decoded.
            Retriable: their cluster is unreachable.
        """
        if self._syncs is None:
            self._syncs = await self._read_syncs()
        return self._syncs

    async def _read_syncs(self) -> Mapping[TopicPartition, OffsetSync]:
        settings = self._flow.settings
        at_source = settings.offset_syncs_topic_location == "source"
        cluster = self._source if at_source else self._destination
        topic = self._flow.policy.offset_syncs_topic(
            settings.target_cluster_alias if at_source else settings.source_cluster_alias
        )
        if not await _exists(cluster, topic):
            return {}
        syncs = (decode_offset_sync(one.key, one.value) for one in await read_whole(cluster, topic))
        return {sync.partition: sync for sync in syncs if sync is not None}


async def _exists(cluster: KafkaCluster, topic: str) -> bool:
    if await partition_count(cluster, topic) is not None:
        return True
    await confirm_absent(cluster, topic)
    return False
