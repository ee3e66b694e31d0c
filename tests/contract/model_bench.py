"""A bench on the model."""

import itertools
import random
from collections.abc import Sequence

from contract.bench import Behaviour
from model.cluster import Cluster, Timings
from model.log import Marker
from model.loop import VirtualLoop, run
from model.network import Faults, Network
from model.ports import ModelDestination, ModelSource
from twinlog.kafka.log.batch import TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.types import TopicPartition

HASTY = Timings(
    producer_id_expiration=6.0,
    producer_id_expiration_check=0.5,
    transactional_id_expiration=6.0,
)
"""A cluster that soon forgets producers and transactional ids."""


class ModelBench:
    """The model's cluster without faults."""

    def __init__(self, loop: VirtualLoop, timings: Timings, nodes: Sequence[int]) -> None:
        rng = random.Random(1)
        self.cluster = Cluster(loop, rng, nodes=nodes, timings=timings)
        network = Network(loop, rng, Faults())
        self.source = ModelSource(self.cluster, network, "test")
        self.destination = ModelDestination(self.cluster, network, "test")
        self._numbers = itertools.count()
        self._open: dict[str, tuple[int, int]] = {}

    def now_ms(self) -> int:
        """Return the virtual wall clock in milliseconds."""
        return self.cluster.now_ms

    def name(self, stem: str) -> str:
        """Return a new name."""
        return f"{stem}.{next(self._numbers)}"

    async def topic(
        self, partitions: int = 1, *, policy: str = "delete", config: dict[str, str] | None = None
    ) -> list[TopicPartition]:
        """Create a topic."""
        name = self.name("topic")
        topic = self.cluster.create_topic(
            name, partitions, compact="compact" in policy, delete="delete" in policy
        )
        for partition in topic.partitions:
            partition.log.max_bytes = int((config or {}).get("max.message.bytes", 1_048_588))
        return [TopicPartition(name, index) for index in range(partitions)]

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self.cluster.delete_topic(topic)

    async def create_again(self, topic: str) -> None:
        """Recreate a topic."""
        self.cluster.create_topic(topic)

    async def transact(
        self, transactional_id: str, key: TopicPartition, values: Sequence[bytes], end: str
    ) -> None:
        """Write a transaction directly into the log."""
        cluster = self.cluster
        log = cluster.log(key)
        error, producer_id, epoch = cluster.coordinator.init(transactional_id)
        assert error == 0
        records = [
            RawRecord(at, self.now_ms(), 0, memoryview(encode_tail(b"k", value)))
            for at, value in enumerate(values)
        ]
        log.append(
            whole(
                build(records, Codec.NONE),
                attributes=TRANSACTIONAL,
                producer_id=producer_id,
                epoch=epoch,
                sequence=0,
            )
        )
        if end != "open":
            log.append_marker(Marker(producer_id, epoch, end == "commit"), self.now_ms())
        log.high_watermark = log.end


def run_on_model(
    behaviour: Behaviour, timings: Timings | None = None, nodes: Sequence[int] = (1,)
) -> None:
    """Run a behaviour on a new model."""

    async def main(loop: VirtualLoop) -> None:
        await behaviour(ModelBench(loop, timings or Timings(), nodes))

    run(main)
