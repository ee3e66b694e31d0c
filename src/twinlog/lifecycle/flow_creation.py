"""Creates flows, and brings stored ones up to date with their settings.

A flow whose remote topics MirrorMaker 2 has filled takes these over before any node can begin with
them (flow_takeover.py): `take_over_topics`, right after `create_flow`.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from twinlog.engines.transactional.former_routes import REMEDY, former_route
from twinlog.engines.transactional.positions import committed_positions, position_group
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.client.references import EVERYTHING, parse_grants
from twinlog.kafka.errors import UserError
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle.changes import alter_mirror, altered
from twinlog.lifecycle.creation import (
    check_properties,
    connected,
    connected_source,
    create_mirror,
)
from twinlog.lifecycle.destination_topics import existing_topics
from twinlog.lifecycle.flow_ends import agreed_ends
from twinlog.lifecycle.flow_references import grants_of, with_absolute_paths
from twinlog.lifecycle.flow_selection import require_same_names
from twinlog.lifecycle.flow_takeover import TAKING_OVER, FlowTakeover
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.lifecycle.taken_over import TakenOver
from twinlog.mirror.connect_worker import stored_names
from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.flow import (
    NO_MAP,
    connect_worker_of,
    emits_offset_syncs,
    flow_of,
    flow_properties,
    impossible_maps,
    may_have_routed,
    may_route,
    positions_interval_s,
    reports_positions,
    routed_topics,
    splits_topics,
    transforms_of,
    unsupported_offset_reset,
)
from twinlog.mirror.flow_settings import POLICY_PREFIX
from twinlog.mirror.mirror_maker_file import Flow
from twinlog.mirror.mirror_names import flow_name
from twinlog.mirror.replication_policy import has_properties_of_its_own
from twinlog.mirror.settings import (
    FLOW_KINDS,
    FLOW_PREFIX,
    GROUPS,
    KIND,
    MAX_REFRESH_MS,
    REFRESH,
    TRANSACTIONAL,
    check_settings,
)
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.control_topics import (
    LANES_GROUP,
    STATE_TOPIC,
    ControlTopics,
    create_control_topics,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import create_offsets_topic, read_offsets
from twinlog.store.offset_records import Route
from twinlog.store.partition_counts import known_partition_count
from twinlog.store.recorded_maps import read_ends
from twinlog.store.shared_remotes import (
    check_positions,
    other_copies,
    require_sole_active_copy,
    require_sole_copy,
)
from twinlog.store.snapshot import Snapshot

log = logging.getLogger(__name__)

_NO_GROUPS: Final = ""
"""The flow's own settings select groups (sync/group_selection.py). A node of an earlier version,
which goes by this property, copies none then; by its default it would copy all."""
_REFRESH_S: Final = 600
"""Seconds between two refreshes of a flow that has everything off: partitions are added still."""


def used_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The client properties that twinlog has; a Java client has more, about which --check tells.

    Relative paths are absolute in them (`with_absolute_paths`).

    Raises:
        UserError: one of them is missing or malformed.
    """
    unused = set(parse_config(properties).unused)
    used = {name: text for name, text in properties.items() if name not in unused}
    return with_absolute_paths(used)


def properties_of(flow: Flow) -> dict[str, str]:
    """The properties of a mirror for a flow of a file.

    Raises:
        UserError: the flow has a setting that twinlog does not support.
    """
    # The settings, with those that a policy of one's own may have, the transforms, and the names
    # of MirrorMaker 2's worker. Kafka's policies ignore what they do not know, and so does
    # MirrorMaker 2.
    policy = flow.policy_properties if has_properties_of_its_own(flow.values) else {}
    values = {**policy, **flow.values, **flow.transforms, **stored_names(flow.worker)}
    client = used_properties(flow.source_client)
    stored = stored_properties(client, values, flow.source_alias, flow.target_alias)
    return {**with_absolute_paths(stored), **flow.throttle}


def stored_properties(
    client: Mapping[str, str], values: Mapping[str, str], source: str, target: str
) -> dict[str, str]:
    """The properties of a mirror for a flow.

    Args:
        client: how the source is reached.
        values: MirrorMaker 2's settings, by name, as written.
        source: the source's alias in the flow's name.
        target: the target's.

    Raises:
        UserError: a setting is malformed.
    """
    properties = flow_properties(values, source, target)
    settings = flow_of(properties).settings
    transforms_of(properties)
    for name in impossible_maps(values, settings):
        raise UserError(f"{name} of {source}->{target} is true: {NO_MAP}")
    routed = routed_topics(values, settings)
    properties |= {f"{FLOW_PREFIX}{name}": text for name, text in routed.items()}
    if expectation := unsupported_offset_reset(settings):
        raise UserError(
            f"consumer.auto.offset.reset of {source}->{target} is "
            f"{settings.consumer_auto_offset_reset}: expected {expectation}"
        )
    intervals: list[int] = []
    if settings.refreshes_topics:
        intervals.append(settings.refresh_topics_interval_seconds)
    if settings.syncs_topic_configs:
        intervals.append(settings.sync_topic_configs_interval_seconds)
    if settings.syncs_topic_acls:
        intervals.append(settings.sync_topic_acls_interval_seconds)
    if emits_offset_syncs(properties):
        intervals.append(positions_interval_s(settings))
    if settings.syncs_group_offsets:
        intervals.append(settings.sync_group_offsets_interval_seconds)
    if reports_positions(properties):
        intervals.append(settings.twinlog_source_offsets_interval_seconds)
    # A refresh runs what is due; so the shortest interval of those in use is a refresh's.
    refresh_ms = min(min(intervals, default=_REFRESH_S) * 1000, MAX_REFRESH_MS)
    return {**client, REFRESH: str(refresh_ms), GROUPS: _NO_GROUPS, **properties}


def check_start(flow: Flow) -> None:
    """Check a flow of a file as a start does; connect to no cluster, and load no policy.

    Raises:
        UserError: a start would be refused.
    """
    if has_properties_of_its_own(flow.values):
        kept = {k: v for k, v in flow.values.items() if not k.startswith(POLICY_PREFIX)}
        flow = replace(flow, values=kept)
    properties = properties_of(flow)
    check_settings(properties)
    # Nodes read no more than this, so what they would refuse is refused here.
    check_properties(properties, parse_grants(grants_of([properties])))


async def create_flow(
    destination: KafkaCluster,
    source: str,
    target: str,
    properties: Mapping[str, str],
    topics: ControlTopics | None = None,
    *,
    replaces: bool = True,
) -> str:
    """Create a flow, or replace its settings if it exists; return its name.

    It keeps the settings of the mirror itself that are not given (`flow.lasting_settings`).

    Args:
        destination: the target.
        source: the source's alias.
        target: the target's alias.
        properties: see `stored_properties`.
        topics: how control topics are created, if they do not exist yet.
        replaces: False: a flow that exists is refused.

    Raises:
        MirrorRefused: INVALID_MIRROR_NAME; MIRROR_ALREADY_EXISTS if it may not be replaced.
        UserError: a setting is wrong, a cluster refuses the client, both are the same one, or the
            name belongs to a mirror of another kind; MirrorMaker 2 has copied a topic, and
            `twinlog.takeover` is `refuse`, or it is running; topics of the flow would have other
            remote names than before, or another flow copies them to the same topics; two topics of
            a new flow in transactions would have one remote topic; or a new flow that routes
            records would copy again what a former one of this name has copied (`former_routes`).
        Retriable: a cluster is unreachable.
    """
    name = flow_name(source, target)
    snapshot = await MirrorStore(destination).snapshot()
    mirrors = snapshot.mirrors
    stored = mirrors.get(name)
    if stored is None:
        await _check_new(destination, snapshot, (source, target), properties)
        topics = topics or ControlTopics()
        if not any(mirror.kind in FLOW_KINDS for mirror in mirrors.values()):
            # Only for the first one: where flows exist, a topic that is missing was lost.
            await create_control_topics(destination, topics)
            count = await destination.persist(
                partial(known_partition_count, destination, STATE_TOPIC)
            )
            await create_offsets_topic(destination, count, topics.replication_factor)
        await create_mirror(destination, name, properties, topics=topics)
    elif stored.kind in FLOW_KINDS and stored.kind != properties[KIND]:
        raise UserError(
            f"flow {name} exists without transforms and transaction.producer, or with them; the "
            "two kinds of flows keep their positions in different places",
            hint="--remove its topics, --hand-back its positions, --delete it, then start with "
            "--takeover (docs/operations/kip-656.md); or, to let it begin anew, delete it with "
            "twinlog flows delete --forget-offsets: what it has recorded would count again",
        )
    elif stored.kind not in FLOW_KINDS:
        raise UserError(
            f"mirror {name} exists, and is no flow",
            hint="delete it, or give one of the clusters another alias",
        )
    elif not replaces:
        raise MirrorError.MIRROR_ALREADY_EXISTS.error(
            f"flow {name} already exists",
            hint="--replace gives it these settings instead of its own",
        )
    else:
        require_same_names(snapshot, name, properties)
        changed = altered(snapshot, name, properties, replaces=True)
        # Also with the same settings: an earlier version has added a topic to two flows.
        require_sole_active_copy(snapshot, changed)
        if dict(changed.source) != dict(stored.source):
            # What the file does not set any more has its default again, except what only
            # `kafka-mirrors --alter` sets.
            await alter_mirror(
                destination,
                name,
                properties,
                replaces=True,
                check=partial(require_same_names, name=name, properties=properties),
            )
    return name


async def _check_new(
    destination: KafkaCluster,
    snapshot: Snapshot,
    aliases: tuple[str, str],
    properties: Mapping[str, str],
) -> None:
    """Refuse a flow before anything is created, if it may not begin (`FlowTakeover.check`).

    Args:
        destination: the target.
        snapshot: what is stored there.
        aliases: of the source and the target.
        properties: see `stored_properties`.
    """
    config, _ = check_properties(properties, EVERYTHING)
    flow, name = flow_of(properties), flow_name(*aliases)
    async with connected(config, aliases[0]) as source:
        if source.cluster_id == destination.cluster_id:
            raise UserError(
                f"{' and '.join(aliases)} are the same cluster: {source.cluster_id}",
                hint="compare their bootstrap.servers: a flow copies from one cluster to another",
            )
        topics = (await source.refresh(None)).topics
        names = copied_topics(topics, *flow)
        check_positions(properties[KIND], (), names)
        new = Mirror(name=name, source=dict(properties), source_cluster_id=source.cluster_id)
        ids = {name: topics[name].topic_id for name in names}
        require_sole_copy(snapshot, new, names, ids)
        existing = await existing_topics(destination, {*names.values()})
        remote = {topic: existing.get(remote) for topic, remote in names.items()}
        takeover = FlowTakeover(
            *(destination, source, flow, connect_worker_of(properties)),
            routes=may_route(properties),
            splits=splits_topics(properties),
        )
        await takeover.check(topics, remote)
        is_taken_over = flow.settings.twinlog_takeover in TAKING_OVER
        if may_have_routed(properties) and not is_taken_over:
            await _refuse_former_routes(destination, name, topics, names)


async def _refuse_former_routes(
    destination: KafkaCluster, name: str, topics: Mapping[str, Topic], names: Mapping[str, str]
) -> None:
    """Refuse a flow that may have routed records, and that had other remote topics before.

    Lanes refuse its partitions (former_routes.py), those that the source does not show now as well.
    Where it takes over, they do after that.

    Raises:
        UserError: it could copy records again.
        Retriable, ProtocolError, ControlTopicLost: see `read_offsets`.
    """
    reasons = [
        reason
        for stored in (await read_offsets(destination)).values()
        for at, begun in stored.begun.items()
        if at.mirror == name and at.topic in names
        for route in [Route(topics[at.topic].topic_id, names[at.topic], None)]
        if (reason := former_route(begun, ToBegin(route, Offset(0))))
    ]
    if reasons:
        raise UserError(f"flow {name}: {min(reasons)}", hint=REMEDY)


async def take_over_topics(destination: KafkaCluster, name: str) -> list[TakenOver]:
    """Add the topics to a flow whose remote topics exist, if it takes over from MirrorMaker 2.

    All or none of them are added. The others are added by its nodes, and begin as usual.

    Args:
        destination: the target.
        name: the flow's.

    Returns:
        Where partitions begin that MirrorMaker 2 has copied before.

    Raises:
        UserError, ProtocolError: see `FlowClusters.add`; or MirrorMaker 2 is running, or has copied
            more of topics that the flow has.
        Retriable: a cluster is unreachable; or see `FlowClusters.add` and `agreed_ends`.
    """
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    mirror = snapshot.mirrors[name]
    flow = flow_of(mirror.source)
    if flow.settings.twinlog_takeover not in TAKING_OVER:
        return []
    async with connected_source(mirror, EVERYTHING) as source:
        topics = (await source.refresh(None)).topics
        names = copied_topics(topics, *flow)
        ids = {topic: topics[topic].topic_id for topic in names}
        existing = await existing_topics(destination, {*names.values()})
        clusters = FlowClusters(destination=destination, source=source, mirror=mirror, flow=flow)
        while True:
            had = snapshot.topics_of(name)
            await clusters.takeover.check_copied(await copied_to(destination, mirror, had))
            known = {topic.topic for topic in had}
            # Nodes refuse these, and go on with the others.
            others = {topic.topic for topic in other_copies(snapshot, mirror, names, ids)}
            new = {
                topic: remote
                for topic, remote in sorted(names.items())
                if topic not in known | others and remote in existing
            }
            if not new:
                return []
            begins = await agreed_ends(source, flow.settings, {one: topics[one] for one in new})
            try:
                return await clusters.add(topics, new, followed_from=begins)
            except MirrorRefused as error:
                snapshot = await store.snapshot()
                added = {topic.topic for topic in snapshot.topics_of(name)} - known
                if error.kind is not MirrorError.TOPIC_ALREADY_IN_MIRROR or not added:
                    raise
                log.info("a node has added topics meanwhile: %s", ", ".join(sorted(added)))


async def copied_to(
    destination: KafkaCluster, mirror: Mirror, topics: Collection[MirrorTopic]
) -> dict[TopicPartition, int]:
    """Up to where a flow has copied partitions, of which MirrorMaker 2 may have copied more.

    Of a topic that was recreated and is copied whole, what it has recorded is of the former one. A
    begin of 0 does not show that: a takeover that has found no copy begins there, too.
    """
    if mirror.kind == TRANSACTIONAL:
        group = position_group(LANES_GROUP, mirror.name)
        copied = await committed_positions(destination, group, topics)
    else:
        copied = await read_ends(destination, topics) if topics else {}
    begins = {
        name.source: topic.begin(name.partition)
        for topic in topics
        if not topic.whole
        for name in topic.mirror_partitions
    }
    return {
        source: max(copied.get(source, 0), begin or 0)
        for source, begin in begins.items()
        if begin is not None or source in copied
    }
