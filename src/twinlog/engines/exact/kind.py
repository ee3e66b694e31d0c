"""The kind `exact`: topics have the same name, and records the same offset, on both sides."""

from twinlog.engines.base import LaneContext
from twinlog.engines.exact.engine import ExactEngines


class ExactKind:
    """Exact mirroring (`MirrorKind`)."""

    def in_lane(self, lane: LaneContext) -> ExactEngines:
        """The exact engines of a lane."""
        return ExactEngines(lane)
