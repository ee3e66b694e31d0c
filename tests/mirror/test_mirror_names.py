"""Twin of mirror_names.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.mirror_names import check_name, flow_name, mirror_name, wrong_flow_name


@pytest.mark.parametrize("name", ["m", "my-mirror", "a.b_c-D9", "x" * 249, ".a", "removed"])
def test_valid_mirror_names_are_accepted(name: str) -> None:
    check_name(name)


@given(st.text(max_size=260))
def test_any_name_is_accepted_or_an_invalid_mirror_name(name: str) -> None:
    """Any name is allowed, or gives INVALID_MIRROR_NAME."""
    kind = None
    try:
        check_name(name)
    except MirrorRefused as refused:
        kind = refused.kind
    allowed = (
        0 < len(name) <= 249
        and name not in {".", ".."}
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
        and not name.endswith((".removed", ".paused"))
    )
    assert kind is (None if allowed else MirrorError.INVALID_MIRROR_NAME)


@pytest.mark.parametrize("written", ["A->B", " A->B ", "A-to-B"])
def test_a_flow_is_named_as_in_mirrormaker_2s_files_too(written: str) -> None:
    assert mirror_name(written) == flow_name("A", "B")


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True))
def test_a_valid_name_stays_as_it_is(name: str) -> None:
    """Goal: no mirror is taken for another one."""
    assert mirror_name(name) == name


@pytest.mark.parametrize(
    ("source", "target", "trouble"),
    [
        ("A", "B", ""),
        ("A.paused", "B", ""),
        ("A", "paused", ""),
        ("a" * 122, "b" * 123, ""),
        ("a" * 123, "b" * 123, "the mirror name has 250 characters, expected at most 249"),
        ("A", "B.paused", "'A-to-B.paused' ends with .paused, which is reserved by KIP-1279"),
        ("A", "B.removed", "'A-to-B.removed' ends with .removed, which is reserved by KIP-1279"),
    ],
)
def test_the_name_of_a_flow(source: str, target: str, trouble: str) -> None:
    """Goal: what is said of aliases is what the flow's creation would be refused for."""
    text = wrong_flow_name(source, target)
    if not trouble:
        assert text == ""
        check_name(flow_name(source, target))
        return
    assert text.startswith(f"INVALID_MIRROR_NAME: {trouble}; the flow {source}->{target} is stored")
    with pytest.raises(MirrorRefused, match="INVALID_MIRROR_NAME"):
        check_name(flow_name(source, target))
