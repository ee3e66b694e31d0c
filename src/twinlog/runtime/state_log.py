"""`StatePort` on real brokers: a partition of `__mirror_state` and its transactional id."""

from collections.abc import Callable, Mapping, Sequence

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Fenced
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.control_topics import States, epoch_entry, read_states, state_entry
from twinlog.store.state_records import LastMirrored, PartitionState
from twinlog.store.topic_reader import UNDECIDED
from twinlog.store.topic_writer import TransactionalWriter


class StateLog:
    """One state partition. `may_write` is asked before each request that could fence or write."""

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
        """Fence former owners; then all that was ever written.

        A command's transaction that was left open is not waited for here: others are to be opened.
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
                *(epoch_entry(name, last, self._number) for name, last in epochs.items()),
                *(state_entry(state, self._number) for state in states),
            ]
        )

    def close(self) -> None:
        """From now on all is Fenced, also the next request of what is under way."""
        self._closed = True

    def _permit(self) -> None:
        """Raise if we may not write any more: a late InitProducerId would fence our successor."""
        if self._closed or not self._may_write():
            raise Fenced("the lease has ended, nothing was sent", cluster=self._cluster.name)
