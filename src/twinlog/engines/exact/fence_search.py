"""Finds the fences of former owners at the end of a log: mirroring ended at the first of them.

A fence is a marker of the data id (data_id.py), which may be followed by a committed marker of the
marker id (marker_writer.py). A marker of the marker id that aborts fills a gap, and is no fence. An
owner that dies between the fence and its report leaves the fence only, and each attempt leaves
another one.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple

from twinlog.engines.exact.ports import DestinationPort
from twinlog.kafka.errors import Refusal
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.log.records import decode, raw_records
from twinlog.kafka.types import LogBounds, Offset, TopicPartition

_COMMIT = (1).to_bytes(2)
"""The type in a commit marker's key, behind its version; an abort marker's is 0."""
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
        ends = {p: one.high_watermark for p, one in bounds.items()}
        last = await self._read({p: max(one.start, ends[p] - 1) for p, one in bounds.items()}, ends)
        found: dict[TopicPartition, Offset | Refusal | None] = {}
        ended = []
        for partition, stored in last.items():
            if isinstance(stored, list) and stored and self._is_fence(stored[-1]):
                ended.append(partition)
            else:
                found[partition] = stored if isinstance(stored, Refusal) else None
        step = _FENCES
        while ended:
            starts = {p: max(bounds[p].start, ends[p] - step) for p in ended}
            tails = await self._read(starts, ends)
            # Each attempt leaves a fence: if a tail has only fences, there may be more below it.
            ended = [
                p
                for p, stored in tails.items()
                if isinstance(stored, list)
                and starts[p] > bounds[p].start
                and all(map(self._is_fence, stored))
            ]
            found |= {p: self._first_fence(one) for p, one in tails.items() if p not in ended}
            step *= 8
        return found

    def _first_fence(self, stored: "list[_Stored] | Refusal") -> Offset | Refusal | None:
        """The offset of the data id's first fence among the fences at the log's end."""
        if isinstance(stored, Refusal):
            return stored
        fences = list(takewhile(self._is_fence, reversed(stored)))
        data = [
            one.header.base_offset for one in fences if one.header.producer_id in self._data_ids
        ]
        return Offset(data[-1]) if data else None

    def _is_fence(self, stored: "_Stored") -> bool:
        header, commits = stored
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
        found: dict[TopicPartition, list[_Stored]] = {p: [] for p in starts}
        errors: dict[TopicPartition, int] = {}
        waiting = {p: start for p, start in starts.items() if start < ends[p]}
        while waiting:
            answers = await self._destination.read(waiting, partition_max_bytes=self._read_bytes)
            for partition, fetched in answers.items():
                stored = [_stored(one, fetched.records) for one in batches(fetched.records)]
                if stored:
                    found[partition] += stored
                    waiting[partition] = stored[-1].header.next_offset
                else:
                    errors[partition] = fetched.error
                    del found[partition], waiting[partition]
            waiting = {p: at for p, at in waiting.items() if at < ends[p]}
        return found | refusals(errors)


def refusals(codes: Mapping[TopicPartition, int]) -> dict[TopicPartition, Refusal]:
    """The refusals that a retry does not resolve."""
    refused = {p: Refusal(code) for p, code in codes.items() if code}
    return {p: one for p, one in refused.items() if not one.reaction.retriable}


class _Stored(NamedTuple):
    """A batch of a log."""

    header: Header
    commits: bool
    """Whether it is a commit marker."""


def _stored(header: Header, buffer: memoryview) -> _Stored:
    if not header.is_control or not header.num_records:  # the log cleaner may have emptied it
        return _Stored(header, commits=False)
    key = decode(raw_records(header, header.records(buffer))[0]).key
    return _Stored(header, commits=key is not None and key[2:4] == _COMMIT)
