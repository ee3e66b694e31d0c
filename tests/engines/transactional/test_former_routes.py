"""A partition that was copied to another remote topic before is not copied there again."""

from uuid import UUID

import pytest

from twinlog.engines.transactional.former_routes import moved, repeats
from twinlog.engines.transactional.positions import position_metadata
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.offset_records import BegunPartition, Route

GROUP = "twinlog.flow.A-to-B"
NAME = MirrorPartition("A-to-B", "orders", 0)
SOURCE_ID = UUID(int=1)
UNROUTED = Route(SOURCE_ID, "A.orders", UUID(int=2))
ROUTED = Route(SOURCE_ID, "eu-orders", UUID(int=3))
ANOTHER = UUID(int=9)


def at(offset: int, route: Route, copied_to: int | None = None) -> Committed:
    return Committed(
        offset, position_metadata(route, None if copied_to is None else Offset(copied_to))
    )


def reason(
    begun: BegunPartition, wanted: ToBegin, found: Committed | None, former: Committed | None
) -> str | None:
    """Why the partition may not begin."""
    (one,) = moved({NAME: begun}, {NAME: wanted}, {NAME: found})
    key = TopicPartition(begun.route.topic, 0)
    return repeats(one, {} if former is None else {key: former}, GROUP)


@pytest.mark.parametrize(("begun", "wanted"), [(UNROUTED, ROUTED), (ROUTED, UNROUTED)])
def test_a_flow_does_not_begin_in_front_of_what_it_has_routed(begun: Route, wanted: Route) -> None:
    """Goal: neither with the map switched on between deletion and creation, nor off."""
    former = at(50, begun)
    why = reason(BegunPartition(NAME, begun), ToBegin(wanted, Offset(0)), None, former)
    assert why == (
        f"orders-0 was copied to {begun.topic} before, with position 50, and would go on at 0 with "
        f"{wanted.topic}: records that transforms route would be copied twice"
    )


@pytest.mark.parametrize(
    "former",
    [
        None,
        at(0, UNROUTED._replace(source_topic_id=ANOTHER)),
        at(0, UNROUTED._replace(topic_id=ANOTHER)),
    ],
)
def test_a_position_that_is_lost_is_not_0(former: Committed | None) -> None:
    """Goal: what brokers have forgotten, or may not show, was copied all the same."""
    why = reason(BegunPartition(NAME, UNROUTED), ToBegin(ROUTED, Offset(0)), None, former)
    assert why is not None
    assert "a position that is lost" in why


@pytest.mark.parametrize(("offset", "refused"), [(49, True), (50, False), (51, False)])
def test_a_takeover_or_an_import_says_where_it_goes_on(offset: int, refused: bool) -> None:
    """Goal: the steps by which a flow gets a map (kip-656.md) go on, and not in front."""
    wanted = ToBegin(ROUTED, Offset(offset), Offset(offset))
    why = reason(BegunPartition(NAME, UNROUTED), wanted, None, at(50, UNROUTED))
    assert (why is not None) == refused
    assert reason(BegunPartition(NAME, UNROUTED), wanted, None, None) is None
    before = BegunPartition(NAME, UNROUTED, Offset(offset))
    assert reason(before, wanted, None, None) is not None, "it is from before"


def test_an_older_position_of_the_same_name_is_in_front_as_well() -> None:
    """Goal: after such steps and back, the position at the first name is an old one."""
    begun, wanted = BegunPartition(NAME, ROUTED), ToBegin(UNROUTED, Offset(0))
    assert reason(begun, wanted, at(50, UNROUTED), at(80, ROUTED)) is not None
    assert reason(begun, wanted, at(80, UNROUTED), at(80, ROUTED)) is None


def test_where_nothing_was_copied_it_begins() -> None:
    begun, wanted = BegunPartition(NAME, UNROUTED), ToBegin(ROUTED, Offset(0))
    assert reason(begun, wanted, None, at(0, UNROUTED)) is None


def test_the_same_remote_topic_and_recreated_source_topics_are_of_no_concern() -> None:
    """Goal: they go on, or begin, as any partition (positions.py)."""
    wanted, nothing = {NAME: ToBegin(ROUTED, Offset(0))}, {NAME: None}
    for begun in (ROUTED, UNROUTED._replace(source_topic_id=ANOTHER)):
        assert moved({NAME: BegunPartition(NAME, begun)}, wanted, nothing) == []
    assert moved({}, wanted, nothing) == []
