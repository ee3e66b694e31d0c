"""Records of `__mirror_config`: what mirrors there are, and what is wanted of their topics.

Keys and values are JSON, to be read with any console consumer. KIP-1279 keeps this in the
destination's metadata log, which a stock broker does not let a client write to.

    key                                  value, version 1
    -----------------------------------  ---------------------------------------------------------
    ["mirror", mirror]                   source: {property: value}, source_cluster_id,
                                         topic_patterns: [regex], replication_factor: int or null
    ["topic", mirror, topic]             topic_id (source's), partitions (when added),
                                         origins: [cluster id], absent where there are none,
                                         destination_topic_id, absent where it was not known,
                                         set_back: {name: value}, what the failover sets back;
                                         absent where there is nothing to be set back any more,
                                         source_deleted: true, only where the topic was removed
                                         from the mirror because the source had it no more,
                                         wanted: MIRRORING, PAUSED or STOPPED
    ["followed", mirror, topic]          caught_up_ms, retention_ms, behind_ms,
                                         destination_topic_id, absent where it was not known;
                                         of compacted topics (sync/compaction.py)
    ["not-mirrored", mirror]             topics: {topic: reason}, total: how many there are
    ["stop", node]                       requested_ms
    ["acl", mirror, resource type, resource name, pattern type, principal, host, operation,
     permission]                         made_for: SOURCE (it has one) or READ_ONLY (kafka/acls.py)
    ["source-acl", mirror, resource type, ...]
                                         made_for: SWITCHOVER (operations/switchover/denials.py)
    ["feature", "mirror.version"]        level: int
    ["feature", "state.partitions"]      level: how many partitions __mirror_state has

`mirror.version` is KIP-1279's feature level: which format all control topics have. It is written
with the first mirror, and level 1 where it is missing. This record keeps its form in all levels, so
that whoever does not know one can say so. Records of unknown kinds are left alone.

`destination_topic_id` is newer than level 1, which it leaves as it is: who does not know it leaves
it out, and where it is absent nobody can tell whether the destination's topic was made again.

`followed`, `not-mirrored` and `source_deleted` are newer, too; older versions leave them out.

A mirror, its topics and the ACLs that it has made stand in one partition, that of the mirror's
name (mirror/placement.py), so that they are read in the order in which they were written. A stop
request stands in the node's, the feature's level in that of its name.

Source properties are kept as the user wrote them: a value that refers to a secret (`${file:...}`,
`${env:...}`) stays a reference, resolved by whoever connects. Values that hold a secret itself are
readable by whoever may read the topic.
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
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.json_fields import JsonObject, decode_json, encode_json

MIRROR_VERSION: Final = "mirror.version"
STATE_COUNT: Final = "state.partitions"

_VERSION: Final = 1
_WHAT: Final = "a record of __mirror_config"
_UUID_BYTES: Final = 16
MAX_PARTITIONS: Final = 1_000_000
"""Partitions of a topic: more than brokers could tell of in one answer (`frames.MAX_DECODED`)."""
MAX_NAMED: Final = 500
"""Topics in a `NotMirrored`: with names of 249 characters it stays below 1 MB."""
MAX_REASON: Final = 300
"""Characters of a reason in it."""


class Wanted(enum.Enum):
    """What the operator wants of a topic; its partitions get there through their states."""

    MIRRORING = "MIRRORING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class MadeFor(enum.Enum):
    """Why an ACL was made."""

    SOURCE = "SOURCE"
    """The source has it."""
    READ_ONLY = "READ_ONLY"
    """Others may not write to a mirror's topic."""
    SWITCHOVER = "SWITCHOVER"
    """Producers may not write to a topic of the source. The ACL stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A named set of topics that follow one source."""

    name: str
    source: Mapping[str, str] = field(repr=False)
    """Properties of the connection and of the mirror, as the user gave them. May hold secrets."""
    source_cluster_id: str
    topic_patterns: tuple[str, ...] = ()
    replication_factor: int | None = None
    """Of the topics that are created for this mirror; None is the destination's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTopic:
    """A topic of a mirror."""

    mirror: str
    topic: str
    topic_id: UUID
    """Of the topic on the source."""
    partitions: int
    """As many as the source had when the topic was added."""
    wanted: Wanted = Wanted.MIRRORING
    origins: tuple[str, ...] = ()
    """Ids of the clusters that the source itself has it from, the nearest first."""
    set_back: tuple[tuple[str, str], ...] | None = None
    """Configurations that its failover sets, of those that mirroring needs otherwise, and unsets
    the others (mirror/topic_configs.py); None where that is done, or was never to be."""
    destination_topic_id: UUID | None = None
    """Of the topic on the destination; None where it was not known when the topic was added."""

    source_deleted: bool = False
    """Whether it was removed because the source did not have it any more, and not by an operator.
    """

    @property
    def incarnation(self) -> tuple[str, str, UUID, UUID | None]:
        """Tells it from a topic of its name that was recreated, on either side."""
        return self.mirror, self.topic, self.topic_id, self.destination_topic_id

    def is_recreated(self, former: "MirrorTopic") -> bool:
        """Whether the destination's topic is known to be another one than the former record's."""
        ids = {self.destination_topic_id, former.destination_topic_id}
        return None not in ids and len(ids) == 2

    @property
    def mirror_partitions(self) -> list[MirrorPartition]:
        """Its partitions, in order."""
        return [MirrorPartition(self.mirror, self.topic, index) for index in range(self.partitions)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeAcl:
    """An ACL that was not there before this mirror made it, or is about to.

    It stands on the destination, or on the source: `made_for` tells.
    """

    mirror: str
    acl: Acl
    made_for: MadeFor


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMirrored:
    """Source topics that a mirror stands for and does not mirror, as of its last refresh."""

    mirror: str
    topics: tuple[tuple[str, str], ...]
    """Names with the reason, in order; at most `MAX_NAMED` of them."""
    total: int
    """How many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """How far behind a mirror's compacted topic was (sync/compaction.py). Milliseconds."""

    mirror: str
    topic: str
    destination_topic_id: UUID | None
    """Of the topic on the destination that this is said of."""
    caught_up_ms: int
    """The destination has all that the source held at this time."""
    retention_ms: int
    """The source's delete.retention.ms."""
    behind_ms: int
    """The longest time that it was behind for, where that was longer than the retention; else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A node is asked to end."""

    node: str
    requested_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The level of a feature; `mirror.version` is the control topics' format.

    `state.partitions` is no level but the partition count by which mirror partitions are hashed;
    written with the first mirror, or with the next change by a version that knows it.
    """

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A tombstone for what stood under this key."""

    key: tuple[str, ...]


ConfigRecord: TypeAlias = (
    Mirror | MirrorTopic | MadeAcl | Followed | NotMirrored | StopRequest | Feature
)
ConfigChange: TypeAlias = ConfigRecord | Removed


def topic_id_text(topic_id: UUID) -> str:
    """A topic id as Kafka's tools write it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_of(text: str) -> UUID:
    """A topic id from Kafka's form.

    Raises:
        ProtocolError: it is none.
    """
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"{text[:80]!r} is no topic id: {error}") from error
    if len(data) != _UUID_BYTES:
        raise ProtocolError(f"{text[:80]!r} is no topic id: it has {len(data)} bytes")
    return UUID(bytes=data)


def key_of(record: ConfigRecord) -> tuple[str, ...]:
    """What a record stands under."""
    match record:
        case Mirror():
            return ("mirror", record.name)
        case MirrorTopic():
            return ("topic", record.mirror, record.topic)
        case MadeAcl():
            # The same ACL may stand in both clusters.
            there = "source-acl" if record.made_for is MadeFor.SWITCHOVER else "acl"
            return (there, record.mirror, *_acl_fields(record.acl))
        case Followed() | NotMirrored():
            about = (record.topic,) if isinstance(record, Followed) else ()
            return ("followed" if about else "not-mirrored", record.mirror, *about)
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
        raise ProtocolError(f"the key of {_WHAT} is no ACL: {error} is not known") from error


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
            }
        case MirrorTopic():
            return {
                "topic_id": topic_id_text(record.topic_id),
                "partitions": record.partitions,
                "wanted": record.wanted.value,
                **({"origins": record.origins} if record.origins else {}),
                **({} if record.set_back is None else {"set_back": dict(record.set_back)}),
                **_destination(record),
                **({"source_deleted": True} if record.source_deleted else {}),
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
    known = topic.destination_topic_id
    return {} if known is None else {"destination_topic_id": topic_id_text(known)}


def decode(key: bytes | None, value: bytes | None) -> ConfigChange | None:
    """What a record of `__mirror_config` says; None for a kind that is newer than we are.

    Raises:
        ProtocolError: the bytes are not what is written here.
    """
    parts = decode_json(key or b"", f"the key of {_WHAT}")
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ProtocolError(f"the key of {_WHAT} is no list of strings")
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
        return Removed(tuple(parts))
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
                destination_topic_id=(
                    topic_id_of(body.text("destination_topic_id"))
                    if body.has("destination_topic_id")
                    else None
                ),
                source_deleted=body.has("source_deleted") and body.flag("source_deleted"),
            )
        case ["followed", *_] | ["not-mirrored", *_]:
            return _noted(parts, body)
        case ["feature", name]:
            return Feature(name=name, level=body.number("level"))
        case ["acl" | "source-acl", mirror, *fields]:
            made = MadeAcl(mirror=mirror, acl=_acl_of(fields), made_for=_made_for(body))
            if key_of(made) != tuple(parts):
                raise body.error("made_for", f"what suits a key that begins with {parts[0]}")
            return made
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
        destination_topic_id=(
            topic_id_of(body.text("destination_topic_id"))
            if body.has("destination_topic_id")
            else None
        ),
        caught_up_ms=body.number("caught_up_ms"),
        retention_ms=body.number("retention_ms"),
        behind_ms=body.number("behind_ms"),
    )


def _partitions(body: JsonObject) -> int:
    """How many there are: each of them is something that readers hold."""
    count = body.number("partitions")
    if not 0 <= count <= MAX_PARTITIONS:
        raise body.error("partitions", f"a number from 0 to {MAX_PARTITIONS}")
    return count


def _wanted(body: JsonObject) -> Wanted:
    try:
        return Wanted(body.text("wanted"))
    except ValueError as error:
        raise body.error("wanted", ", ".join(one.value for one in Wanted)) from error


def _made_for(body: JsonObject) -> MadeFor:
    try:
        return MadeFor(body.text("made_for"))
    except ValueError as error:
        raise body.error("made_for", ", ".join(one.value for one in MadeFor)) from error
