"""Twin of pattern_lists.py; test_mirror_maker_java.py compares it with Java."""

import pytest

from twinlog.mirror.pattern_lists import compile_list, matches


@pytest.mark.parametrize(
    ("items", "matching", "other"),
    [
        ([".*"], "any", "a\nb"),
        (["foo-.*", "bar"], "bar", "bar2"),
        (["(foo", "bar)-x"], "bar-x", "bar"),
        ([r"a\.b"], "a.b", "axb"),
        ([r"\d{2,3}"], "123", "١٢"),
        (["[^]a]"], "b", "]"),
        (["x{2,}"], "xxx", "x"),
    ],
)
def test_a_list_matches_whole_names(items: list[str], matching: str, other: str) -> None:
    pattern = compile_list(items)
    assert matches(pattern, matching)
    assert not matches(pattern, other)


def test_an_empty_list_matches_nothing() -> None:
    assert compile_list([]) is None
    assert not matches(None, "")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("[a-z&&[^b]]", "set operations"),
        ("[a[bc]]", "set operations"),
        ("app-{", "begins no quantifier"),
        ("a{,3}", "begins no quantifier"),
        ("(", "unterminated"),
        (r"\h", "bad escape"),
        (r"\Qa.b\E", "bad escape"),
        ("(?<name>a)", "unknown extension"),
    ],
)
def test_what_java_reads_otherwise_is_refused(item: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_list([item])


def test_a_comma_inside_a_quantifier_is_refused() -> None:
    """Goal: `app-[0-9]{1,3}` arrives as two items, which mean something else in Python."""
    with pytest.raises(ValueError, match="a comma separates expressions"):
        compile_list(["app-[0-9]{1", "3}"])
