"""The mirrors of a destination cluster: reads, follows, and safe changes by concurrent writers.

The database is the destination cluster (store/control_topics.py). A change is *fence, read, decide,
write* under one fixed transactional id. A later fence makes the earlier writer's write fail. That
writer then starts again and reads what the later writer has written. So if two commands create the
same mirror at once, one succeeds, and the other fails with MIRROR_ALREADY_EXISTS.

The changes of one process take turns, so they never fence each other. A node has many changes, one
or more for each mirror. A fenced node backs off for longer than a command's change takes, so a
command waits for one of the node's changes, not for all.

A write of unknown outcome is read back: it is complete if all its records are stored. Tombstones of
states are in its transaction: if a command dies half way, no topic lacks its last mirrored end.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import UUID

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.tasks import to_its_end
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    Disconnected,
    Fenced,
    Retriable,
    TwinlogError,
    UnsupportedVersion,
    UserError,
)
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import EXACT, FLOW_KINDS
from twinlog.mirror.states import State
from twinlog.store.config_records import (
    MIRROR_VERSION,
    ConfigChange,
    Feature,
    Followed,
    MadeAcl,
    Mirror,
    MirrorTopic,
    NotMirrored,
    StopRequest,
    Tombstone,
    Wanted,
    key_of,
)
from twinlog.store.control_topics import (
    CONFIG_PARTITIONS,
    CONFIG_TOPIC,
    CONFIG_WRITER,
    STATE_TOPIC,
    ControlTopics,
    States,
    check_state_partitions,
    config_entry,
    config_reader,
    create_control_topics,
    follow_config,
    forget_entry,
    partition_count,
    state_reader,
    status_reader,
    statuses_of,
)
from twinlog.store.group_log import GROUPS_TOPIC, create_groups_topic
from twinlog.store.partition_counts import known_partition_count
from twinlog.store.shared_remotes import NO_IDS, check_positions, require_sole_copy
from twinlog.store.snapshot import LEVEL, Snapshot, owners, require_settings
from twinlog.store.state_records import epochs_key, state_key
from twinlog.store.status_records import Status
from twinlog.store.topic_reader import ControlRecord
from twinlog.store.topic_writer import Entry, TransactionalWriter
from twinlog.text import few

log = logging.getLogger(__name__)

_AUTHORIZATION_FAILED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""A missing right to the topic, the cluster or the transactional id."""
_OF_NO_MIRROR: Final = frozenset({"stop", "feature"})
"""Keys that begin with these do not name a mirror."""
_COMMAND: Final = Backoff(0.05, 1.0)
_BACKGROUND: Final = Backoff(0.5, 4.0)
"""Backoff after a change was fenced. A node's backoff is longer than a command's whole change."""

Changes: TypeAlias = Sequence[ConfigChange | Entry]
"""Changes of `__mirror_config`, and entries of other control topics in the same transaction."""
Decide = Callable[[Snapshot], Changes | Awaitable[Changes]]
Forget = Callable[[Mirror], Awaitable[list[Entry]]]
"""What else is deleted with a mirror."""
SETTLED_S: Final = 10.0
"""Seconds that a command waits for the actions that a node takes by itself after a failover."""
_LOOK_S: Final = 0.2
STOPPED_HINT: Final = "wait until --describe shows STOPPED; a node (twinlog run) must be running"


class MirrorStore:
    """Mirrors, their topics and their states in one destination cluster.

    `background`: the changes belong to a node, and give way to commands.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        background: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self._cluster = cluster
        self._backoff = _BACKGROUND if background else _COMMAND
        self._rng = rng or random.Random()  # noqa: S311 (jitter, no secret)
        self._config = config_reader(cluster)
        self._states = state_reader(cluster)
        self._statuses = status_reader(cluster)

    async def snapshot(self) -> Snapshot:
        """All mirrors and topics as they are now; empty if no mirror was ever created.

        After the first call, this method, `states` and `statuses` read only newer records.
        """
        return (await self._config.read()).snapshot

    def follow(self) -> AsyncGenerator[Snapshot, None]:
        """All mirrors and topics, again after each change (see `control_topics.follow_config`)."""
        return follow_config(self._cluster)

    async def states(self) -> States:
        """Each mirror partition's state, as its owner has written it."""
        return await self._states.read()

    async def statuses(self) -> tuple[dict[int, Status], tuple[str, ...]]:
        """The last status of each state partition, and the unreadable records."""
        return statuses_of((await self._statuses.read()).values())

    async def create_mirror(self, mirror: Mirror, topics: ControlTopics | None = None) -> None:
        """Write a new mirror; the first one also creates control topics and `mirror.version`.

        Raises:
            MirrorRefused: MIRROR_ALREADY_EXISTS.
            UserError: a right is missing.
            Retriable: no success in time; nothing was written, or `mirror` is stored.
        """

        def decide(snapshot: Snapshot) -> Changes:
            if mirror.name in snapshot.mirrors:
                raise MirrorError.MIRROR_ALREADY_EXISTS.error(
                    f"mirror {mirror.name} already exists", hint="choose another name"
                )
            if snapshot.level is None:
                return [Feature(name=MIRROR_VERSION, level=LEVEL), mirror]
            return [mirror]

        topics = topics or ControlTopics()
        await create_control_topics(self._cluster, topics)
        try:
            await create_groups_topic(self._cluster, topics.replication_factor)
        except TwinlogError as error:
            # Mirroring needs the other control topics; this one may be missing (group_log.py).
            log.warning("cannot create %s: %s", GROUPS_TOPIC, error)
        await self.change(decide)

    async def add_topics(
        self,
        mirror: str,
        topics: Collection[MirrorTopic],
        pattern: str | None = None,
        made_acls: Collection[MadeAcl] = (),
        while_matching: str | None = None,
        *,
        named_by: Mirror | None = None,
    ) -> None:
        """Add topics, a pattern and ACLs to a mirror: all or none.

        If a topic was recreated on the source, its states are forgotten: with another source topic
        id, another state partition owns it. If the topic was recreated on the destination, its last
        mirrored end is forgotten.

        Args:
            mirror: the mirror's name.
            topics: topics that the mirror has from now on; paused if it is.
            pattern: a topic pattern that the mirror has from now on.
            made_acls: ACLs that belong to the mirror from now on.
            while_matching: the mirror's pattern that adds the topics, if one does.
            named_by: the flow whose settings have selected and named the topics, as it was read.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, TOPIC_ALREADY_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED;
                TOPIC_NOT_IN_MIRROR if the mirror no longer has the pattern `while_matching`.
            UserError: a right is missing; two topics would share a position (`check_positions`);
                or a remote topic would have each record twice (`require_sole_copy`).
            SettingsReplaced: the flow's settings have changed since (`named_by`).
            Retriable: no success in time: nothing was written, or everything is stored.
        """
        assert all(topic.mirror == mirror for topic in topics)

        async def decide(snapshot: Snapshot) -> Changes:
            names = {topic.topic: topic.destination_name for topic in topics}
            ids = {topic.topic: topic.topic_id for topic in topics}
            if named_by is not None:
                require_settings(snapshot, named_by)
            await self.check_addable(snapshot, mirror, names, ids)
            check_set_back(snapshot, names.values())
            stored_mirror = snapshot.mirrors[mirror]
            # Another command may have added a topic since the caller has looked.
            check_positions(stored_mirror.kind, snapshot.topics_of(mirror), names)
            if while_matching is not None and while_matching not in stored_mirror.topic_patterns:
                raise MirrorError.TOPIC_NOT_IN_MIRROR.error(
                    f"{while_matching!r} is no longer a topic pattern of mirror {mirror}"
                )
            tombstones = await self._of_recreated(mirror, topics, snapshot)
            paused = [replace(topic, wanted=Wanted.PAUSED) for topic in topics]
            added = paused if stored_mirror.paused else topics
            changes: Changes = [*tombstones, *added, *made_acls]
            if pattern is None or pattern in stored_mirror.topic_patterns:
                return changes
            return [
                *changes,
                replace(stored_mirror, topic_patterns=(*stored_mirror.topic_patterns, pattern)),
            ]

        await self.change(decide)

    async def request_stop(self, node: str, now_ms: int) -> None:
        """Ask a node to end; do not wait behind the other changes of this process."""
        await self._change(lambda _: [StopRequest(node=node, requested_ms=now_ms)])

    async def check_addable(
        self,
        snapshot: Snapshot,
        mirror: str,
        topics: Mapping[str, str],
        ids: Mapping[str, UUID] = NO_IDS,
    ) -> None:
        """Refuse topics that cannot be added to a mirror, or not yet.

        A topic of the destination belongs to one mirror. Only flows may share one, and no two of
        them copy the same topic there. Whoever adds topics checks that in the change itself: what
        was checked before does not show what another node adds at the same time.

        Args:
            snapshot: all mirrors.
            mirror: the mirror's name.
            topics: the destination's names of the topics, by the source's.
            ids: the source's topic ids by name, as far as they are known.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, TOPIC_ALREADY_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED.
            UserError: another mirror copies one to the same remote topic (`require_sole_copy`).
            UnsupportedVersion: a record is unreadable, so it is unknown which mirror has a topic.
            Retriable, UserError: the destination is unreachable, or returns an error code.
        """
        _check_free(snapshot, mirror, topics)
        require_sole_copy(snapshot, snapshot.mirrors[mirror], topics, ids)
        removed_topics = _same_or_at(snapshot, mirror, topics)
        if not removed_topics:
            return
        states = await self.states()  # read after the snapshot: reconciler.py relies on this order
        for topic in sorted(removed_topics, key=lambda topic: topic.topic):
            for name in topic.mirror_partitions:
                state = states.state(name)
                if state is not State.STOPPED:
                    raise MirrorError.MIRROR_TOPIC_BEING_REMOVED.error(
                        f"{name.topic}-{name.partition} of mirror {topic.mirror} is {state.name}",
                        hint=f"nothing was added; {STOPPED_HINT}",
                    )

    async def settled(self, remaining_work: Callable[[Snapshot], object]) -> Snapshot:
        """The snapshot once `remaining_work` finds none for a node, or after SETTLED_S."""
        deadline = time.monotonic() + SETTLED_S
        while remaining_work(snapshot := await self.snapshot()) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
        return snapshot

    async def delete_mirror(
        self,
        mirror: str,
        check: Callable[[Snapshot, States], None],
        forget: Forget | None = None,
    ) -> None:
        """Delete a mirror, its topics and their states; `check` may refuse by raising.

        Args:
            mirror: its name.
            check: gets the snapshot, and the states, which are read after the snapshot.
            forget: called after that; returns what else is written in the same transaction. It may
                be called again if another writer fences.

        Raises:
            UnsupportedVersion: a record of the mirror or of its states cannot be read.
            MirrorRefused, UserError, Retriable: as `change`.
        """

        async def decide(snapshot: Snapshot) -> Changes:
            for key, reason in snapshot.unread.items():
                if key[0] not in _OF_NO_MIRROR and key[1] == mirror:
                    raise _not_overwritten(reason)
            topics = snapshot.topics_of(mirror)
            states = await self.states()
            state_tombstones = await self._without_states(topics, states)
            check(snapshot, states)
            forgotten = [] if forget is None else await forget(snapshot.mirrors[mirror])
            keys = [
                key_of(record)
                for record in snapshot.records.values()
                if isinstance(record, MirrorTopic | MadeAcl | Followed | NotMirrored)
                and record.mirror == mirror
            ]
            config_tombstones = [
                Tombstone(key) for key in (*keys, key_of(snapshot.mirrors[mirror]))
            ]
            return [*forgotten, *state_tombstones, *config_tombstones]

        await self.change(decide)

    async def _of_recreated(
        self, mirror: str, topics: Collection[MirrorTopic], snapshot: Snapshot
    ) -> list[Entry]:
        """Tombstones for records that hold only for former topics of these names.

        Raises:
            UnsupportedVersion: such a record cannot be read.
            Retriable, UserError: the destination is unreachable, or returns an error code.
        """
        topics_by_name = {topic.topic: topic for topic in topics}
        former_topics = [
            topic for topic in snapshot.topics_of(mirror) if topic.topic in topics_by_name
        ]
        same_source_topics = [
            topic
            for topic in former_topics
            if topic.topic_id == topics_by_name[topic.topic].topic_id
        ]
        other_source_topics = [topic for topic in former_topics if topic not in same_source_topics]
        recreated_topics = [
            topic for topic in same_source_topics if topics_by_name[topic.topic].is_recreated(topic)
        ]
        if not other_source_topics and not recreated_topics:
            return []
        states = await self.states()
        # A topic recreated on the destination alone keeps its state partition and its states.
        return [
            *await self._without_states(other_source_topics, states),
            *await self._without_states(recreated_topics, states, [epochs_key]),
        ]

    async def _without_states(
        self,
        topics: Collection[MirrorTopic],
        states: States,
        keys: Sequence[Callable[[MirrorPartition], bytes]] = (state_key, epochs_key),
    ) -> list[Entry]:
        """Tombstones for the states and last mirrored ends of topics that are no longer mirrored.

        Raises:
            UnsupportedVersion: one of these records cannot be read.
            Retriable: it is unknown in which state partitions they are.
        """
        if not topics:
            return []
        # Not a guessed one: in another state partition, the tombstones would hide nothing.
        count = await known_partition_count(self._cluster, STATE_TOPIC)
        tombstones = [
            forget_entry(key(partition), place)
            for place, owned_partitions in owners(topics, count).items()
            for partition, _ in owned_partitions
            for key in keys
        ]
        _refuse_unreadable(tombstones, STATE_TOPIC, states.unreadable)
        return tombstones

    async def change(self, decide: Decide) -> None:
        """Fence, read, decide, write; retry if another writer fences in between.

        Nothing is written if `decide` returns no changes.

        Raises:
            MirrorRefused: raised by `decide`; nothing was written.
            UnsupportedVersion: the control topics' format is not known; nothing was written.
            UserError: a right is missing.
            Retriable: no success in time; nothing was written, or everything is stored.
        """
        async with self._cluster.turns[CONFIG_WRITER]:
            await self._change(decide)

    async def _change(self, decide: Decide) -> None:
        config_partitions = self._config.partitions or await partition_count(
            self._cluster, CONFIG_TOPIC
        )
        if config_partitions is None:
            await _decided(decide, Snapshot())  # no topic yet: `decide` may refuse before the fence
        writer = TransactionalWriter(self._cluster, CONFIG_WRITER)
        unknown_entries: list[Entry] = []
        timeout = self._cluster.config.api_timeout
        deadline = time.monotonic() + timeout
        for number in itertools.count(1):
            try:
                unknown_entries = await self._attempt(writer, decide, unknown_entries)
                if not unknown_entries:
                    return
            except Fenced:
                share = self._rng.uniform(0.3, 1.0)
                await asyncio.sleep(self._backoff.delay(number, self._rng.random()) * share)
            except UserError as error:
                if error.code not in _AUTHORIZATION_FAILED:
                    raise
                raise _unauthorized(error) from error
            if time.monotonic() > deadline:
                break
        if unknown_entries:
            raise Retriable(
                f"unknown whether it was written: no answer to the commit within {timeout:g} s",
                cluster=self._cluster.name,
                hint="check with --describe, then try again",
            )
        raise Retriable(
            f"not written: other writers changed {CONFIG_TOPIC} for {timeout:g} s ({number} tries)",
            cluster=self._cluster.name,
            hint="try again",
        )

    async def _attempt(
        self, writer: TransactionalWriter, decide: Decide, unknown_entries: list[Entry]
    ) -> list[Entry]:
        """Fence, read, decide, write once; return the entries whose outcome is unknown."""
        await writer.fence()
        # Where the topic was created just now, a broker may not know it yet.
        log = await self._cluster.persist(self._config.read)
        # The fence has ended the last attempt's transaction, so its outcome can be read now.
        if unknown_entries and all(_stands(entry, log.table) for entry in unknown_entries):
            return []
        counts = await check_state_partitions(self._cluster, log.snapshot)
        changes = list(await _decided(decide, log.snapshot))
        # The partition count is stored with the first mirror, or else with the next change.
        if log.snapshot.mirrors or any(isinstance(change, Mirror) for change in changes):
            changes += counts if changes else ()
        count = self._config.partitions or CONFIG_PARTITIONS
        entries = [
            change
            if isinstance(change, Entry)
            else config_entry(change, count, log.snapshot.places)
            for change in changes
        ]
        _refuse_unreadable(entries, CONFIG_TOPIC, log.snapshot.unreadable)
        return await _written(writer, entries) if entries else []


def _refuse_unreadable(
    entries: Sequence[Entry], topic: str, unreadable: Mapping[tuple[int, bytes | None], str]
) -> None:
    """Refuse to overwrite unreadable records: a newer version may have written them.

    Raises:
        UnsupportedVersion: nothing was written.
    """
    for entry in entries:
        if entry.topic == topic and (reason := unreadable.get((entry.partition, entry.key))):
            raise _not_overwritten(reason)


def _not_overwritten(reason: str) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"refusing to overwrite a record that cannot be read: {reason}",
        hint="nothing was changed; use a version of twinlog that can read it",
    )


def _unauthorized(error: UserError) -> MirrorRefused:
    """The error that the client may not change mirrors; `code` stays Kafka's."""
    topic_text = "" if error.topic is None else f"{error.topic}: "
    refusal = MirrorError.MIRROR_AUTHORIZATION_FAILED.error(
        f"{topic_text}{error.message}", hint=error.hint
    )
    refusal.code = error.code
    return refusal


async def _decided(decide: Decide, snapshot: Snapshot) -> Changes:
    changes = decide(snapshot)
    return await changes if isinstance(changes, Awaitable) else changes


async def _written(writer: TransactionalWriter, entries: list[Entry]) -> list[Entry]:
    """Write entries; return those of `__mirror_config` if the outcome is unknown."""
    try:
        await to_its_end(writer.write(entries))  # else its transaction stays open for 30 s
    except Disconnected:
        return [entry for entry in entries if entry.topic == CONFIG_TOPIC]
    return []


def _stands(entry: Entry, table: Mapping[tuple[int, bytes | None], ControlRecord]) -> bool:
    """Whether an entry is stored under its key; a tombstone is, if the key has no record."""
    record = table.get((entry.partition, entry.key))
    return entry.value == (None if record is None else record.value)


def _same_or_at(snapshot: Snapshot, mirror: str, topics: Mapping[str, str]) -> list[MirrorTopic]:
    """The topics that are these of the mirror, or are where these may not be copied to."""
    names = {*topics.values()}

    def shares(topic: MirrorTopic) -> bool:
        kinds = {snapshot.mirrors[name].kind for name in (mirror, topic.mirror)}
        return topic.destination_name in names and EXACT in kinds

    return [
        topic
        for topic in snapshot.topics
        if shares(topic) or (topic.mirror == mirror and topic.topic in topics)
    ]


def _check_free(snapshot: Snapshot, mirror: str, topics: Mapping[str, str]) -> None:
    if mirror not in snapshot.mirrors:
        raise unknown_mirror(mirror, snapshot)
    conflicts = {
        topic.destination_name: f"{topic.destination_name} (in {topic.mirror})"
        for topic in _same_or_at(snapshot, mirror, topics)
        if topic.wanted is not Wanted.STOPPED
    }
    if conflicts:
        raise MirrorError.TOPIC_ALREADY_IN_MIRROR.error(
            f"already in a mirror: {', '.join(text for _, text in sorted(conflicts.items()))}",
            hint="nothing was added; choose a --topic that does not match them",
        )
    unknown_topics = snapshot.unknown_topics
    for topic in sorted(unknown_topics.keys() & {*topics, *topics.values()}):
        raise UnsupportedVersion(
            f"cannot determine whether {topic} belongs to a mirror: {unknown_topics[topic]}",
            hint="nothing was added; use a version of twinlog that can read it",
        )


def check_set_back(snapshot: Snapshot, topics: Collection[str]) -> None:
    """Refuse topics whose configurations a node still has to set back.

    The node would overwrite what is set on the topic in the meantime.

    Raises:
        MirrorRefused: MIRROR_TOPIC_BEING_REMOVED.
    """
    if pending_topics := to_be_set_back(snapshot, topics):
        raise MirrorError.MIRROR_TOPIC_BEING_REMOVED.error(
            f"configurations of these topics are not reset yet: {few(pending_topics)}",
            hint="nothing was added; a running node resets them, its log contains errors if it "
            "cannot",
        )


def to_be_set_back(snapshot: Snapshot, topics: Collection[str]) -> list[str]:
    """Those of these topics of the destination that a node still has to set back."""
    return [
        topic.destination_name
        for topic in snapshot.topics
        if topic.destination_name in topics
        and topic.wanted is Wanted.STOPPED
        and topic.set_back is not None
    ]


def stored_flow(snapshot: Snapshot, name: str) -> Mirror:
    """The flow of this name.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR.
        UserError: a mirror of this name is no flow.
    """
    mirror = snapshot.mirrors.get(name)
    if mirror is None:
        raise unknown_mirror(name, snapshot)
    if mirror.kind not in FLOW_KINDS:
        raise UserError(f"mirror {name} is no flow", hint="kafka-mirrors manages it")
    return mirror


def unknown_mirror(mirror: str, snapshot: Snapshot) -> MirrorRefused:
    """The error that a mirror does not exist, with the names of those that do."""
    names = ", ".join(snapshot.mirrors) or "none"
    return MirrorError.UNKNOWN_MIRROR.error(
        f"mirror {mirror} does not exist; existing mirrors: {names}"
    )
