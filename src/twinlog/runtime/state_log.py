"""A partition of `__mirror_state`, which one owner at a time writes, and its transactional id."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Fenced
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.control_topics import States, epoch_entry, read_states, state_entry
from twinlog.store.state_records import LastMirrored, PartitionState
from twinlog.store.topic_reader import UNDECIDED
from twinlog.store.topic_writer import TransactionalWriter


class StatePort(Protocol):
    """What an owner needs of its state partition; the tests' model of a broker has another one."""

    async def take_over(self) -> States:
        """Fence former owners, then read all stored states.

        Raises:
            Fenced: the lane may not write any more.
            Retriable: not possible now.
        """
        ...

    async def write(
        self,
        states: Sequence[PartitionState],
        epochs: Mapping[MirrorPartition, LastMirrored],
    ) -> None:
        """Write all or nothing. After any error `take_over` has to precede the next write.

        Raises:
            Fenced: another owner has taken it over, or the lane may not write any more.
            Disconnected: whether it was written is unknown.
            Retriable: nothing was written.
        """
        ...

    def close(self) -> None:
        """End all calls with Fenced from now on, also the next request of a running call."""
        ...


class StateLog:
    """`StatePort` on real brokers.

    `may_write` is called before each request that could fence or write.
    """

    def __init__(
        self, cluster: KafkaCluster, number: int, group_id: str, may_write: Callable[[], bool]
    ) -> None:
        self._cluster = cluster
        self._number = number
        self._may_write = may_write
        self._closed = False
        name = f"{group_id}.{number}.state"
        self._writer = TransactionalWriter(cluster, name, before_send=self._permit)

    async def take_over(self) -> States:
        """Fence former owners; then return all stored states.

        An open transaction of a command is not waited for: other state partitions are to be opened.
        """
        await self._writer.fence()
        return await read_states(self._cluster, [self._number], patience=UNDECIDED)

    async def write(
        self,
        states: Sequence[PartitionState],
        epochs: Mapping[MirrorPartition, LastMirrored],
    ) -> None:
        """Write all or nothing."""
        await self._writer.write(
            [
                *(
                    epoch_entry(name, last_mirrored, self._number)
                    for name, last_mirrored in epochs.items()
                ),
                *(state_entry(state, self._number) for state in states),
            ]
        )

    def close(self) -> None:
        """Make each later request raise Fenced, also the next request of a call in progress."""
        self._closed = True

    def _permit(self) -> None:
        """Raise Fenced after the lease: a late InitProducerId would fence the next owner."""
        if self._closed or not self._may_write():
            raise Fenced("not sent: the lease has ended", cluster=self._cluster.name)
