"""What the parts of a data plane may use of it, and of each other: this, and nothing else."""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from twinlog.engines.exact.events import Event
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.types import TopicPartition


class Plane(Protocol):
    """The data plane, as its parts know it. They report what happens by `emit`."""

    settings: LaneSettings

    @property
    def partitions(self) -> Mapping[TopicPartition, ExactPartition]:
        """The partitions that it owns."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of batches that are queued or in flight."""
        ...

    @property
    def source(self) -> SourcePort:
        """The mirror's source.

        Raises:
            Retriable: it is not available; then no running task asks for it.
        """
        ...

    @property
    def destination(self) -> DestinationPort:
        """The cluster that holds the copy."""
        ...

    def emit(self, partition: ExactPartition, event: Event) -> None:
        """Let the partition's machine take an event, and carry out its actions."""
        ...

    def emit_all(self, events: Iterable[tuple[ExactPartition, Event]]) -> None:
        """Let machines take events of one moment, as those of the answer to one request."""
        ...

    def start(
        self,
        coroutine: Coroutine[object, object, None],
        about: Collection[ExactPartition] | None = None,
    ) -> None:
        """Run a task in the background; an exception that ends it ends the data plane.

        A defect in a task about some partitions fails only these.
        """
        ...

    def guard(self, partitions: Collection[ExactPartition]) -> AbstractContextManager[None]:
        """Fail only these partitions if the guarded code has a defect; they are retried."""
        ...

    def pump(self, node: int) -> None:
        """Send the ready batches of one destination broker."""
        ...

    async def gather_gaps(self, node: int) -> None:
        """Wait for a moment, if batches are in flight to this broker that gaps follow."""
        ...

    @property
    def confirm_ownership(self) -> Callable[[], Awaitable[None]]:
        """Return when the lane is known to have owned its partitions after the call."""
        ...

    def answered(self) -> None:
        """Let fetches that wait for room go on: batches were answered."""
        ...

    def shard(self, partition: ExactPartition) -> Shard:
        """The state partition that a mirror partition belongs to."""
        ...

    def fresh_after_ms(self) -> int:
        """The oldest timestamp with which a broker will not soon forget the producer."""
        ...

    def backoff(self, failures: int) -> float:
        """The pause in seconds after a number of failures, with jitter."""
        ...

    def now(self) -> float:
        """The loop's clock, in seconds."""
        ...
