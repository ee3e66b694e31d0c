"""Twin of reported_positions.py."""

from twinlog.mirror.reported_positions import is_reported, report_mark


def test_a_mark_names_the_flow_and_its_target() -> None:
    """Goal: two flows of one name, to different targets, tell their offsets apart."""
    marks = {report_mark(flow, target) for flow in ("a-to-b", "a-to-c") for target in ("x", "y")}
    assert len(marks) == 4
    assert all(map(is_reported, marks))


def test_other_offsets_have_no_mark() -> None:
    """Goal: an application's offset, and a true position, are not taken for a reported one."""
    assert not any(map(is_reported, ("", "checkpoint-7", "source-topic-id=x;topic-id=y;begin=")))
