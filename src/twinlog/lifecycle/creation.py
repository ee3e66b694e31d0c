"""Creates mirrors and adds topics to them; everything is checked before anything is changed.

    create   name, settings -> source reachable, another cluster -> write the mirror
    add      mirror known, source still the same cluster -> topics resolved, none in a mirror yet,
             none mirrored from the destination by the source
             -> each destination topic absent, or empty with as many partitions, or one that was
                failed over to the source and has no divergent tail (failback.py), or that may be
                recreated (removed.py)
             -> creation tried without effect -> (rebuild.py) -> topics created -> topics written

A topic's name does not identify it: a recreated topic has the same name and is not the mirror's. So
the destination's topic id is stored, too.

The last two steps happen in two places, so another command may come in between. A command that
creates topics and is then refused deletes those of them that no mirror has by then.
"""

import logging
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from twinlog.engines.kinds import kind_named
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import ClusterConfig, parse_source
from twinlog.kafka.client.metadata import Topic, check_cluster_id
from twinlog.kafka.client.references import EVERYTHING, Grants
from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.lifecycle.destination_topics import (
    DestinationTopic,
    History,
    existing_topics,
    fitted,
    known_id,
    prepare,
    still_here,
    undo,
    wanted_topics,
)
from twinlog.lifecycle.failback import (
    TheirMirrors,
    find_tails,
    last_mirrored,
    read_their_mirrors,
    removed_topics,
    still_mirrored_to,
    told_by_id,
)
from twinlog.lifecycle.rebuild import (
    DivergentTail,
    Rebuild,
    delete_diverged,
    deleted_before,
    save_tails,
)
from twinlog.lifecycle.removed import not_proved_equal, where_logs_part, whole_logs
from twinlog.lifecycle.required_apis import check_apis
from twinlog.lifecycle.source_configs import source_configs
from twinlog.mirror.errors import MirrorError
from twinlog.mirror.mirror_names import check_name
from twinlog.mirror.settings import (
    FLOW_KINDS,
    SETTINGS,
    check_settings,
    kind_of,
    parse_settings,
    split_settings,
)
from twinlog.mirror.topic_configs import SourceConfig
from twinlog.store.config_records import MadeAcl, MadeFor, Mirror, MirrorTopic
from twinlog.store.control_topics import ControlTopics
from twinlog.store.mirrors import (
    MirrorStore,
    check_set_back,
    to_be_set_back,
    unknown_mirror,
)
from twinlog.store.snapshot import Snapshot
from twinlog.text import few

log = logging.getLogger(__name__)

CONNECT_TIMEOUT: Final = 10.0
"""Seconds after which an unreachable cluster is reported to the waiting operator."""
INTERNAL: Final = "__"
BROKER_DEFAULT: Final = -1
_ANY_SERVER: Final = {"bootstrap.servers": "localhost:9092"}
_NOT_SEEN: Final = (
    "brokers show topics only to principals with READ or DESCRIBE: check the name, and the rights "
    "of the mirror's principal"
)


def check_properties(
    properties: Mapping[str, str], grants: Grants
) -> tuple[ClusterConfig, tuple[str, ...]]:
    """The connection's configuration from a mirror's properties, and warnings.

    Args:
        properties: the mirror's properties.
        grants: what they may read on this machine (kafka/client/references.py).

    Raises:
        UserError: a setting is unknown or malformed, or reads what is not granted.
    """
    parse_settings(properties)
    connection = split_settings(properties)[1]
    # Unknown settings are reported first: a misspelt one may be why another one is missing.
    parsed = parse_source(_ANY_SERVER | connection, grants)
    unknown_keys = [key for key in parsed.unused if not key.startswith(("sasl.", "ssl."))]
    if unknown_keys:
        raise UserError(
            f"{', '.join(unknown_keys)}: not a setting of a mirror; expected bootstrap.servers, "
            "security.protocol, sasl.*, ssl.*, client.id, timeouts and buffers of clients, and "
            f"{', '.join(SETTINGS)}"
        )
    return parse_source(connection, grants).config, parsed.warnings


@asynccontextmanager
async def connected(
    config: ClusterConfig, name: str, patience: float = CONNECT_TIMEOUT
) -> AsyncIterator[KafkaCluster]:
    """Connect to a cluster that answers soon, or fail, because an operator is waiting.

    Raises:
        Retriable: it does not answer within `patience` seconds.
        UserError: it refuses the client.
    """
    cluster = KafkaCluster(config, name=name)
    await cluster.start(min(config.api_timeout, patience))
    try:
        yield cluster
    finally:
        await cluster.close()


async def create_mirror(
    destination: KafkaCluster,
    name: str,
    properties: Mapping[str, str],
    *,
    replication_factor: int | None = None,
    topics: ControlTopics | None = None,
) -> Mirror:
    """Create a mirror of the cluster that `properties` connect to.

    Raises:
        MirrorRefused: INVALID_MIRROR_NAME, MIRROR_ALREADY_EXISTS.
        UserError: a setting is wrong, the source refuses the client, or is the destination itself.
        Retriable: the source is unreachable.
    """
    check_name(name)
    check_settings(properties)
    kind_named(kind_of(properties))
    # The operator's own file may refer to anything the operator can read; nodes need grants.
    config, _ = check_properties(properties, EVERYTHING)
    if name in (await MirrorStore(destination).snapshot()).mirrors:
        raise MirrorError.MIRROR_ALREADY_EXISTS.error(
            f"mirror {name} already exists",
            hint="--alter changes its properties; choose another name for a new mirror",
        )
    await check_apis(destination)
    async with connected(config, "source") as source:
        source_id = source.cluster_id
    if source_id == destination.cluster_id:
        raise UserError(
            f"source and destination are the same cluster: {source_id}",
            hint="--mirror-config names the source, --bootstrap-server the destination",
        )
    mirror = Mirror(
        name=name,
        source=dict(properties),
        source_cluster_id=source_id,
        replication_factor=replication_factor,
    )
    await MirrorStore(destination).create_mirror(mirror, topics)
    return mirror


@asynccontextmanager
async def connected_source(
    mirror: Mirror, grants: Grants, patience: float = CONNECT_TIMEOUT
) -> AsyncIterator[KafkaCluster]:
    """Connect to a mirror's source, if it is the cluster that the mirror was created for.

    Args:
        mirror: the mirror, with its present properties.
        grants: what its properties may read on this machine.
        patience: seconds to wait for an answer.

    Raises:
        Retriable: it does not answer within `patience` seconds.
        UserError: it refuses the client, or is another cluster.
    """
    config, _ = check_properties(mirror.source, grants)
    async with connected(config, "source", patience) as source:
        check_cluster_id("the source", source.cluster_id, mirror.source_cluster_id)
        yield source


async def add_topics(
    destination: KafkaCluster,
    mirror_name: str,
    selection: str | Collection[str],
    *,
    replication_factor: int | None = None,
    rebuild: Rebuild | None = None,
) -> list[str]:
    """Add source topics by a name or otherwise a regular expression, or by names; return the names.

    Topics that match a regular expression later are added then (topics.py). Topics that match it
    and that the source mirrors from the destination are left out.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_ALREADY_IN_MIRROR,
            MIRROR_TOPIC_BEING_REMOVED, TOPIC_ALREADY_EXISTS, INVALID_REGULAR_EXPRESSION,
            MIRROR_LOOP, MIRROR_TOPIC_DIVERGED.
        UserError: a right is missing, the source is another cluster, a configuration is refused.
        Retriable: a cluster is unreachable.
    """
    snapshot = await MirrorStore(destination).snapshot()
    mirror = _mirror(snapshot, mirror_name)
    if mirror.kind in FLOW_KINDS:
        raise UserError(
            f"{mirror_name} is a flow: its settings select its topics",
            hint="alter its property topics",
        )
    if isinstance(selection, str):
        compiled(selection)
    async with connected_source(mirror, destination.config.grants) as source:
        names = resolve(selection, (await source.refresh(None)).topics)
        pattern = selection if isinstance(selection, str) and names != [selection] else None
        their_mirrors = await read_their_mirrors(source, destination)
        if pattern is not None:
            # If all of them are loops they are kept, so that MIRROR_LOOP names them.
            names = [name for name in names if name not in their_mirrors.loops] or names
        await add_named(
            destination,
            source,
            mirror_name,
            names,
            their_mirrors,
            replication_factor=replication_factor,
            pattern=pattern,
            rebuild=rebuild,
        )
    return names


async def add_named(
    destination: KafkaCluster,
    source: KafkaCluster,
    mirror_name: str,
    names: Sequence[str],
    their_mirrors: TheirMirrors,
    *,
    replication_factor: int | None = None,
    pattern: str | None = None,
    rebuild: Rebuild | None = None,
    while_matching: str | None = None,
) -> None:
    """Add topics of the source, whose metadata is known.

    Args:
        destination: the mirror's cluster.
        source: the mirror's source.
        mirror_name: the mirror.
        names: the topics.
        their_mirrors: what the source mirrors, and has mirrored, from the destination.
        replication_factor: of topics that are created; default: the mirror's.
        pattern: stored with the mirror, to add later topics.
        rebuild: permission to delete and recreate topics that have diverged.
        while_matching: the mirror's pattern that adds them; if it has ended, they are not added.

    Raises:
        MirrorRefused, UserError, Retriable: as `add_topics`.
    """
    store = MirrorStore(destination)
    same_names = dict(zip(names, names, strict=True))
    await store.check_addable(await store.snapshot(), mirror_name, same_names)
    await check_apis(destination)
    snapshot = await store.settled(lambda now: to_be_set_back(now, names))
    check_set_back(snapshot, names)
    _refuse_loops(names, their_mirrors, destination.cluster_id)
    if their_mirrors.forbidden:
        log.warning(
            "cannot read the source's mirrors (%s): not checked whether it mirrors %s from this "
            "cluster, or has taken them over",
            their_mirrors.unknown,
            few(names),
        )
    mirror = _mirror(snapshot, mirror_name)
    topics = [usable_topic(source.metadata.topics[name]) for name in names]
    targets, tails = await _look(
        destination, source, snapshot, mirror, topics, their_mirrors=their_mirrors
    )
    if tails and rebuild is None:
        raise _diverged(tails)
    factor = replication_factor or mirror.replication_factor or BROKER_DEFAULT
    rebuilt = {tail.partition.topic for tail in tails}
    # A topic that is rebuilt counts as absent: it is deleted before it is created.
    targets = [
        replace(target, there=0, topic_id=None) if target.name in rebuilt else target
        for target in targets
    ]
    targets = await fitted(destination, targets, factor, rebuilt)
    if rebuild is not None and tails:
        if rebuild.save_to is not None:
            tails = await not_proved_equal(source, destination, tails, rebuild.tell)
            await save_tails(destination, tails, rebuild.save_to)
            # Saving takes time: another command may have added the topics meanwhile.
            await store.check_addable(await store.snapshot(), mirror_name, same_names)
        await delete_diverged(destination, tails)
    with deleted_before(rebuilt):
        ids = await prepare(destination, targets, factor)
        mirror_topics = [
            MirrorTopic(
                mirror=mirror_name,
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=len(topic.partitions),
                origins=their_mirrors.origins.get(topic.name, ()),
                set_back=target.set_back,
                destination_topic_id=known_id(ids[topic.name])
                if topic.name in ids
                else target.topic_id,
            )
            for topic, target in zip(topics, targets, strict=True)
        ]
        denials = _taken_over(mirror, names, their_mirrors)
        try:
            await store.add_topics(mirror_name, mirror_topics, pattern, denials, while_matching)
        except UserError:
            await undo(destination, ids)
            raise


def _mirror(snapshot: Snapshot, name: str) -> Mirror:
    if name not in snapshot.mirrors:
        raise unknown_mirror(name, snapshot)
    return snapshot.mirrors[name]


def _refuse_loops(names: Sequence[str], their_mirrors: TheirMirrors, cluster_id: str) -> None:
    ways = [
        _way(name, their_mirrors.origins[name], cluster_id)
        for name in names
        if name in their_mirrors.loops
    ]
    if ways:
        raise MirrorError.MIRROR_LOOP.error(
            f"the source mirrors {', '.join(ways)}",
            hint="nothing was added; a topic is mirrored in only one direction at a time",
        )
    their_mirrors.refuse_unsure(names, "this cluster", "nothing was added")


async def _look(
    destination: KafkaCluster,
    source: KafkaCluster,
    snapshot: Snapshot,
    mirror: Mirror,
    topics: Sequence[Topic],
    *,
    their_mirrors: TheirMirrors,
) -> tuple[list[DestinationTopic], list[DivergentTail]]:
    """What the topics have to be on the destination, and the tails of those that have diverged."""
    names = [topic.name for topic in topics]
    configs = await _readable_configs(source, names)
    existing = await existing_topics(destination, names)
    failed_over = told_by_id(still_mirrored_to(their_mirrors.failed_over, topics), existing)
    ends = await last_mirrored(source, failed_over.same)
    removals = removed_topics(snapshot, mirror.source_cluster_id)
    history = History(ends, failed_over.made_again, removals.keys(), their_mirrors.unknown)
    targets = await wanted_topics(destination, mirror, topics, configs, existing, history=history)
    tails = [
        *await find_tails(source, destination, still_here(ends, targets)),
        *await whole_logs(
            destination, {target.name: target.there for target in targets if target.anew}
        ),
    ]
    if not tails:
        return targets, []
    same_topics = told_by_id(removals, {topic.name: topic for topic in topics}).same
    last_ends = await last_mirrored(destination, same_topics)
    return targets, await where_logs_part(source, destination, tails, last_ends)


def _taken_over(
    mirror: Mirror, names: Collection[str], their_mirrors: TheirMirrors
) -> list[MadeAcl]:
    """The ACLs that deny WRITE to the destination's producers since their switchover to the source.

    The mirror takes them over: its own failover removes them, and does not need the source.
    """
    return [
        MadeAcl(mirror=mirror.name, acl=acl, made_for=MadeFor.READ_ONLY)
        for acl in their_mirrors.denied
        if acl.resource_name in names
    ]


async def _readable_configs(
    source: KafkaCluster, names: Sequence[str]
) -> dict[str, dict[str, SourceConfig]]:
    """The configurations of the topics to be added; one that cannot be read is an error."""
    configs = {}
    for name, entries in (await source_configs(source, names)).items():
        if isinstance(entries, Refusal):
            raise entries.error("read the configurations of the source's topic", topic=name)
        configs[name] = entries
    return configs


def _way(topic: str, origins: Sequence[str], cluster_id: str) -> str:
    """How a topic came from this cluster to the source, as text."""
    through = ", ".join(origins[: origins.index(cluster_id)])
    return f"{topic} from this cluster{through and f', through cluster {through}'}"


def resolve(selection: str | Collection[str], topics: Mapping[str, Topic]) -> list[str]:
    """The names of the selected topics.

    A text selects the topic of exactly this name, if there is one; otherwise all topics, without
    internal ones, whose whole name matches it as a regular expression. Names select all of these
    topics.

    Raises:
        MirrorRefused: INVALID_REGULAR_EXPRESSION, UNKNOWN_TOPIC_OR_PARTITION.
    """
    if not isinstance(selection, str):
        if missing_names := sorted(set(selection) - topics.keys()):
            raise MirrorError.UNKNOWN_TOPIC_OR_PARTITION.error(
                f"not topics of the source: {', '.join(missing_names)}", hint=_NOT_SEEN
            )
        return sorted(set(selection))
    if selection in topics:
        return [selection]
    names = matching(selection, topics)
    if not names:
        raise MirrorError.UNKNOWN_TOPIC_OR_PARTITION.error(
            f"no topic of the source has the name or matches the regular expression {selection!r}",
            hint=f"{_NOT_SEEN}; internal topics (__...) are mirrored only if given by their exact "
            "name",
        )
    return names


def matching(expression: str, topics: Mapping[str, Topic]) -> list[str]:
    """The topics whose whole name matches, sorted and without internal ones.

    Raises:
        MirrorRefused: INVALID_REGULAR_EXPRESSION.
    """
    pattern = compiled(expression)
    return sorted(
        name
        for name, topic in topics.items()
        if pattern.fullmatch(name) and not topic.internal and not name.startswith(INTERNAL)
    )


def compiled(expression: str) -> re.Pattern[str]:
    """Compile a regular expression for topic names.

    Raises:
        MirrorRefused: INVALID_REGULAR_EXPRESSION.
    """
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise MirrorError.INVALID_REGULAR_EXPRESSION.error(
            f"{expression!r}: {error}", hint="write '.*' for any text, not '*'"
        ) from error


def usable_topic(topic: Topic) -> Topic:
    """Return a topic of the source whose partitions are known.

    Raises:
        UserError, Retriable: it cannot be described, or not yet.
    """
    if topic.error:
        Refusal(topic.error).fail("describe the source topic", topic=topic.name)
    if not topic.partitions:
        raise Retriable("the source topic has no partitions yet", topic=topic.name)
    return topic


def _diverged(tails: Sequence[DivergentTail]) -> UserError:
    beyond = [f"{t.partition} from offset {t.start} to {t.end - 1}" for t in tails if not t.empty]
    # Retention may have deleted the tail's records; its offsets still keep the log from continuing.
    ranges = few(
        beyond or [f"{t.partition} (no records left, log end offset {t.end})" for t in tails], "; "
    )
    return MirrorError.MIRROR_TOPIC_DIVERGED.error(
        f"offsets exist only on the destination: {ranges}",
        hint="nothing was added; --rebuild deletes these topics and mirrors them from the "
        "beginning, --save-tail DIRECTORY saves these offsets first",
    )
