"""`__mirror_state` as `TransactionalWriter` writes it: fenced by epochs, each write atomic.

Every request is one step of the broker. The contract suite and tests/store/test_topic_reader.py
test the steps of a transaction, and a transaction that is interrupted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from model.network import Network
from twinlog.kafka.errors import Fenced
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.control_topics import States
from twinlog.store.state_records import LastMirrored, PartitionState

Epochs = Mapping[MirrorPartition, LastMirrored]
OnWrite = Callable[[Sequence[PartitionState], Epochs], None]


@dataclass(slots=True)
class _Log:
    """One partition: its owner's epoch, and the value of each key."""

    epoch: int = 0
    states: dict[MirrorPartition, PartitionState] = field(default_factory=dict)
    epochs: dict[MirrorPartition, LastMirrored] = field(default_factory=dict)


class StateTopic:
    """The topic, at its brokers. `on_write` is called with each write; it rejects it by raising."""

    def __init__(self, partitions: int, on_write: OnWrite) -> None:
        self._logs = [_Log() for _ in range(partitions)]
        self._on_write = on_write
        self.unreadable: dict[tuple[int, bytes | None], str] = {}
        """Records that an owner cannot read, in the form of `States`."""

    def fence(self, number: int) -> tuple[int, States]:
        """Start a new epoch; return it, and everything that was written."""
        log = self._logs[number]
        log.epoch += 1
        return log.epoch, States(dict(log.states), dict(log.epochs), dict(self.unreadable))

    def write(
        self, number: int, epoch: int, states: Sequence[PartitionState], epochs: Epochs
    ) -> bool:
        """Write states; return False, and write nothing, in a former epoch."""
        log = self._logs[number]
        if epoch != log.epoch:
            return False
        self._on_write(states, epochs)
        log.states.update((state.partition, state) for state in states)
        log.epochs.update(epochs)
        return True

    def lose(self, number: int) -> set[MirrorPartition]:
        """Lose all that was written to a partition; return the mirror partitions concerned."""
        log = self._logs[number]
        lost = {*log.states, *log.epochs}
        log.states.clear()
        log.epochs.clear()
        return lost

    def last(self) -> dict[MirrorPartition, PartitionState]:
        """Return the current states."""
        return {name: state for log in self._logs for name, state in log.states.items()}


class ModelStates:
    """StatePort."""

    def __init__(
        self,
        topic: StateTopic,
        network: Network,
        name: str,
        number: int,
        may_write: Callable[[], bool],
    ) -> None:
        self._topic = topic
        self._network = network
        self._name = name
        self._number = number
        self._may_write = may_write
        self._closed = False
        self._epoch = -1
        self._node = 1 + number % 3

    async def take_over(self) -> States:
        """Start a new epoch; return everything that was written."""
        self._permit()
        self._epoch, found = await self._network.send_alone(
            self._name, self._node, lambda: self._topic.fence(self._number), risk=4.0, writes=True
        )
        return found

    async def write(self, states: Sequence[PartitionState], epochs: Epochs) -> None:
        """Write, if no newer epoch exists."""
        self._permit()
        told, epoch, mirrored = tuple(states), self._epoch, dict(epochs)
        if not await self._network.send_alone(
            self._name,
            self._node,
            lambda: self._topic.write(self._number, epoch, told, mirrored),
            risk=10.0,
            writes=True,
        ):
            raise Fenced(f"{self._name} was fenced")

    def close(self) -> None:
        """Refuse all requests as Fenced from now on."""
        self._closed = True

    def _permit(self) -> None:
        if self._closed or not self._may_write():
            raise Fenced(f"the lease of {self._name} has ended")
