"""The transactional id of a state partition's data: its producer ids, its epochs and its markers.

Data is written with the id's producer id, outside of any transaction. An empty transaction of the
id's next epoch writes a marker, behind which data of earlier epochs is refused: a *fence*.

If a partition may not be written to, only this partition is refused, and it never gets a record of
the transaction. So the epoch that was to fence it is unused there and is kept for the next attempt:
endless attempts would use up the id's epochs.
"""

import asyncio
from collections.abc import Collection, Mapping

from twinlog.engines.destination.marker_polls import MarkerPolls
from twinlog.engines.ports import DestinationPort, ProducerIdentity
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.types import Offset, ProducerId, TopicPartition

_LAST_EPOCHS = 32_000
"""From this epoch on the data id uses up its epochs until it gets another producer id: once, 767
requests."""


class DataId:
    """The data id of one shard. Its transactions need `turns`.

    Args:
        transactional_id: the id.
        destination: where the data is written.
        settings: deadlines, the lease, and the size of reads.
    """

    def __init__(
        self, transactional_id: str, destination: DestinationPort, settings: LaneSettings
    ) -> None:
        self._id = transactional_id
        self._destination = destination
        self._settings = settings
        self.turns = asyncio.Lock()
        """Guards the id: one transaction at a time."""
        self.producer_id = ProducerId(-1)
        """The producer id since it was opened."""
        self.renamed = False
        """Whether the id has got another producer id since. No epoch of the new one fences data of
        `producer_id`: the state partition has to be taken over again."""
        self.known: set[int] = set()
        """The producer ids that the id is known to have had."""
        # The epoch of the last fence, if its outcome is known; the partitions without its marker.
        self._epoch: ProducerIdentity | None = None
        self._refusals: set[TopicPartition] = set()

    async def open(self) -> None:
        """Learn the producer id.

        Raises:
            Retriable: the coordinator is not available; open it again.
            Fenced: the lane may not write any more.
        """
        identity = await self._destination.init_producer(self._id)
        self.known.add(identity.producer_id)
        while identity.epoch >= _LAST_EPOCHS:
            # The next owner would not know the fences of a producer id whose epochs are used up.
            identity = await self._destination.init_producer(self._id)
            self.known.add(identity.producer_id)
        self.producer_id = ProducerId(identity.producer_id)

    async def renew(self) -> ProducerIdentity:
        """Take the next epoch. It is answered when the id's last transaction is complete.

        Raises:
            Retriable: not possible now; call it again.
            Fenced: the lane may not write any more.
        """
        self._epoch = None
        return self._learn(await self._destination.init_producer(self._id))

    def _learn(self, identity: ProducerIdentity) -> ProducerIdentity:
        """Note the producer id."""
        self.known.add(identity.producer_id)
        self.renamed |= identity.producer_id != self.producer_id
        return identity

    async def next_epoch(self, partitions: Collection[TopicPartition]) -> ProducerIdentity:
        """An epoch with no marker on these partitions, in the log or in flight.

        All markers of earlier epochs are written. The last epoch is used again only if each of
        these partitions has refused its marker (see the module).
        """
        previous, self._epoch = self._epoch, None
        if previous is not None and self._refusals.issuperset(partitions):
            return previous
        return await self._destination.init_producer(self._id)

    def note_fences(
        self,
        identity: ProducerIdentity,
        partitions: Collection[TopicPartition],
        refusals: Collection[TopicPartition],
    ) -> None:
        """Note the outcome of a fence.

        Args:
            identity: the epoch afterwards.
            partitions: what was to be fenced.
            refusals: those of them that have refused their marker.
        """
        self._epoch = identity
        self._refusals -= set(partitions)
        self._refusals |= set(refusals)

    async def put_fences(
        self, identity: ProducerIdentity, after: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, Offset], Mapping[TopicPartition, int], ProducerIdentity]:
        """Fence logs that end at these offsets; after `next_epoch`.

        Returns:
            As `put_markers`, and the id's epoch afterwards.
        """
        if identity.producer_id != self.producer_id:
            # The epochs were used up. The new producer id does not fence data of the former one,
            # so the lease has to pass.
            self._learn(identity)
            await asyncio.sleep(self._settings.lease_s)
        return await self.put_markers(identity, after)

    async def put_markers(
        self, identity: ProducerIdentity, ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, Offset], Mapping[TopicPartition, int], ProducerIdentity]:
        """Write a marker of this epoch to logs that end at these offsets.

        Returns:
            The offset of each marker, once the transaction is complete; none if it is late. The
            error codes of the partitions. And the id's epoch afterwards.
        """
        codes = await self._destination.empty_transaction(identity, ends) if ends else {}
        accepted_ends = {p: end for p, end in ends.items() if not codes[p]}
        stand, identity = await self._completed(accepted_ends, identity)
        return stand, codes, identity

    async def _completed(
        self, after: Mapping[TopicPartition, int], identity: ProducerIdentity
    ) -> tuple[dict[TopicPartition, Offset], ProducerIdentity]:
        """As `_markers` of the id's transaction, once it is complete; none before.

        Until the transaction is complete, a new coordinator writes the markers of all its
        partitions again (tests/kafka/requests/test_markers.py). In a partition that is STOPPED by
        then, such a marker would land among users' records; in one whose gap it begins, behind the
        data that follows.
        """
        stand = await self._markers(after, identity)
        if not stand or stand.keys() != after.keys():
            return {}, identity
        return stand, await self.renew()

    async def _markers(
        self, ends: Mapping[TopicPartition, int], identity: ProducerIdentity
    ) -> dict[TopicPartition, Offset]:
        """The offset of the first marker of this producer and epoch, once it is in the log.

        Args:
            ends: the partitions, and where their logs ended before it was written. A former
                owner's batches may lie between that end and the marker.
            identity: the producer.
        """
        polls = MarkerPolls(self._settings.marker_deadline_s)
        positions = dict(ends)
        offsets: dict[TopicPartition, Offset] = {}
        while positions and not polls.expired:
            size = self._settings.partition_fetch_bytes
            answers = await self._destination.read(positions, partition_max_bytes=size)
            for partition, fetched in answers.items():
                for header in batches(fetched.records):
                    positions[partition] = header.next_offset
                    if header.is_control and _is_by(header, identity):
                        offsets[partition] = Offset(header.base_offset)
                        del positions[partition]
                        break
            if positions:
                await polls.pause()
        return offsets


def _is_by(header: Header, producer: ProducerIdentity) -> bool:
    return (header.producer_id, header.producer_epoch) == (producer.producer_id, producer.epoch)
