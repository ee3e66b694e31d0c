"""Adds topics to a flow: creates the remote topics, and stores what is copied where.

    resolve names -> none that another mirror copies there -> remote topics created or grown
                  -> where they begin (flow_takeover.py) -> topics written

A remote topic may exist, with records of other clusters or of MirrorMaker 2: a flow appends.
"""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.requests.topics import (
    NewTopic,
    create_partitions,
    create_topics,
    require_all_shown,
)
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import usable_topic
from twinlog.lifecycle.destination_topics import (
    chunks,
    existing_topics,
    known_configs,
    known_id,
    undo,
)
from twinlog.lifecycle.flow_takeover import FlowTakeover
from twinlog.lifecycle.source_configs import source_configs
from twinlog.lifecycle.taken_over import TakenOver
from twinlog.mirror.copied_configs import left_out, remote_configs
from twinlog.mirror.flow import FlowRules, connect_worker_of, may_route, splits_topics
from twinlog.mirror.flow_settings import FlowSettings
from twinlog.mirror.topic_configs import NEVER_COPIED, TIERED_STORAGE, SourceConfig
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import offsets_topic_id
from twinlog.store.shared_remotes import check_positions, shared_remotes
from twinlog.store.snapshot import require_settings

log = logging.getLogger(__name__)

_TIERED: Final = NEVER_COPIED[TIERED_STORAGE[0]]
_EXCLUDE: Final = "the topic is not copied; exclude configurations by config.properties.exclude"
_HINTS: Final[Mapping[int, str]] = {
    ErrorCode.INVALID_CONFIG: _EXCLUDE,
    ErrorCode.POLICY_VIOLATION: _EXCLUDE,
}
_NO_POSITIONS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})
_NO_ENDS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType({})


def wanted_configs(
    source: Mapping[str, SourceConfig], settings: FlowSettings, known_names: Mapping[str, object]
) -> dict[str, str]:
    """The configurations of a remote topic (`remote_configs`)."""
    return remote_configs(
        source,
        excluded_configs(settings),
        known_names,
        source_defaults=settings.use_defaults_from == "source",
    )


def excluded_configs(settings: FlowSettings) -> tuple[re.Pattern[str], ...]:
    """The expressions of `config.properties.exclude`."""
    exclude = settings.config_properties_exclude
    return () if exclude is None else (exclude,)


def left_out_text(source: Mapping[str, SourceConfig], settings: FlowSettings) -> str:
    """Which configurations of the source's topic are not copied, and why; empty: none is missed."""
    names = left_out(source, excluded_configs(settings))
    return f"without {', '.join(names)}: {_TIERED}" if names else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowClusters:
    """A flow, and its two clusters.

    `mirror` is the flow as it is stored: topics are added only while it has these settings.
    """

    destination: KafkaCluster
    source: KafkaCluster
    mirror: Mirror
    flow: FlowRules
    takeover: FlowTakeover = field(init=False)

    def __post_init__(self) -> None:
        """Begin to find out where topics begin."""
        worker = connect_worker_of(self.mirror.source)
        takeover = FlowTakeover(
            *(self.destination, self.source, self.flow, worker),
            routes=may_route(self.mirror.source),
            splits=splits_topics(self.mirror.source),
        )
        object.__setattr__(self, "takeover", takeover)

    async def add(
        self,
        topics: Mapping[str, Topic],
        names: Mapping[str, str],
        positions: Mapping[TopicPartition, int] = _NO_POSITIONS,
        followed_from: Mapping[str, tuple[int, ...]] = _NO_ENDS,
    ) -> list[TakenOver]:
        """Add topics of the source; all or none of them.

        A topic that the flow had before was recreated on the source: what another program has
        recorded is about the former topic. It begins as usual; a flow that goes on after losses
        copies all of it, also one that has begun at the end of its topics.

        Args:
            topics: the source's topics, by name.
            names: the remote names of those that are added, by the source's.
            positions: where partitions begin, as an operator says; it is not asked what another
                program has recorded of their topics then.
            followed_from: by topic, what is stored as `MirrorTopic.followed_from`.

        Returns:
            The partitions that MirrorMaker 2 has copied before, and where they begin.

        Raises:
            MirrorRefused, UserError: a topic may not be created, belongs to another mirror, is
                copied to the same remote topic by another one (`require_sole_copy`), or
                MirrorMaker 2 has copied it (`FlowTakeover.begins`).
            SettingsReplaced: the flow's settings have changed since it was read. A remote topic
                that was created before that was noticed stays: others may have taken it over.
            Retriable: a cluster is unreachable, or its brokers show different partitions.
        """
        store = MirrorStore(self.destination)
        snapshot = await store.snapshot()
        require_settings(snapshot, self.mirror)
        ids = {name: topics[name].topic_id for name in names}
        await store.check_addable(snapshot, self.mirror.name, names, ids)
        self._check_positions(snapshot.topics_of(self.mirror.name), names)
        former = {topic.topic: topic for topic in snapshot.topics_of(self.mirror.name)}
        placed = {partition.topic for partition in positions}
        whole = former.keys() if self.flow.settings.passes_lost else frozenset[str]()
        usable = {name: usable_topic(topics[name]) for name in names}
        created = await self._create(usable, names)
        try:
            existing = await existing_topics(self.destination, {*names.values()} - created.keys())
            remote_ids = created | {name: topic.topic_id for name, topic in existing.items()}
            if lacking := sorted({*names.values()} - remote_ids.keys()):
                raise Retriable("the destination does not show the topic yet", topic=lacking[0])
            asked = {
                name: topic
                for name, topic in usable.items()
                if name not in former and name not in placed
            }
            await self._require_all_shown(asked, names, existing)
            await self.grow(lacking_partitions(usable, names, existing))
            taken_over = [
                one
                for name, topic in asked.items()
                for one in await self.takeover.begins(topic, existing.get(names[name]))
            ]
            for one in taken_over:
                log.log(logging.WARNING if one.warns else logging.INFO, "%s", one)
            begins = {one.source: int(one.begin) for one in taken_over if not one.is_usual}
            begins |= dict(positions)
            recorded_in = await offsets_topic_id(self.destination)
            await store.add_topics(
                self.mirror.name,
                [
                    MirrorTopic(
                        mirror=self.mirror.name,
                        topic=name,
                        topic_id=topic.topic_id,
                        partitions=len(topic.partitions),
                        destination_topic=None if names[name] == name else names[name],
                        destination_topic_id=known_id(remote_ids[names[name]]),
                        lost_topic_ids=_lost_ids(
                            topic.topic_id, remote_ids[names[name]], former.get(name)
                        ),
                        begins=(0,) * len(topic.partitions)
                        if name in whole
                        else _begins(name, begins),
                        followed_from=followed_from.get(name, ()),
                        whole=name in whole,
                        known_before=_known_before(topic.topic_id, former.get(name)),
                        offsets_topic_id=recorded_in,
                    )
                    for name, topic in usable.items()
                ],
                named_by=self.mirror,
            )
        except UserError:
            await undo(self.destination, created)
            raise
        return taken_over

    async def _require_all_shown(
        self, topics: Mapping[str, Topic], names: Mapping[str, str], existing: Mapping[str, Topic]
    ) -> None:
        """Check that all partitions are shown that MirrorMaker 2 may have copied.

        One that is not would begin as usual once it is, and be copied again.

        Raises:
            Retriable: one is not, or a cluster is unreachable.
        """
        if self.flow.settings.twinlog_takeover == "ignore":
            return
        copied = {name: topic for name, topic in topics.items() if names[name] in existing}
        await require_all_shown(self.source, copied)
        remotes = {names[name] for name in copied}
        await require_all_shown(self.destination, {one: existing[one] for one in remotes})

    def _check_positions(self, topics: Collection[MirrorTopic], names: Mapping[str, str]) -> None:
        """Warn of two source topics for one remote topic: groups may read records twice there.

        Raises:
            UserError: the flow writes in transactions, and they would have one position.
        """
        check_positions(self.mirror.kind, topics, names)
        for first, second, remote in shared_remotes(topics, names):
            log.warning(
                "flow %s: %s and %s are copied to one topic, %s: a group has the lower of its "
                "places there, if it has committed offsets of both, and reads some records again",
                self.mirror.name,
                *sorted((first, second)),
                remote,
            )

    async def missing(
        self, topics: Mapping[str, Topic], names: Mapping[str, str]
    ) -> list[NewTopic]:
        """The remote topics that do not exist, as the flow creates them; changes nothing.

        They have the source's partitions and configurations, and the flow's replication factor.

        Args:
            topics: the source's topics, by name.
            names: their remote names, by the source's.

        Raises:
            UserError: the configurations of a source topic may not be read.
            Retriable: a cluster is unreachable.
        """
        existing = await existing_topics(self.destination, {*names.values()})
        missing = {name: topic for name, topic in topics.items() if names[name] not in existing}
        if not missing:
            return []
        known_names = dict.fromkeys(await known_configs(self.destination))
        configs = await source_configs(self.source, list(missing))
        new_topics: dict[str, NewTopic] = {}
        for name, topic in missing.items():
            found = configs[name]
            if isinstance(found, Refusal):
                raise found.error("read the configurations of the source's topic", topic=name)
            if text := left_out_text(found, self.flow.settings):
                log.info("flow %s: %s is created %s", self.mirror.name, names[name], text)
            several = new_topics.get(names[name])
            new_topics[names[name]] = NewTopic(
                name=names[name],
                partitions=max(len(topic.partitions), several.partitions if several else 0),
                replication_factor=self.flow.settings.replication_factor,
                configs=dict(wanted_configs(found, self.flow.settings, known_names)),
            )
        return list(new_topics.values())

    async def _create(
        self, topics: Mapping[str, Topic], names: Mapping[str, str]
    ) -> dict[str, UUID]:
        """Create the remote topics that do not exist; return the ids of those created."""
        created: dict[str, UUID] = {}
        for group in chunks(await self.missing(topics, names)):
            for name, answer in (await create_topics(self.destination, group)).items():
                if isinstance(answer, Refusal):
                    await undo(self.destination, created)
                    raise not_created(name, answer)
                created[name] = answer
        return created

    async def grow(self, counts: Mapping[str, int]) -> None:
        """Raise the partition counts of remote topics.

        Raises:
            UserError: it is refused.
            Retriable: the destination is unreachable.
        """
        if not counts:
            return
        for name, refusal in (await create_partitions(self.destination, counts)).items():
            if isinstance(refusal, Refusal):
                refusal.fail(f"raise the remote topic to {counts[name]} partitions", topic=name)


def not_created(remote: str, refusal: Refusal) -> TwinlogError:
    """The error of a remote topic that cannot be created."""
    error = refusal.error("create the remote topic", topic=remote)
    error.hint = error.hint or _HINTS.get(refusal.code, "")
    return error


def lacking_partitions(
    topics: Mapping[str, Topic], names: Mapping[str, str], existing: Mapping[str, Topic]
) -> dict[str, int]:
    """How many partitions remote topics need that exist and have too few, by their names.

    Several source topics may have one remote topic: it needs as many as the largest of them.

    Args:
        topics: the source's topics, by name.
        names: the remote names, by the source's.
        existing: the remote topics that exist, by name.
    """
    counts: dict[str, int] = {}
    for name, topic in topics.items():
        remote, count = names[name], len(topic.partitions)
        if remote in existing and len(existing[remote].partitions) < count:
            counts[remote] = max(count, counts.get(remote, 0))
    return counts


def _lost_ids(topic_id: UUID, remote_id: UUID, former: MirrorTopic | None) -> tuple[UUID, ...]:
    """The ids of former remote topics that plans may name, if the flow had both topics before."""
    if former is None or former.topic_id != topic_id or former.destination_topic_id != remote_id:
        return ()
    return former.lost_topic_ids


def _known_before(topic_id: UUID, former: MirrorTopic | None) -> bool:
    """`MirrorTopic.known_before`; `whole` is what earlier versions have stored of it."""
    return former is not None and (
        former.topic_id != topic_id or former.known_before or former.whole
    )


def _begins(topic: str, begins: Mapping[TopicPartition, int]) -> tuple[int, ...]:
    """`MirrorTopic.begins`."""
    own = {
        partition.partition: begin
        for partition, begin in begins.items()
        if partition.topic == topic
    }
    return tuple(own.get(index, -1) for index in range(max(own, default=-1) + 1))
