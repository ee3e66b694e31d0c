"""What a flow does with records, as its properties have it."""

from collections.abc import Mapping
from typing import NamedTuple

from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.mirror.flow import (
    FlowRules,
    flow_of,
    goes_on_in_recreated,
    may_have_routed,
    records_map,
    transforms_of,
)
from twinlog.mirror.transform_chain import OF_HEARTBEATS, TransformChain


class RecordRules(NamedTuple):
    """What a flow does with records."""

    flow: FlowRules
    transforms: TransformChain | DataFrameTransform
    is_mapped: bool
    """Whether it records where they are (position_maps.py)."""
    has_routed: bool
    """Whether it may have routed them to other topics."""
    passes_recreated: bool
    """Whether it goes on in a remote topic that was deleted or recreated."""

    def of_topic(self, topic: str) -> TransformChain | DataFrameTransform:
        """What is applied to the records of a topic of the source."""
        has_none = isinstance(self.transforms, TransformChain) and not self.transforms.steps
        if has_none or not self.flow.policy.is_heartbeats_topic(topic):
            return self.transforms
        return OF_HEARTBEATS


def record_rules(properties: Mapping[str, str]) -> RecordRules:
    """The rules of a flow with these properties.

    Raises:
        UserError: they cannot be read.
    """
    return RecordRules(
        flow_of(properties),
        transforms_of(properties),
        records_map(properties),
        may_have_routed(properties),
        goes_on_in_recreated(properties),
    )
