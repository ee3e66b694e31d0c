"""Twin of reported_positions.py."""

from twinlog.engines.transactional.positions import position_group
from twinlog.mirror.reported_positions import is_position_group, is_reported, report_mark
from twinlog.store.control_topics import LANES_GROUP


def test_a_mark_names_the_flow_and_its_target() -> None:
    """Goal: two flows of one name, to different targets, tell their offsets apart."""
    marks = {report_mark(flow, target) for flow in ("a-to-b", "a-to-c") for target in ("x", "y")}
    assert len(marks) == 4
    assert all(map(is_reported, marks))


def test_other_offsets_have_no_mark() -> None:
    """Goal: an application's offset, and a true position, are not taken for a reported one."""
    assert not any(map(is_reported, ("", "checkpoint-7", "source-topic-id=x;topic-id=y;begin=")))


def test_groups_with_positions_are_known_by_their_names() -> None:
    """Goal: no mirror copies a flow's position as if it were an application's offset."""
    assert is_position_group(position_group(LANES_GROUP, "A-to-B"))
    assert not any(map(is_position_group, (LANES_GROUP, "flow.A-to-B", "my.twinlog.flow.x")))
