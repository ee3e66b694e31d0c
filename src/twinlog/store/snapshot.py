"""All mirrors and their topics at one moment: `__mirror_config`, folded.

A snapshot is immutable: a change gives a new snapshot, which can be compared with the former one.
Unreadable records are not skipped silently: `unreadable` lists them for the operator, and the other
records hold. An earlier record with the same key no longer holds: a reader that starts at the log
start offset would not see it either.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

from twinlog.kafka.acls import Acl
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Retriable, UnsupportedVersion
from twinlog.mirror.flow import settings_texts
from twinlog.mirror.placement import MirrorPartition, state_partition
from twinlog.store.config_records import (
    MIRROR_VERSION,
    ConfigRecord,
    Feature,
    Followed,
    MadeAcl,
    MadeFor,
    Mirror,
    MirrorTopic,
    NotMirrored,
    StopRequest,
    Tombstone,
    Wanted,
    decode,
    encode_key,
    key_of,
)

LEVEL: Final = 1
"""The level of `mirror.version` that this version writes, and the only one that it knows."""
_FORMAT: Final = ("feature", MIRROR_VERSION)


class SettingsReplaced(Retriable):
    """A flow's settings are other ones now than those by which its topics were selected and named.

    Nothing was written. What was found by the former settings must not be tried again.
    """


class StoredRecord(NamedTuple):
    """A record's partition, offset, key and value, and when its broker has appended it, in ms."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = -1


class Place(NamedTuple):
    """The partition and time of the last record, or tombstone, of a key."""

    timestamp: int
    partition: int


@dataclass(frozen=True)
class Snapshot:
    """The desired state: records by key (see store/config_records.py).

    Mirrors, topics and ACLs are indexed once, at their first use.
    """

    records: Mapping[tuple[str, ...], ConfigRecord] = field(
        default_factory=lambda: MappingProxyType({})
    )
    unreadable: Mapping[tuple[int, bytes | None], str] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Why a record cannot be read, by its partition and key."""
    ends: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """The offset behind the last record in the snapshot, by partition."""
    places: Mapping[bytes | None, Place] = field(default_factory=lambda: MappingProxyType({}))
    """Where the last record of each key is stored. When partitions are added to the topic, the hash
    of a key gives another partition. A record there would not be compacted with the former one, and
    the two would have no order. So a key keeps its partition. If an older version has written to
    both, the broker's time decides."""

    @cached_property
    def mirrors(self) -> Mapping[str, Mirror]:
        """Mirrors by name, in the order of names."""
        mirrors = [record for record in self.records.values() if isinstance(record, Mirror)]
        return MappingProxyType(
            {mirror.name: mirror for mirror in sorted(mirrors, key=lambda mirror: mirror.name)}
        )

    @cached_property
    def topics(self) -> tuple[MirrorTopic, ...]:
        """Topics of all mirrors that exist, in the order of mirror and name."""
        topics = [
            record
            for record in self.records.values()
            if isinstance(record, MirrorTopic) and ("mirror", record.mirror) in self.records
        ]
        return tuple(sorted(topics, key=lambda topic: (topic.mirror, topic.topic)))

    def stored_ms(self, record: ConfigRecord) -> int | None:
        """When the broker has appended the present record of this key, in ms since 1970.

        None: it is not known.
        """
        place = self.places.get(encode_key(key_of(record)))
        return None if place is None or place.timestamp < 0 else place.timestamp

    def topics_of(self, mirror: str) -> Sequence[MirrorTopic]:
        """Topics of one mirror, in the order of names."""
        return self._by_mirror.get(mirror, ())

    @cached_property
    def _by_mirror(self) -> Mapping[str, Sequence[MirrorTopic]]:
        topics_by_mirror: defaultdict[str, list[MirrorTopic]] = defaultdict(list)
        for topic in self.topics:
            topics_by_mirror[topic.mirror].append(topic)
        return topics_by_mirror

    def made_acls(self, mirror: str, made_for: MadeFor) -> frozenset[Acl]:
        """The ACLs that a mirror has created for this purpose."""
        return self._made_acls.get((mirror, made_for), frozenset())

    @cached_property
    def _made_acls(self) -> Mapping[tuple[str, MadeFor], frozenset[Acl]]:
        acls_by_purpose: defaultdict[tuple[str, MadeFor], set[Acl]] = defaultdict(set)
        for record in self.records.values():
            if isinstance(record, MadeAcl):
                acls_by_purpose[record.mirror, record.made_for].add(record.acl)
        return {key: frozenset(acls) for key, acls in acls_by_purpose.items()}

    @property
    def copied_acls(self) -> frozenset[Acl]:
        """The ACLs copied from sources, also those of a mirror whose own record is unreadable."""
        of_sources = [acls for key, acls in self._made_acls.items() if key[1] is MadeFor.SOURCE]
        return frozenset[Acl]().union(*of_sources)

    def made_of(self, source_cluster_id: str, made_for: MadeFor) -> frozenset[Acl]:
        """The ACLs that the mirrors of a source have created, on the source or the destination."""
        mirror_names = {
            mirror.name
            for mirror in self.mirrors.values()
            if mirror.source_cluster_id == source_cluster_id
        }
        return frozenset(acl for name in mirror_names for acl in self.made_acls(name, made_for))

    def not_mirrored(self, mirror: str) -> NotMirrored:
        """Source topics that a mirror should mirror and does not, as of its last refresh."""
        record = self.records.get(("not-mirrored", mirror))
        if isinstance(record, NotMirrored):
            return record
        return NotMirrored(mirror=mirror, topics=(), total=0)

    def followed(self, mirror: str, topic: str) -> Followed | None:
        """How far behind a compacted topic was; None if it was never followed."""
        record = self.records.get(("followed", mirror, topic))
        return record if isinstance(record, Followed) else None

    @property
    def stops(self) -> dict[str, StopRequest]:
        """Stop requests by node."""
        return {r.node: r for r in self.records.values() if isinstance(r, StopRequest)}

    @property
    def level(self) -> int | None:
        """The control topics' format, `mirror.version`; None if it was never written."""
        record = self.records.get(_FORMAT)
        return record.level if isinstance(record, Feature) else None

    def count(self, name: str) -> int | None:
        """A stored partition count, by its name in `config_records`; None if none is stored."""
        record = self.records.get(("feature", name))
        return record.level if isinstance(record, Feature) else None

    def known(self) -> "Snapshot":
        """Return the snapshot if its format is known.

        Raises:
            UnsupportedVersion: the format is not known; nothing in the snapshot may be relied on.
        """
        level = "" if self.level is None else str(self.level)
        for (_, key), trouble in self.unreadable.items():
            if key == encode_key(_FORMAT):
                level = f"(unreadable: {trouble})"
        if level in {"", str(LEVEL)}:
            return self
        raise UnsupportedVersion(
            f"UNSUPPORTED_VERSION: the control topics have {MIRROR_VERSION} {level}, expected "
            f"{LEVEL}",
            hint="use a version of twinlog that supports it",
            code=ErrorCode.UNSUPPORTED_VERSION,
        )

    @cached_property
    def unread(self) -> Mapping[tuple[str, ...], str]:
        """Why a record cannot be read, by its key; records with an unreadable key are left out.

        The desired state of the object that such a key names is not known: the object is neither
        started nor stopped.
        """
        tombstones = ((_tombstone(key), reason) for (_, key), reason in self.unreadable.items())
        return MappingProxyType(
            {tombstone.key: reason for tombstone, reason in tombstones if tombstone is not None}
        )

    def unread_topics(self, mirror: str) -> dict[str, str]:
        """Topics of a mirror whose desired state is not known, with why: an unreadable record."""
        return {
            key[2]: reason for key, reason in self.unread.items() if key[:2] == ("topic", mirror)
        }

    @property
    def unknown_topics(self) -> dict[str, str]:
        """Topics that may or may not be in a mirror, with the reason: an unreadable record."""
        reasons: dict[str, str] = {}
        for key, reason in self.unread.items():
            if key[0] == "topic":
                reasons[key[2]] = reason
            elif key[0] == "mirror":
                mirror_topics = [
                    record for record in self.records.values() if isinstance(record, MirrorTopic)
                ]
                reasons |= {
                    topic.topic: reason for topic in mirror_topics if topic.mirror == key[1]
                }
        return reasons

    def mirror_of(self, topic: str) -> MirrorTopic | None:
        """The mirror topic of a destination topic, unless it was removed from its mirror.

        The first one of several: flows may copy to the same topic.
        """
        return self._mirroring.get(topic)

    @cached_property
    def _mirroring(self) -> Mapping[str, MirrorTopic]:
        # The first of several mirrors counts.
        active_topics = (
            topic for topic in reversed(self.topics) if topic.wanted is not Wanted.STOPPED
        )
        return {topic.destination_name: topic for topic in active_topics}

    def deleted(self, later: "Snapshot") -> set[tuple[str, str]]:
        """Topics, with their mirror, without a record in a later snapshot, readable or not."""
        earlier_keys, later_keys = (
            {*snapshot.records, *snapshot.unread} for snapshot in (self, later)
        )
        return {(key[1], key[2]) for key in earlier_keys - later_keys if key[0] == "topic"}

    def recreated(self, later: "Snapshot") -> set[tuple[str, str]]:
        """Topics, with their mirror, whose destination topic is another one in a later snapshot."""
        earlier_topics = {(topic.mirror, topic.topic): topic for topic in self.topics}
        return {
            key
            for topic in later.topics
            if (key := (topic.mirror, topic.topic)) in earlier_topics
            and topic.is_recreated(earlier_topics[key])
        }

    def owned(self, count: int) -> dict[int, list[tuple[MirrorPartition, MirrorTopic]]]:
        """Mirror partitions by the state partition, of `count`, that owns them."""
        return owners(self.topics, count)

    def after(self, stored_records: Iterable[StoredRecord]) -> "Snapshot":
        """The snapshot after these records, which must be in each partition's order."""
        records, unreadable, ends = dict(self.records), dict(self.unreadable), dict(self.ends)
        places = dict(self.places)
        for record in stored_records:
            ends[record.partition] = record.offset + 1
            place = Place(record.timestamp, record.partition)
            known_place = places.get(record.key, place)
            if record.key is not None and known_place.partition != place.partition:
                # An older version has written the key to two partitions: the later record holds.
                if known_place > place:
                    continue
                unreadable.pop((known_place.partition, record.key), None)
            places[record.key] = place
            slot = (record.partition, record.key)
            unreadable.pop(slot, None)
            try:
                change = decode(record.key, record.value)
            except ProtocolError as error:
                unreadable[slot] = (
                    f"__mirror_config-{record.partition}, offset {record.offset}: {error.message}"
                )
                change = _tombstone(record.key)
            if isinstance(change, ConfigRecord):
                records[key_of(change)] = change
            elif change is not None:
                records.pop(change.key, None)
        return Snapshot(
            MappingProxyType(records),
            MappingProxyType(unreadable),
            MappingProxyType(ends),
            MappingProxyType(places),
        )


def _tombstone(key: bytes | None) -> Tombstone | None:
    """The tombstone of a key, if the key can be read."""
    try:
        change = decode(key, None)
    except ProtocolError:
        return None
    return change if isinstance(change, Tombstone) else None


def require_settings(snapshot: Snapshot, flow: Mirror) -> None:
    """Check that a flow still has the settings by which its topics were selected and named.

    Each of the flow's own counts: the remote name, the selection and the rest of what is stored
    with a topic (where it begins, for example) depend on many. Connections and throttles do not,
    unless they are to another cluster: the flow was deleted and created again.

    Args:
        snapshot: all mirrors. One without the flow passes: whoever adds topics refuses that.
        flow: the flow, as it was read.

    Raises:
        SettingsReplaced: its settings are other ones now.
    """
    stored = snapshot.mirrors.get(flow.name)
    if stored is not None and (stored.source_cluster_id, settings_texts(stored.source)) != (
        flow.source_cluster_id,
        settings_texts(flow.source),
    ):
        raise SettingsReplaced(
            f"settings of flow {flow.name} have changed since its topics were selected; nothing "
            "was added",
            hint="a node adds topics by the present settings at its next refresh; try a command "
            "again",
        )


def shared_topics(topics: Iterable[MirrorTopic]) -> dict[str, list[str]]:
    """The topics of a mirror that are copied to one topic, by that topic's name.

    A removed topic counts: its records are still there. A replication policy of one's own may name
    topics so. One offset of a group, or one checkpoint, is then about several logs of the source.

    Args:
        topics: all topics of one mirror.
    """
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for topic in topics:
        sources[topic.destination_name].append(topic.topic)
    return {remote: sorted(names) for remote, names in sources.items() if len(names) > 1}


def owners(
    topics: Iterable[MirrorTopic], count: int
) -> dict[int, list[tuple[MirrorPartition, MirrorTopic]]]:
    """The partitions of topics by the state partition, of `count`, that owns them."""
    owned_partitions: dict[int, list[tuple[MirrorPartition, MirrorTopic]]] = {}
    for topic in topics:
        for name in topic.mirror_partitions:
            place = state_partition(name.mirror, topic.topic_id, name.partition, count)
            owned_partitions.setdefault(place, []).append((name, topic))
    return owned_partitions
