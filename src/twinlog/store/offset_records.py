"""Records of `__mirror_offsets`: the plans of flows, and where their batches have landed.

    key, JSON                                   value, JSON, version 1
    ------------------------------------------  --------------------------------------------------
    ["owner"]                                   lane: the takeover, by its producer id and epoch
    ["producer"]                                producer_id: no write of another one can arrive
    ["plan", mirror, topic, partition]          producer_id, epoch, sequence, recorded: [source,
                                                destination], runs: [start, end, start, end, ...],
                                                route: source_topic_id, topic, topic_id (absent if
                                                it was not known), slot; epochs: [start, end, leader
                                                epoch, ...] of the source's last offsets; taken:
                                                [number, log end], absent if the broker was not
                                                asked what it had taken of the plan; tail:
                                                [producer id, epoch, number] of the record at the
                                                recorded end, absent if there is none; lost: why the
                                                destination is known to have lost records;
                                                behind_another: true if another program has copied
                                                what is below the map; losses: [source start, source
                                                end, destination start, destination end, and
                                                producer id and epoch of the first plan behind it,
                                                ...] of copies that the destination has lost, and
                                                that the flow went on without, absent if there are
                                                none
    ["begun", mirror, topic, partition]         route: of a flow that writes in transactions; begin:
                                                where another program had copied to when it began,
                                                absent if nothing, or if an earlier version wrote it
    ["shared", topic, partition]                nothing: records of several source partitions were
                                                written to this partition of the destination in
                                                transactions, so a batch there is not known to be
                                                of one of them
    ["map", mirror, topic, partition, number]   start, end: [source, destination], runs: base64 of
                                                offset_runs.encode_runs; earlier versions store no
                                                end
    ["head", mirror, topic, partition]          route: of a flow that writes in transactions, and
                                                records a map; position: the source's offset up to
                                                which the map is complete; parts: [first, last],
                                                numbers of its parts; end: [source, destination]
                                                of the last one; tail: as in the metadata of the
                                                position that is committed with it; flags:
                                                lacks_start, lost; unproven_end: the source's offset
                                                at which it has begun anew, absent if it has not;
                                                lost_to: the destination's offset below which a
                                                position may be of before copies were lost, absent
                                                if there is none
    ["part", mirror, topic, partition, number]  a part of such a map, as those of "map"

The topic has as many partitions as `__mirror_state`, and a partition of a flow has its records in
that of its state. It is compacted. Each chunk of a map begins where the one before it ends; the
last one is written again while it grows. A plan and the chunk that it begins behind are in one
batch, so a reader sees both or none (docs/decisions/0014-recorded-offset-map.md).

A topic that was recreated on either side has another route: its plan and its map begin again, and
the parts of the former map get tombstones.

The map of a flow that writes in transactions is written in these, with the position. It has keys of
its own: a flow of the same name may have been one without transactions, and has left its map. The
parts that its head does not name are of a former map.
"""

import base64
import binascii
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from twinlog.kafka.log.leader_epochs import EpochRun
from twinlog.kafka.types import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
)
from twinlog.mirror.offset_runs import EncodedRuns, Ends, decode_runs, end_of
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.recorded_map import NONE_UNPROVEN
from twinlog.mirror.sequence_plan import SequencePlan, SourceRun, Taken
from twinlog.store.config_records import topic_id_of, topic_id_text
from twinlog.store.json_fields import JsonObject, decode_json, encode_json
from twinlog.store.map_chunks import EncodedChunk, MapChunk

_VERSION: Final = 1
_WHAT: Final = "a record of __mirror_offsets"
_PAIR: Final = 2
_TRIPLE: Final = 3
_LOSS: Final = 6
_NO_LOSS: Final = Offset(0)


@dataclass(frozen=True, slots=True)
class OffsetsOwner:
    """The last takeover of a state partition."""

    lane: str


@dataclass(frozen=True, slots=True)
class OffsetsProducer:
    """The producer id under which owners write: writes under a former one have been waited for."""

    producer_id: int


class Route(NamedTuple):
    """From which topic to which one a partition is copied, and by which of several producers."""

    source_topic_id: UUID
    topic: str
    """On the destination."""
    topic_id: UUID | None
    """On the destination; None if it is not known."""
    slot: int = 0
    """Source partitions that are copied to one partition have producer ids of their own."""


class MapTail(NamedTuple):
    """The last record of a map, by what its batch on the destination says of it."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence


class LostCopies(NamedTuple):
    """A range of both sides whose copies the destination has lost: the flow went on behind it."""

    source_start: Offset
    source_end: Offset
    destination_start: Offset
    destination_end: Offset
    """Up to where new copies follow, or behind the last position in the lost log if that is higher;
    earlier versions store the former."""
    producer_id: ProducerId = ProducerId(-1)
    epoch: ProducerEpoch = ProducerEpoch(-1)
    """The producer of the first plan behind it; -1 until that is stored. Own batches that are not
    in front of the loss, and of an earlier epoch, are of the log that was lost."""


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The last plan of a partition."""

    name: MirrorPartition
    plan: SequencePlan
    route: Route
    epochs: tuple[EpochRun, ...] = ()
    """The source's leader epochs, as far as they were read (KIP-320)."""
    taken: Taken | None = None
    """None: not asked since the plan was stored."""
    tail: MapTail | None = None
    """None: nothing was copied, or it was stored by an earlier version."""
    lost: str | None = None
    """Why the destination is known to have lost records. Compaction may remove what shows it."""
    behind_another: bool = False
    """Whether the map has lost its beginning: where what is below was copied to is not known, as
    another program has copied it, or as the destination has lost it."""
    losses: tuple[LostCopies, ...] = ()
    """In order. Versions that do not know it store the plan without."""


@dataclass(frozen=True, slots=True)
class BegunPartition:
    """A partition whose position is a committed offset has one since then."""

    name: MirrorPartition
    route: Route
    copied_to: Offset | None = None
    """Where another program had copied to; None: nothing, or an earlier version wrote this."""


@dataclass(frozen=True, slots=True)
class SharedPartition:
    """A partition of the destination that several source partitions have written to.

    All of them wrote in transactions of this state partition, under one producer id.
    """

    remote: TopicPartition


@dataclass(frozen=True, slots=True)
class DroppedChunk:
    """A tombstone for a part of a map."""

    name: MirrorPartition
    number: int


@dataclass(frozen=True, slots=True)
class MapHead:
    """How far the map of a partition reaches whose position is a committed offset."""

    name: MirrorPartition
    route: Route
    position: Offset
    """The source's offset up to which all was copied, or has no copy: the committed position."""
    first: int
    """The number of the first part."""
    last: int
    end: Ends
    """Where the last part ends: it is written again under its number, and may be an older one."""
    tail: str = ""
    """That of the committed position, as text (engines/transactional/remote_tails.py)."""
    lacks_start: bool = False
    """Whether more may have been copied below the map, and where to is not known."""
    lost: bool = False
    """Whether the destination is known to have lost records of the map."""
    unproven_end: Offset = NONE_UNPROVEN
    """The source's offset at which the map has begun anew: what the flow has copied below it may be
    lost. 0: it has not. Versions that do not know it store the head without."""
    lost_to: Offset = _NO_LOSS
    """Below it, a position on the destination may be of before copies were lost, those of a former
    map as well; 0: none may. Versions that do not know it store the head without."""


@dataclass(frozen=True, slots=True)
class MapPart:
    """A part of the map of such a partition."""

    chunk: MapChunk


@dataclass(frozen=True, slots=True)
class DroppedHead:
    """A tombstone for the head of a map: nothing of it holds any more."""

    name: MirrorPartition


@dataclass(frozen=True, slots=True)
class DroppedPart:
    """A tombstone for a part of a map that has a head."""

    name: MirrorPartition
    number: int


OffsetRecord: TypeAlias = (
    OffsetsOwner
    | OffsetsProducer
    | StoredPlan
    | BegunPartition
    | SharedPartition
    | MapChunk
    | DroppedChunk
    | MapHead
    | MapPart
    | DroppedHead
    | DroppedPart
)


def encode(record: OffsetRecord) -> tuple[bytes, bytes | None]:
    """Key and value; no value for a tombstone."""
    match record:
        case OffsetsOwner(lane):
            key: list[Any] = ["owner"]
            body: dict[str, Any] = {"lane": lane}
        case OffsetsProducer(producer_id):
            key, body = ["producer"], {"producer_id": producer_id}
        case DroppedChunk(name, number):
            return encode_json(["map", *name, number]), None
        case DroppedPart(name, number):
            return encode_json(["part", *name, number]), None
        case DroppedHead(name):
            return encode_json(["head", *name]), None
        case StoredPlan(name, plan, route, epochs, taken, tail, lost, behind_another, losses):
            key = ["plan", *name]
            body = {
                "producer_id": plan.producer_id,
                "epoch": plan.epoch,
                "sequence": plan.sequence,
                "recorded": list(plan.recorded),
                "runs": [offset for run in plan.runs for offset in run],
                "route": _route_fields(route),
                "epochs": [number for run in epochs for number in run],
                **({} if taken is None else {"taken": list(taken)}),
                **({} if tail is None else {"tail": list(tail)}),
                **({} if lost is None else {"lost": lost}),
                **({"behind_another": True} if behind_another else {}),
                **({"losses": [at for one in losses for at in one]} if losses else {}),
            }
        case BegunPartition(name, route, copied_to):
            key, body = ["begun", *name], {"route": _route_fields(route)}
            body |= {} if copied_to is None else {"begin": copied_to}
        case SharedPartition(remote):
            key, body = ["shared", *remote], {}
        case MapChunk(name, number):
            key, body = ["map", *name, number], _chunk_fields(record)
        case MapPart(chunk):
            key, body = ["part", *chunk.name, chunk.number], _chunk_fields(chunk)
        case MapHead(name):
            key = ["head", *name]
            body = {
                "route": _route_fields(record.route),
                "position": record.position,
                "parts": [record.first, record.last],
                "end": list(record.end),
                "tail": record.tail,
                "lacks_start": record.lacks_start,
                "lost": record.lost,
                **({"unproven_end": record.unproven_end} if record.unproven_end else {}),
                **({"lost_to": record.lost_to} if record.lost_to else {}),
            }
    return encode_json(key), encode_json({"version": _VERSION, **body})


def decode(key: bytes | None, value: bytes | None) -> OffsetRecord | None:
    """Decode a record; None for a tombstone, or a kind of a newer version.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    parts = decode_json(key or b"", f"the key of {_WHAT}")
    if value is None:
        return None
    match parts:
        case ["owner" | "producer" as kind]:
            body = _body(parts, value)
            is_owner = kind == "owner"
            return OffsetsOwner(body.text("lane")) if is_owner else _producer(body)
        case ["plan" | "begun" | "head", str(), str(), int()]:
            body = _body(parts, value)
            name = MirrorPartition(*parts[1:])
            return _of_partition(parts[0], name, body)
        case ["shared", str(topic), int(partition)]:
            _body(parts, value)
            return SharedPartition(TopicPartition(topic, partition))
        case ["map" | "part" as kind, str(), str(), int(), int(number)]:
            chunk = decode_chunk(MirrorPartition(*parts[1:4]), number, value).decoded()
            return chunk if kind == "map" else MapPart(chunk)
        case _:
            return None


def _head(name: MirrorPartition, body: JsonObject) -> MapHead:
    numbers = body.list("parts")
    if len(numbers) != _PAIR or not all(type(one) is int and one >= 0 for one in numbers):
        raise body.error("parts", "two numbers")
    return MapHead(
        name,
        _route(body),
        Offset(body.number("position")),
        numbers[0],
        numbers[1],
        _ends(body, "end"),
        tail=body.text("tail"),
        lacks_start=body.flag("lacks_start"),
        lost=body.flag("lost"),
        unproven_end=(
            Offset(body.number("unproven_end")) if body.has("unproven_end") else NONE_UNPROVEN
        ),
        lost_to=Offset(body.number("lost_to")) if body.has("lost_to") else _NO_LOSS,
    )


def _producer(body: JsonObject) -> OffsetsProducer:
    return OffsetsProducer(body.number("producer_id"))


def _of_partition(kind: str, name: MirrorPartition, body: JsonObject) -> OffsetRecord:
    if kind == "head":
        return _head(name, body)
    if kind == "begun":
        begin = Offset(body.number("begin")) if body.has("begin") else None
        return BegunPartition(name, _route(body), begin)
    stored = StoredPlan(name, _plan(body), _route(body), _epochs(body))
    lost = body.text("lost") if body.has("lost") else None
    behind = body.has("behind_another") and body.flag("behind_another")
    return replace(
        stored,
        taken=_taken(body),
        tail=_tail(body),
        lost=lost,
        behind_another=behind,
        losses=_losses(body),
    )


def mirror_of(key: bytes | None) -> str | None:
    """The mirror that the record of this key is about; None: it is about none, or of a newer kind.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    match decode_json(key or b"", f"the key of {_WHAT}"):
        case ["plan" | "begun" | "head", str(mirror), str(), int()] | [
            "map" | "part",
            str(mirror),
            str(),
            int(),
            int(),
        ]:
            return mirror
        case _:
            return None


_OF_CHUNKS: Final = encode_json(["map"])[:-1]
_OF_BEGUN: Final = encode_json(["begun"])[:-1]
_OF_MAPS: Final = tuple(encode_json([kind])[:-1] for kind in ("head", "part"))
_OF_TRANSACTIONS: Final = (_OF_BEGUN, encode_json(["shared"])[:-1], *_OF_MAPS)


def is_begun(key: bytes | None) -> bool:
    """Whether a key is that of a `BegunPartition`."""
    return (key or b"").startswith(_OF_BEGUN)


def is_of_transactions(key: bytes | None) -> bool:
    """Whether a key is that of a record which only flows that write in transactions have."""
    return (key or b"").startswith(_OF_TRANSACTIONS)


def is_of_map_with_head(key: bytes | None) -> bool:
    """Whether a key is that of a `MapHead` or a `MapPart`."""
    return (key or b"").startswith(_OF_MAPS)


def is_of_chunk(key: bytes | None) -> bool:
    """Whether a key is that of a `MapChunk`."""
    return (key or b"").startswith(_OF_CHUNKS)


def map_of(key: bytes | None) -> tuple[MirrorPartition, int | None] | None:
    """The partition whose map a key is about, and the number of the part; None: of no map.

    The head of a map has no number.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    match decode_json(key or b"", f"the key of {_WHAT}"):
        case ["head", str(mirror), str(topic), int(partition)]:
            return MirrorPartition(mirror, topic, partition), None
        case ["map" | "part", str(mirror), str(topic), int(partition), int(number)]:
            return MirrorPartition(mirror, topic, partition), number
        case _:
            return None


def _chunk_fields(chunk: MapChunk) -> dict[str, Any]:
    runs = chunk.encoded().runs
    encoded = base64.b64encode(runs.data).decode()
    return {"start": list(runs.start), "end": list(runs.end), "runs": encoded}


def decode_chunk(name: MirrorPartition, number: int, value: bytes | None) -> EncodedChunk:
    """A part of a map (`map_of`); its runs are not decoded.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    body = _body(["part", *name, number], value or b"")
    start = _ends(body, "start")
    try:
        data = base64.b64decode(body.text("runs"), validate=True)
    except binascii.Error:
        raise body.error("runs", "base64") from None
    end = _ends(body, "end") if body.has("end") else end_of(start, decode_runs(start, data))
    return EncodedChunk(name, number, EncodedRuns(start, end, data))


def _body(parts: list[Any], value: bytes) -> JsonObject:
    subject = f"{_WHAT}, {'/'.join(map(str, parts))[:80]}"
    body = JsonObject(decode_json(value, _WHAT), subject)
    if body.number("version") != _VERSION:
        raise body.error("version", str(_VERSION))
    return body


def _route_fields(route: Route) -> dict[str, Any]:
    known = {} if route.topic_id is None else {"topic_id": topic_id_text(route.topic_id)}
    return {
        "source_topic_id": topic_id_text(route.source_topic_id),
        "topic": route.topic,
        **known,
        "slot": route.slot,
    }


def _route(body: JsonObject) -> Route:
    route = JsonObject(body.object("route"), f"{_WHAT}, a route")
    topic_id = topic_id_of(route.text("topic_id")) if route.has("topic_id") else None
    source_topic_id = topic_id_of(route.text("source_topic_id"))
    return Route(source_topic_id, route.text("topic"), topic_id, route.number("slot"))


def _epochs(body: JsonObject) -> tuple[EpochRun, ...]:
    numbers = body.list("epochs")
    if len(numbers) % 3 or not all(type(number) is int for number in numbers):
        raise body.error("epochs", "whole numbers, three for each run")
    triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    runs = tuple(EpochRun(Offset(s), Offset(e), LeaderEpoch(epoch)) for s, e, epoch in triples)
    if any(run.end <= run.start for run in runs):
        raise body.error("epochs", "runs with an offset or more")
    return runs


def _taken(body: JsonObject) -> Taken | None:
    numbers = _numbers(body, "taken", "a sequence number and an offset", _PAIR)
    return None if numbers is None else Taken(Sequence(numbers[0]), Offset(numbers[1]))


def _tail(body: JsonObject) -> MapTail | None:
    numbers = _numbers(body, "tail", "a producer id, an epoch and a sequence number", _TRIPLE)
    if numbers is None:
        return None
    return MapTail(ProducerId(numbers[0]), ProducerEpoch(numbers[1]), Sequence(numbers[2]))


def _losses(body: JsonObject) -> tuple[LostCopies, ...]:
    numbers = body.list("losses") if body.has("losses") else []
    if len(numbers) % _LOSS or not all(type(number) is int for number in numbers):
        raise body.error("losses", f"whole numbers, {_LOSS} for each loss")
    return tuple(
        LostCopies(
            Offset(source_start),
            Offset(source_end),
            Offset(start),
            Offset(end),
            ProducerId(producer_id),
            ProducerEpoch(epoch),
        )
        for source_start, source_end, start, end, producer_id, epoch in zip(
            *[iter(numbers)] * _LOSS, strict=True
        )
    )


def _numbers(body: JsonObject, name: str, expectation: str, count: int) -> list[int] | None:
    if not body.has(name):
        return None
    numbers = body.list(name)
    if len(numbers) != count or not all(type(number) is int for number in numbers):
        raise body.error(name, expectation)
    return numbers


def _plan(body: JsonObject) -> SequencePlan:
    recorded = _ends(body, "recorded")
    offsets = body.list("runs")
    bounds = [recorded.source, *offsets]
    increasing = all(type(at) is int for at in offsets) and all(
        # A run has a record; between two runs there may be none.
        bounds[at] <= bounds[at + 1] if at % 2 == 0 else bounds[at] < bounds[at + 1]
        for at in range(len(offsets))
    )
    if len(offsets) % 2 or not increasing:
        raise body.error("runs", "increasing offsets in pairs, from the recorded end on")
    pairs = zip(offsets[::2], offsets[1::2], strict=True)
    runs: tuple[SourceRun, ...] = tuple((Offset(start), Offset(end)) for start, end in pairs)
    return SequencePlan(
        ProducerId(body.number("producer_id")),
        ProducerEpoch(body.number("epoch")),
        Sequence(body.number("sequence")),
        runs,
        recorded,
    )


def _ends(body: JsonObject, name: str) -> Ends:
    offsets = body.list(name)
    if len(offsets) != _PAIR or not all(type(at) is int and at >= 0 for at in offsets):
        raise body.error(name, "two offsets")
    return Ends(*map(Offset, offsets))
