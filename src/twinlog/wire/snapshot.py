"""All mirrors and their topics at one moment: `__mirror_config`, folded.

Immutable: a change gives a new snapshot, so whoever holds one may compare it with the next. Records
that cannot be read are not skipped in silence: what they are is kept in `unreadable`, for a person
to see, and the others hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from twinlog.core.errors import ProtocolError
from twinlog.core.placement import MirrorPartition, state_partition
from twinlog.wire.config_records import (
    ConfigRecord,
    Mirror,
    MirrorTopic,
    StopRequest,
    Wanted,
    decode,
    key_of,
)


class Written(NamedTuple):
    """A record's place, key and value."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is wanted. Records stand under their keys (see wire/config_records.py)."""

    records: Mapping[tuple[str, ...], ConfigRecord] = field(
        default_factory=lambda: MappingProxyType({})
    )
    unreadable: Mapping[tuple[int, bytes | None], str] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Why a record cannot be read, by its partition and key."""

    @property
    def mirrors(self) -> dict[str, Mirror]:
        """Mirrors by name, in the order of names."""
        found = [record for record in self.records.values() if isinstance(record, Mirror)]
        return {mirror.name: mirror for mirror in sorted(found, key=lambda one: one.name)}

    @property
    def topics(self) -> list[MirrorTopic]:
        """Topics of all mirrors that exist, in the order of mirror and name."""
        found = [
            record
            for record in self.records.values()
            if isinstance(record, MirrorTopic) and ("mirror", record.mirror) in self.records
        ]
        return sorted(found, key=lambda one: (one.mirror, one.topic))

    @property
    def stops(self) -> dict[str, StopRequest]:
        """Stop requests by node."""
        return {r.node: r for r in self.records.values() if isinstance(r, StopRequest)}

    def mirror_of(self, topic: str) -> MirrorTopic | None:
        """The mirror that a destination topic belongs to, if it was not removed from it."""
        found = (one for one in self.topics if one.topic == topic)
        return next((one for one in found if one.wanted is not Wanted.STOPPED), None)

    def owned(self, count: int) -> dict[int, list[tuple[MirrorPartition, MirrorTopic]]]:
        """Mirror partitions by the state partition, of `count`, that owns them."""
        return owners(self.topics, count)

    def after(self, written: Iterable[Written]) -> "Snapshot":
        """The snapshot after these records, which must be in each partition's order."""
        records, unreadable = dict(self.records), dict(self.unreadable)
        for record in written:
            slot = (record.partition, record.key)
            unreadable.pop(slot, None)
            try:
                change = decode(record.key, record.value)
            except ProtocolError as error:
                unreadable[slot] = (
                    f"__mirror_config-{record.partition}, offset {record.offset}: {error.message}"
                )
                continue
            if isinstance(change, Mirror | MirrorTopic | StopRequest):
                records[key_of(change)] = change
            elif change is not None:
                records.pop(change.key, None)
        return Snapshot(MappingProxyType(records), MappingProxyType(unreadable))


def owners(
    topics: Iterable[MirrorTopic], count: int
) -> dict[int, list[tuple[MirrorPartition, MirrorTopic]]]:
    """The partitions of topics by the state partition, of `count`, that owns them."""
    owned: dict[int, list[tuple[MirrorPartition, MirrorTopic]]] = {}
    for topic in topics:
        for index in range(topic.partitions):
            place = state_partition(topic.mirror, topic.topic_id, index, count)
            mirrored = MirrorPartition(topic.mirror, topic.topic, index)
            owned.setdefault(place, []).append((mirrored, topic))
    return owned
