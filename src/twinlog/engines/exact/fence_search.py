"""Finds the fences of former owners at the end of a log: mirroring ended at the first of them.

A fence is a marker of the data id (data_id.py), which may be followed by a committed marker of the
marker id (marker_writer.py). A marker of the marker id that aborts fills a gap, and is no fence. An
owner that dies between the fence and its report leaves the fence only, and each attempt leaves
another one.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple

from twinlog.engines.ports import DestinationPort
from twinlog.kafka.errors import Refusal
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.log.markers import commits
from twinlog.kafka.types import LogBounds, Offset, TopicPartition

_FENCES = 64
"""Offsets before the log end in which fences of former owners are searched first."""


class FenceSearch:
    """Reads the ends of logs.

    Args:
        destination: the cluster with the logs.
        read_bytes: how many bytes of a partition to read at once.
        data_ids: the known producer ids of the data.
        marker_ids: the known producer ids of written markers.
    """

    def __init__(
        self,
        destination: DestinationPort,
        read_bytes: int,
        data_ids: frozenset[int],
        marker_ids: frozenset[int],
    ) -> None:
        self._destination = destination
        self._read_bytes = read_bytes
        self._data_ids = data_ids
        self._marker_ids = marker_ids

    async def find(
        self, bounds: Mapping[TopicPartition, LogBounds]
    ) -> dict[TopicPartition, Offset | Refusal | None]:
        """The offset of the first marker, if a log ends in fences; None if it does not.

        Logs that cannot be read now are left out.
        """
        ends = {p: bound.high_watermark for p, bound in bounds.items()}
        last_batches = await self._read(
            {p: max(bound.start, ends[p] - 1) for p, bound in bounds.items()}, ends
        )
        results: dict[TopicPartition, Offset | Refusal | None] = {}
        fenced = []
        for partition, tail in last_batches.items():
            if isinstance(tail, list) and tail and self._is_fence(tail[-1]):
                fenced.append(partition)
            else:
                results[partition] = tail if isinstance(tail, Refusal) else None
        step = _FENCES
        while fenced:
            starts = {p: max(bounds[p].start, ends[p] - step) for p in fenced}
            tails = await self._read(starts, ends)
            # Each attempt leaves a fence: if a tail has only fences, there may be more below it.
            fenced = [
                p
                for p, tail in tails.items()
                if isinstance(tail, list)
                and starts[p] > bounds[p].start
                and all(map(self._is_fence, tail))
            ]
            results |= {p: self._first_fence(tail) for p, tail in tails.items() if p not in fenced}
            step *= 8
        return results

    def _first_fence(self, tail: "list[_Stored] | Refusal") -> Offset | Refusal | None:
        """The offset of the data id's first fence among the fences at the log's end."""
        if isinstance(tail, Refusal):
            return tail
        fences = list(takewhile(self._is_fence, reversed(tail)))
        data = [
            fence.header.base_offset
            for fence in fences
            if fence.header.producer_id in self._data_ids
        ]
        return Offset(data[-1]) if data else None

    def _is_fence(self, batch: "_Stored") -> bool:
        header, commits = batch
        return header.is_control and (
            header.producer_id in self._data_ids
            or (commits and header.producer_id in self._marker_ids)
        )

    async def _read(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> "dict[TopicPartition, list[_Stored] | Refusal]":
        """The batches from `starts` up to `ends`.

        Partitions that cannot be read now are left out.
        """
        tails: dict[TopicPartition, list[_Stored]] = {p: [] for p in starts}
        errors: dict[TopicPartition, int] = {}
        positions = {p: start for p, start in starts.items() if start < ends[p]}
        while positions:
            answers = await self._destination.read(positions, partition_max_bytes=self._read_bytes)
            for partition, fetched in answers.items():
                part = [_stored(header, fetched.records) for header in batches(fetched.records)]
                if part:
                    tails[partition] += part
                    positions[partition] = part[-1].header.next_offset
                else:
                    errors[partition] = fetched.error
                    del tails[partition], positions[partition]
            positions = {p: at for p, at in positions.items() if at < ends[p]}
        return tails | refusals(errors)


def refusals(codes: Mapping[TopicPartition, int]) -> dict[TopicPartition, Refusal]:
    """The refusals that a retry does not resolve."""
    answers = {p: Refusal(code) for p, code in codes.items() if code}
    return {p: refusal for p, refusal in answers.items() if not refusal.reaction.retriable}


class _Stored(NamedTuple):
    """A batch of a log."""

    header: Header
    commits: bool
    """Whether it is a commit marker."""


def _stored(header: Header, buffer: memoryview) -> _Stored:
    return _Stored(header, commits=commits(header, buffer))
