"""Records of `__mirror_offsets`: the plans of flows, and where their batches have landed.

    key, JSON                                   value, JSON, version 1
    ------------------------------------------  --------------------------------------------------
    ["owner"]                                   lane: who owns the state partition since then
    ["plan", mirror, topic, partition]          producer_id, epoch, sequence, recorded: [source,
                                                destination], runs: [start, end, start, end, ...]
    ["map", mirror, topic, partition, number]   start: [source, destination], runs: base64 of
                                                offset_runs.encode_runs

The topic has as many partitions as `__mirror_state`, and a partition of a flow has its records in
that of its state. It is compacted. Each chunk of a map begins where the one before it ends; the
last one is written again while it grows. A plan and the chunk that it begins behind are in one
batch, so a reader sees both or none (docs/decisions/0014-recorded-offset-map.md).
"""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run, decode_runs, encode_runs
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import SequencePlan, SourceRun
from twinlog.store.json_fields import JsonObject, decode_json, encode_json

_VERSION: Final = 1
_WHAT: Final = "a record of __mirror_offsets"
_PAIR: Final = 2
CHUNK_RUNS: Final = 1000
"""Runs of a part of a map: a full one takes 4 to 8 KB, and is not written again."""


@dataclass(frozen=True, slots=True)
class OffsetsOwner:
    """The lane that has taken over a state partition."""

    lane: str


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The last plan of a partition."""

    name: MirrorPartition
    plan: SequencePlan


@dataclass(frozen=True, slots=True)
class MapChunk:
    """A part of a partition's map. `start` is where the part before it ends."""

    name: MirrorPartition
    number: int
    start: Ends
    runs: tuple[Run, ...]

    @property
    def end(self) -> Ends:
        """Where the next part begins."""
        if not self.runs:
            return self.start
        return Ends(self.runs[-1].source_end, self.runs[-1].destination_end)


OffsetRecord: TypeAlias = OffsetsOwner | StoredPlan | MapChunk


def encode(record: OffsetRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    match record:
        case OffsetsOwner(lane):
            key: list[Any] = ["owner"]
            body: dict[str, Any] = {"lane": lane}
        case StoredPlan(name, plan):
            key = ["plan", *name]
            body = {
                "producer_id": plan.producer_id,
                "epoch": plan.epoch,
                "sequence": plan.sequence,
                "recorded": list(plan.recorded),
                "runs": [offset for run in plan.runs for offset in run],
            }
        case MapChunk(name, number, start, runs):
            key = ["map", *name, number]
            encoded = base64.b64encode(encode_runs(start, runs)).decode()
            body = {"start": list(start), "runs": encoded}
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
        case ["owner"]:
            return OffsetsOwner(_body(parts, value).text("lane"))
        case ["plan", str(), str(), int()]:
            return StoredPlan(MirrorPartition(*parts[1:]), _plan(_body(parts, value)))
        case ["map", str(), str(), int(), int(number)]:
            body = _body(parts, value)
            start = _ends(body, "start")
            try:
                runs = base64.b64decode(body.text("runs"), validate=True)
            except binascii.Error:
                raise body.error("runs", "base64") from None
            chunk = tuple(decode_runs(start, runs))
            return MapChunk(MirrorPartition(*parts[1:4]), number, start, chunk)
        case _:
            return None


def _body(parts: list[Any], value: bytes) -> JsonObject:
    subject = f"{_WHAT}, {'/'.join(map(str, parts))[:80]}"
    body = JsonObject(decode_json(value, _WHAT), subject)
    if body.number("version") != _VERSION:
        raise body.error("version", str(_VERSION))
    return body


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


def extended(chunk: MapChunk, runs: Iterable[Run]) -> list[MapChunk]:
    """The last part of a map with more runs; of a full part, also the next one.

    Returns:
        What is to be stored, in order.
    """
    grown = OffsetRuns(chunk.start)
    for run in (*chunk.runs, *runs):
        grown.append(run)
    parts: list[MapChunk] = []
    start, number = chunk.start, chunk.number
    for first in range(0, max(len(grown.runs), 1), CHUNK_RUNS):
        part = MapChunk(chunk.name, number, start, tuple(grown.runs[first : first + CHUNK_RUNS]))
        parts.append(part)
        start, number = part.end, number + 1
    return parts
