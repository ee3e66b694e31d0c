"""Records of `__mirror_config`: the mirrors, and the desired state of their topics.

Keys and values are JSON, so any console consumer can read them. KIP-1279 keeps these records in the
destination's metadata log, which clients cannot write to on a stock broker.

    key                                  value, version 1
    -----------------------------------  ---------------------------------------------------------
    ["mirror", mirror]                   source: {property: value}, source_cluster_id,
                                         topic_patterns: [regex], replication_factor: int or null
    ["topic", mirror, topic]             topic_id (source's), partitions (when added),
                                         origins: [cluster id], absent if there are none,
                                         destination_topic_id, absent if it was not known,
                                         destination_topic: name, absent if it is the same,
                                         begins: [offset of the source or -1, ...] by partition,
                                         absent unless the flow has taken over from another program,
                                         followed_from: [offset of the source or -1, ...] by
                                         partition, absent unless the flow begins at the end,
                                         set_back: {name: value}, what the failover sets back;
                                         absent if nothing is left to set back,
                                         lost_topic_ids: [id, ...] of former topics of its name on
                                         the destination, absent if there are none,
                                         known_before: true, only if the flow had a topic of this
                                         name with another topic_id before,
                                         source_deleted: true, only if the topic was removed
                                         from the mirror because it was deleted on the source,
                                         not_selected: true, only if it was removed from a flow
                                         because its settings do not select it,
                                         wanted: MIRRORING, PAUSED or STOPPED
    ["followed", mirror, topic]          caught_up_ms, retention_ms, behind_ms,
                                         destination_topic_id, absent if it was not known;
                                         for compacted topics (sync/compaction.py)
    ["not-mirrored", mirror]             topics: {topic: reason}, total: how many there are
    ["stop", node]                       requested_ms
    ["acl", mirror, resource type, resource name, pattern type, principal, host, operation,
     permission]                         made_for: SOURCE (a copy) or READ_ONLY (kafka/acls.py)
    ["source-acl", mirror, resource type, ...]
                                         made_for: SWITCHOVER (operations/switchover/denials.py)
    ["feature", "mirror.version"]        level: int
    ["feature", "state.partitions"]      level: how many partitions __mirror_state has

`mirror.version` is KIP-1279's feature level: the format of all control topics. It is written with
the first mirror, and is 1 if it is missing. This record has the same form in all levels, so that a
version can report a level that it does not know. Records of unknown kinds are left alone.

`destination_topic_id` was added without a new level: older versions leave it out. If it is absent,
it is not known whether the destination's topic was recreated. `followed`, `not-mirrored`,
`source_deleted`, `followed_from`, `known_before` and `not_selected` were also added later; older
versions leave them out.

A mirror, its topics and the ACLs that it has created are in one partition, that of the mirror's
name (mirror/placement.py), so that they are read in the order in which they were written. A stop
request is in the partition of the node's name, a feature level in that of the feature's name.

Source properties are stored as the user wrote them: a value that refers to a secret (`${file:...}`,
`${env:...}`) stays a reference, and each client that connects resolves it. Values that hold the
secret itself are readable by all principals that may read the topic.
"""

import base64
import binascii
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import kind_of
from twinlog.store.json_fields import JsonObject, decode_json, encode_json

MIRROR_VERSION: Final = "mirror.version"
STATE_COUNT: Final = "state.partitions"

_VERSION: Final = 1
_WHAT: Final = "a record of __mirror_config"
_UUID_BYTES: Final = 16
_MAX_OFFSET: Final = (1 << 63) - 1
MAX_PARTITIONS: Final = 1_000_000
"""Partitions of a topic: more than fit in one answer of a broker (`frames.MAX_DECODED`)."""
MAX_NAMED: Final = 500
"""Topics in a `NotMirrored`: with names of 249 characters the record stays below 1 MB."""
MAX_REASON: Final = 300
"""Characters of a reason in a `NotMirrored`."""


class Wanted(enum.Enum):
    """The desired state of a topic; its partitions reach it through their states."""

    MIRRORING = "MIRRORING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class MadeFor(enum.Enum):
    """Why an ACL was created."""

    SOURCE = "SOURCE"
    """It is a copy of an ACL of the source."""
    READ_ONLY = "READ_ONLY"
    """It keeps other clients from writing to a mirror's topic."""
    SWITCHOVER = "SWITCHOVER"
    """It keeps producers from writing to a topic of the source. The ACL is on the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A named set of topics that follow one source."""

    name: str
    source: Mapping[str, str] = field(repr=False)
    """Properties of the connection and of the mirror, as the user gave them. May hold secrets."""
    source_cluster_id: str
    topic_patterns: tuple[str, ...] = ()
    replication_factor: int | None = None
    """For the topics that are created for this mirror; None is the destination's default."""
    paused: bool = False
    """Whether topics that it gets are paused; only for flows (lifecycle/flow_selection.py)."""

    @property
    def kind(self) -> str:
        """Which engine mirrors it."""
        return kind_of(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTopic:
    """A topic of a mirror."""

    mirror: str
    topic: str
    topic_id: UUID
    """Of the topic on the source."""
    partitions: int
    """The source's partition count when the topic was added."""
    wanted: Wanted = Wanted.MIRRORING
    origins: tuple[str, ...] = ()
    """Ids of the clusters from which the source itself mirrors the topic, the nearest first."""
    set_back: tuple[tuple[str, str], ...] | None = None
    """Configurations to set at failover, among those that mirroring requires; the others of these
    are unset (mirror/topic_configs.py). None: done, or nothing was ever to be set back."""
    destination_topic_id: UUID | None = None
    """Of the topic on the destination; None if it was not known when the topic was added."""
    destination_topic: str | None = None
    """Its name on the destination, if that is another one; never for a mirror of kind `exact`."""
    lost_topic_ids: tuple[UUID, ...] = ()
    """Ids of former topics of that name, which was deleted and recreated while the flow had it: in
    the present one it goes on behind what it has copied to these (sync/recreated_remotes.py)."""
    begins: tuple[int, ...] = ()
    """By partition, the offset of the source from which on it is copied, as another program has
    copied all before; -1, or none: there is none. Only for flows (lifecycle/flow_takeover.py)."""
    followed_from: tuple[int, ...] = ()
    """By partition, the offset of the source at which a flow begins that begins at the end
    (`auto.offset.reset=latest`): the end when the partition was added, or 0 if it did not exist
    when the flow began; -1: not known yet. If there is one for each partition, all brokers of the
    source have shown no more partitions since the topic was added (sync/flow_begins.py)."""
    whole: bool = False
    """Whether all of it is copied since it was recreated on the source: what another program has
    recorded is about the former topic. Only for flows."""
    known_before: bool = False
    """Whether the flow had a topic of this name with another id before, of which its remote topic
    may have records."""
    source_deleted: bool = False
    """Whether it was removed because it was deleted on the source, and not by an operator."""
    not_selected: bool = False
    """Whether it was removed because the flow's settings do not select it, and not by an operator:
    once they do, it goes on (lifecycle/flow_selection.py)."""
    offsets_topic_id: UUID | None = None
    """Of `__mirror_offsets` when the topic was added to a flow; None if it was not known. Another
    one lacks what was recorded before."""

    @property
    def incarnation(self) -> tuple[str, str, UUID, UUID | None]:
        """An identity that changes if the topic is recreated, on either side."""
        return self.mirror, self.topic, self.topic_id, self.destination_topic_id

    @property
    def may_return(self) -> bool:
        """Whether a node adds it again, as no operator has removed it."""
        return self.wanted is Wanted.STOPPED and (self.source_deleted or self.not_selected)

    def is_recreated(self, former: "MirrorTopic") -> bool:
        """Whether the destination's topic is known to be recreated since the former record.

        Not where a flow goes on in the new one: what is known of its partitions holds there, too.
        """
        if former.destination_topic_id in self.lost_topic_ids:
            return False
        ids = {self.destination_topic_id, former.destination_topic_id}
        return None not in ids and len(ids) == 2

    @property
    def destination_name(self) -> str:
        """The topic's name on the destination."""
        return self.destination_topic or self.topic

    def begin(self, partition: int) -> int | None:
        """The offset from which on a partition is copied, if another program has copied before."""
        begin = self.begins[partition] if partition < len(self.begins) else -1
        return None if begin < 0 else begin

    def follows_from(self, partition: int) -> int | None:
        """Where a partition begins in a flow that begins at the end, if that is stored."""
        known = partition < len(self.followed_from) and self.followed_from[partition] >= 0
        return self.followed_from[partition] if known else None

    def on_destination(self, name: MirrorPartition) -> TopicPartition:
        """One of its partitions, as the destination names it."""
        return TopicPartition(self.destination_name, name.partition)

    @property
    def mirror_partitions(self) -> list[MirrorPartition]:
        """Its partitions, in order."""
        return [MirrorPartition(self.mirror, self.topic, index) for index in range(self.partitions)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeAcl:
    """An ACL that this mirror has created, or is about to create; it did not exist before.

    `made_for` determines whether the ACL is on the destination or on the source.
    """

    mirror: str
    acl: Acl
    made_for: MadeFor


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMirrored:
    """Source topics that a mirror should mirror and does not, as of its last refresh."""

    mirror: str
    topics: tuple[tuple[str, str], ...]
    """Names with the reason, in order; at most `MAX_NAMED` topics."""
    total: int
    """How many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """How far behind a mirror's compacted topic was (sync/compaction.py). Milliseconds."""

    mirror: str
    topic: str
    destination_topic_id: UUID | None
    """Of the topic on the destination that this record is about."""
    caught_up_ms: int
    """The destination has everything that the source held at this time."""
    retention_ms: int
    """The source's delete.retention.ms."""
    behind_ms: int
    """The longest time that it was behind, if that was longer than the retention; else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A request that a node ends."""

    node: str
    requested_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The level of a feature; `mirror.version` is the control topics' format.

    `state.partitions` is not a level but the partition count that mirror partitions are hashed
    with. It is written with the first mirror, or with the next change by a version that knows it.
    """

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A tombstone for the record of this key."""

    key: tuple[str, ...]


ConfigRecord: TypeAlias = (
    Mirror | MirrorTopic | MadeAcl | Followed | NotMirrored | StopRequest | Feature
)
ConfigChange: TypeAlias = ConfigRecord | Tombstone


def topic_id_text(topic_id: UUID) -> str:
    """A topic id as Kafka's tools write it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_of(text: str) -> UUID:
    """A topic id from the form of Kafka's tools.

    Raises:
        ProtocolError: the text is not a topic id.
    """
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"invalid topic id {text[:80]!r}: {error}") from error
    if len(data) != _UUID_BYTES:
        raise ProtocolError(
            f"invalid topic id {text[:80]!r}: {len(data)} bytes, expected {_UUID_BYTES}"
        )
    return UUID(bytes=data)


def key_of(record: ConfigRecord) -> tuple[str, ...]:
    """The key of a record."""
    match record:
        case Mirror():
            return ("mirror", record.name)
        case MirrorTopic():
            return ("topic", record.mirror, record.topic)
        case MadeAcl():
            # The same ACL may exist on both clusters.
            kind = "source-acl" if record.made_for is MadeFor.SWITCHOVER else "acl"
            return (kind, record.mirror, *_acl_fields(record.acl))
        case Followed() | NotMirrored():
            subject = (record.topic,) if isinstance(record, Followed) else ()
            return ("followed" if subject else "not-mirrored", record.mirror, *subject)
        case StopRequest():
            return ("stop", record.node)
        case Feature():
            return ("feature", record.name)


def _acl_fields(acl: Acl) -> tuple[str, ...]:
    return tuple(field.name if isinstance(field, enum.Enum) else field for field in acl)


def _acl_of(parts: Sequence[str]) -> Acl:
    kind, name, pattern, principal, host, operation, permission = parts
    try:
        return Acl(
            ResourceType[kind],
            name,
            PatternType[pattern],
            principal,
            host,
            Operation[operation],
            Permission[permission],
        )
    except KeyError as error:
        raise ProtocolError(f"the key of {_WHAT} is not an ACL: {error} is unknown") from error


def encode_key(key: tuple[str, ...]) -> bytes:
    """A key as it is written; with a null value it is the key's tombstone."""
    return encode_json(key)


def encode(record: ConfigRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    return encode_key(key_of(record)), encode_json({"version": _VERSION, **_fields(record)})


def _fields(record: ConfigRecord) -> dict[str, Any]:
    match record:
        case Mirror():
            return {
                "source": dict(record.source),
                "source_cluster_id": record.source_cluster_id,
                "topic_patterns": record.topic_patterns,
                "replication_factor": record.replication_factor,
                **({"paused": True} if record.paused else {}),
            }
        case MirrorTopic():
            return {
                "topic_id": topic_id_text(record.topic_id),
                "partitions": record.partitions,
                "wanted": record.wanted.value,
                **({"origins": record.origins} if record.origins else {}),
                **({} if record.set_back is None else {"set_back": dict(record.set_back)}),
                **_destination(record),
                **({"destination_topic": name} if (name := record.destination_topic) else {}),
                **({"lost_topic_ids": lost} if (lost := _id_texts(record)) else {}),
                **({"begins": record.begins} if record.begins else {}),
                **({"followed_from": record.followed_from} if record.followed_from else {}),
                **({"whole": True} if record.whole else {}),
                **({"known_before": True} if record.known_before else {}),
                **({"source_deleted": True} if record.source_deleted else {}),
                **({"not_selected": True} if record.not_selected else {}),
                **_optional_id("offsets_topic_id", record.offsets_topic_id),
            }
        case MadeAcl():
            return {"made_for": record.made_for.value}
        case Followed() | NotMirrored():
            return _noted_fields(record)
        case StopRequest():
            return {"requested_ms": record.requested_ms}
        case Feature():
            return {"level": record.level}


def _noted_fields(record: Followed | NotMirrored) -> dict[str, Any]:
    if isinstance(record, NotMirrored):
        return {"topics": dict(record.topics), "total": record.total}
    return {
        "caught_up_ms": record.caught_up_ms,
        "retention_ms": record.retention_ms,
        "behind_ms": record.behind_ms,
        **_destination(record),
    }


def _destination(topic: MirrorTopic | Followed) -> dict[str, str]:
    return _optional_id("destination_topic_id", topic.destination_topic_id)


def _id_texts(topic: MirrorTopic) -> list[str]:
    return [topic_id_text(one) for one in topic.lost_topic_ids]


def _optional_id(name: str, topic_id: UUID | None) -> dict[str, str]:
    return {} if topic_id is None else {name: topic_id_text(topic_id)}


def _optional_id_of(body: JsonObject, name: str) -> UUID | None:
    return topic_id_of(body.text(name)) if body.has(name) else None


def decode(key: bytes | None, value: bytes | None) -> ConfigChange | None:
    """Decode a record of `__mirror_config`; None for a kind of a newer version.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    parts = decode_json(key or b"", f"the key of {_WHAT}")
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ProtocolError(f"the key of {_WHAT} is not a list of strings")
    match parts:
        case ["followed", _, _]:
            pass
        case ["mirror", _] | ["topic", _, _] | ["stop", _] | ["feature", _] | ["not-mirrored", _]:
            pass
        case ["acl" | "source-acl", _, *fields] if len(fields) == len(Acl._fields):
            pass
        case _:
            return None
    if value is None:
        return Tombstone(tuple(parts))
    body = JsonObject(decode_json(value, _WHAT), f"{_WHAT}, {'/'.join(parts)[:80]}")
    version = body.number("version")
    if version != _VERSION:
        raise body.error("version", str(_VERSION))
    return _decoded(parts, body)


def _decoded(parts: list[str], body: JsonObject) -> ConfigRecord:
    match parts:
        case ["mirror", name]:
            return Mirror(
                name=name,
                source=body.properties("source"),
                source_cluster_id=body.text("source_cluster_id"),
                topic_patterns=body.texts("topic_patterns"),
                replication_factor=body.optional_number("replication_factor"),
                paused=body.has("paused") and body.flag("paused"),
            )
        case ["topic", mirror, topic]:
            return MirrorTopic(
                mirror=mirror,
                topic=topic,
                topic_id=topic_id_of(body.text("topic_id")),
                partitions=_partitions(body),
                wanted=_wanted(body),
                origins=body.texts("origins") if body.has("origins") else (),
                set_back=tuple(sorted(body.properties("set_back").items()))
                if body.has("set_back")
                else None,
                destination_topic_id=_optional_id_of(body, "destination_topic_id"),
                destination_topic=(
                    body.text("destination_topic") if body.has("destination_topic") else None
                ),
                lost_topic_ids=tuple(map(topic_id_of, body.texts("lost_topic_ids")))
                if body.has("lost_topic_ids")
                else (),
                begins=_offsets(body, "begins"),
                followed_from=_offsets(body, "followed_from"),
                whole=body.has("whole") and body.flag("whole"),
                known_before=body.has("known_before") and body.flag("known_before"),
                source_deleted=body.has("source_deleted") and body.flag("source_deleted"),
                not_selected=body.has("not_selected") and body.flag("not_selected"),
                offsets_topic_id=_optional_id_of(body, "offsets_topic_id"),
            )
        case ["followed", *_] | ["not-mirrored", *_]:
            return _noted(parts, body)
        case ["feature", name]:
            return Feature(name=name, level=body.number("level"))
        case ["acl" | "source-acl", mirror, *fields]:
            record = MadeAcl(mirror=mirror, acl=_acl_of(fields), made_for=_made_for(body))
            if key_of(record) != tuple(parts):
                raise body.error("made_for", f"the one that belongs to a key with {parts[0]}")
            return record
        case _:
            return StopRequest(node=parts[1], requested_ms=body.number("requested_ms"))


def _noted(parts: list[str], body: JsonObject) -> Followed | NotMirrored:
    if parts[0] == "not-mirrored":
        return NotMirrored(
            mirror=parts[1],
            topics=tuple(sorted(body.properties("topics").items())),
            total=body.number("total"),
        )
    return Followed(
        mirror=parts[1],
        topic=parts[2],
        destination_topic_id=_optional_id_of(body, "destination_topic_id"),
        caught_up_ms=body.number("caught_up_ms"),
        retention_ms=body.number("retention_ms"),
        behind_ms=body.number("behind_ms"),
    )


def _partitions(body: JsonObject) -> int:
    """The partition count; it is limited, as readers hold an object for each partition."""
    count = body.number("partitions")
    if not 0 <= count <= MAX_PARTITIONS:
        raise body.error("partitions", f"a number from 0 to {MAX_PARTITIONS}")
    return count


def _offsets(body: JsonObject, field_name: str) -> tuple[int, ...]:
    """Offsets by partition, or -1; none if the field is absent."""
    offsets = body.list(field_name) if body.has(field_name) else []
    if not all(type(offset) is int and -1 <= offset <= _MAX_OFFSET for offset in offsets):
        raise body.error(field_name, "a list of offsets")
    return tuple(offsets)


def _wanted(body: JsonObject) -> Wanted:
    try:
        return Wanted(body.text("wanted"))
    except ValueError as error:
        raise body.error("wanted", ", ".join(choice.value for choice in Wanted)) from error


def _made_for(body: JsonObject) -> MadeFor:
    try:
        return MadeFor(body.text("made_for"))
    except ValueError as error:
        raise body.error("made_for", ", ".join(choice.value for choice in MadeFor)) from error
