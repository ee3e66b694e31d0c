"""Results of `MirrorAdmin` about mirrors and their topics.

Each serialises itself (serialise.py), with the names that `kafka-mirrors --json` has for its
fields.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from twinlog.operations.describe import DescribedPartition, MirrorDescription
from twinlog.store.config_records import NotMirrored


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMirrorResult:
    """A mirror that was created, and the cluster that its addresses connect to."""

    mirror: str
    source_cluster_id: str

    def as_json(self) -> Mapping[str, object]:
        """As `--create --json` prints it."""
        return {"created": self.mirror, "cluster_id": self.source_cluster_id}


class ChangedTopics(tuple[str, ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """The names of the topics of a mirror that a request has changed, in order."""

    mirror: str
    change: str
    """What was done to them: added, removed, paused or resumed."""

    def __new__(cls, mirror: str, change: str, names: Collection[str]) -> Self:
        """The names, with the mirror and the change."""
        topics = super().__new__(cls, names)
        topics.mirror, topics.change = mirror, change
        return topics

    def as_json(self) -> Mapping[str, object]:
        """The mirror, and the names under the change."""
        return {"mirror": self.mirror, self.change: list(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterMirrorResult:
    """A mirror of which properties were set."""

    mirror: str
    properties: tuple[str, ...]
    """The names of these properties, in order."""

    def as_json(self) -> Mapping[str, object]:
        """As `--alter --json` prints it."""
        return {"altered": self.mirror, "set": self.properties}


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorListing:
    """A mirror, in short."""

    mirror: str
    topics: int
    """How many, including those that were removed and not forgotten."""
    source_cluster_id: str
    source_bootstrap: str
    config: Mapping[str, str]
    """Its properties as they were set; secrets that are no references are hidden."""
    not_mirrored: NotMirrored
    """What it covers on its source and does not mirror, as of the last refresh."""

    def as_json(self) -> Mapping[str, object]:
        """As `--list --json` prints it."""
        return {
            "mirror": self.mirror,
            "topics": self.topics,
            "cluster_id": self.source_cluster_id,
            "bootstrap_servers": self.source_bootstrap,
            "config": self.config,
            "not_mirrored": dict(self.not_mirrored.topics),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMirrorsResult:
    """All mirrors in the order of their names."""

    mirrors: tuple[MirrorListing, ...]
    unreadable: tuple[str, ...]
    """Records of the control topics that cannot be read: their place and the reason."""

    def as_json(self) -> object:
        """The mirrors; what cannot be read is for people."""
        return self.mirrors


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMirrorResult:
    """A mirror that was deleted."""

    mirror: str
    copied_acls: tuple[str, ...]
    """ACLs that it has copied from its source: they stay on the destination, and a later revocation
    on the source does not remove them."""

    def as_json(self) -> Mapping[str, object]:
        """As `--delete --json` prints it."""
        return {"deleted": self.mirror, "copied_acls": self.copied_acls}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeMirrorsResult:
    """Mirrors in the order of their names."""

    mirrors: tuple[MirrorDescription, ...]
    unreadable: tuple[str, ...]
    """Records of the control topics that cannot be read: their place and the reason."""

    @property
    def partitions(self) -> tuple[DescribedPartition, ...]:
        """All partitions, with their mirrors and topics."""
        return tuple(
            DescribedPartition(mirror, topic, partition)
            for mirror in self.mirrors
            for topic in mirror.topics
            for partition in topic.partitions
        )

    def as_json(self) -> object:
        """A row for each partition; what cannot be read is for people."""
        return self.partitions
