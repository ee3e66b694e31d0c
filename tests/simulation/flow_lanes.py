"""Lanes that run flows: the engine `translated` on the model's clusters.

Groups, leases, states and faults are those of the exact engine's lanes (lanes.py).
"""

from collections.abc import Callable
from typing import NamedTuple

from model.offset_topic import ModelOffsetLog, client_of
from model.ports import ModelDestination, ModelSource
from simulation.lanes import DestinationMaker, Lane, SourceMaker, World
from twinlog.engines.base import Engine, LaneContext
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.engines.translated.engine import FlowEngine
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions
from twinlog.engines.translated.reader import FlowReader
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.settings import TRANSLATED
from twinlog.runtime.ownership import OwnedStatePartition

WritersMaker = Callable[[int, LaneContext, DestinationPort], FlowWriters]
ReaderMaker = Callable[[FlowPartitions[FlowWriters, PartitionSequence], SourcePort], FlowReader]


class FlowVariant(NamedTuple):
    """The parts of a simulation of flows that a planted bug replaces."""

    destination: DestinationMaker = ModelDestination
    source: SourceMaker = ModelSource
    writers: WritersMaker = FlowWriters
    reader: ReaderMaker = FlowReader
    waits: bool = True
    """Whether a takeover waits for writes under a former producer id."""


class FlowLane(Lane):
    """One lane process.

    `passes_lost`: whether it goes on behind records that the source has deleted.
    """

    def __init__(
        self, name: str, world: World, seed: int, variant: FlowVariant, *, passes_lost: bool
    ) -> None:
        super().__init__(name, world, seed)
        self._variant = variant
        self._passes_lost = passes_lost
        self._context = LaneContext(
            destination=client_of(world.clusters[1]),
            settings=world.settings,
            id_prefix="twinlog",
            may_write=self.may_write,
            confirm_ownership=self._confirm_ownership,
            random=self._random,
        )

    def _own(self, number: int) -> OwnedStatePartition:
        writers = self._variant.writers(number, self._context, self._destination)
        writers._log = ModelOffsetLog(
            self._destination,
            number,
            "twinlog",
            lease_s=self._world.settings.lease_s if self._variant.waits else 0.0,
            may_write=self.may_write,
        )
        return OwnedStatePartition(
            number,
            writers={TRANSLATED: writers},
            kind_of=lambda _: TRANSLATED,
            states=self._states(number),
            may_write=self.may_write,
            settings=self._world.settings,
        )

    def _new_engine(self) -> Engine:
        engine = FlowEngine(self._context, self._source, self._destination, self._observe)
        engine.configure(flow_properties({"enabled": "true", "topics": "x"}, "A", "B"))
        engine.flow.passes_lost = self._passes_lost
        engine._reader = self._variant.reader(engine.flow, self._source)
        return engine

    def partitions(self) -> list[FlowPartition[FlowWriters, PartitionSequence]]:
        """The partitions that this lane copies."""
        engine = self._engine
        return [*engine.flow.all.values()] if isinstance(engine, FlowEngine) else []
