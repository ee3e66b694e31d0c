"""A partition that was copied to another remote topic before is not copied there again."""

from uuid import UUID

import pytest

from twinlog.engines.transactional.former_routes import former_route
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.kafka.types import Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.offset_records import BegunPartition, Route

NAME = MirrorPartition("A-to-B", "orders", 0)
SOURCE_ID = UUID(int=1)
UNROUTED = Route(SOURCE_ID, "A.orders", UUID(int=2))
ROUTED = Route(SOURCE_ID, "eu-orders", UUID(int=3))
ANOTHER = UUID(int=9)


@pytest.mark.parametrize(("begun", "wanted"), [(UNROUTED, ROUTED), (ROUTED, UNROUTED)])
def test_a_flow_does_not_begin_anew_with_another_remote_topic(begun: Route, wanted: Route) -> None:
    """Goal: neither with the map switched on between deletion and creation, nor off."""
    assert former_route(BegunPartition(NAME, begun), ToBegin(wanted, Offset(0))) == (
        f"orders-0 was copied to {begun.topic} before, and would be copied to {wanted.topic}: "
        "records that transforms route may be there twice then"
    )


def test_a_flow_goes_on_with_the_same_remote_topic() -> None:
    """Goal: also if that was recreated, which is found elsewhere; a new source topic begins."""
    begun = BegunPartition(NAME, ROUTED)
    recreated = ROUTED._replace(topic_id=ANOTHER)
    for route in (ROUTED, recreated, UNROUTED._replace(source_topic_id=ANOTHER)):
        assert former_route(begun, ToBegin(route, Offset(0))) is None


def test_a_takeover_says_where_it_begins() -> None:
    """Goal: the steps by which a flow gets a map (kip-656.md) go on; a former takeover is none."""
    wanted = ToBegin(ROUTED, Offset(50), Offset(50))
    assert former_route(BegunPartition(NAME, UNROUTED), wanted) is None
    assert former_route(BegunPartition(NAME, UNROUTED, Offset(50)), wanted) is not None
