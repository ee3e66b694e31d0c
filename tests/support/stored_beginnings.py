"""Which partitions have begun, in memory: `Beginnings` that outlive the owners of a test."""

from collections.abc import Collection

from twinlog.kafka.errors import Retriable
from twinlog.mirror.placement import MirrorPartition


class MemoryBeginnings:
    """`Beginnings` without a control topic. `known` is what is stored; None if it is not known."""

    def __init__(self) -> None:
        self.known: dict[MirrorPartition, bool] = {}
        self.broken = False

    def has_begun(self, name: MirrorPartition) -> bool | None:
        return self.known.get(name)

    async def store(self, names: Collection[MirrorPartition]) -> None:
        if self.broken:
            raise Retriable("the states cannot be written")
        self.known |= dict.fromkeys(names, True)
