"""Twin of setting_values.py."""

import re

import pytest

from twinlog.mirror.setting_values import (
    MAX_SECONDS,
    choice,
    number,
    only,
    parse_flag,
    parse_formats,
    parse_interval,
    parse_names,
    parse_offset_reset,
    parse_separator,
    parse_task_interval,
    parse_text,
    replicas,
    split_list,
    split_set,
)


def test_lists_are_split_as_kafka_does() -> None:
    assert split_list(" a ,b\t, c d ") == ("a", "b", "c d")
    assert split_list("  ") == split_set("  ") == ()
    assert split_set("b, a,b ") == ("b", "a")


@pytest.mark.parametrize(
    ("text", "expectation"), [("a,,b", "empty items"), ("a,", "empty items"), ("a,a", "duplicates")]
)
def test_a_list_that_kafka_refuses(text: str, expectation: str) -> None:
    with pytest.raises(ValueError, match=expectation):
        split_list(text)
    if expectation == "empty items":
        with pytest.raises(ValueError, match=expectation):
            split_set(text)


def test_values_may_have_white_space_around_them() -> None:
    assert parse_text(" a ") == "a"
    assert parse_flag(" TRUE\t") is True
    assert parse_flag("false") is False
    assert number(0, 9, "")(" +7 ") == 7
    assert choice("a", "b")(" b ") == "b"
    assert only("x.Y")(" x.Y ") == "x.Y"
    assert parse_formats("new, legacy, new") == ("new", "legacy")


def test_intervals_are_positive_or_never() -> None:
    assert parse_interval("600") == 600
    assert parse_interval("-1") == -1
    assert parse_interval(str(MAX_SECONDS)) == MAX_SECONDS
    for text in ("0", "1.5", "", "10s", str(MAX_SECONDS + 1)):
        with pytest.raises(ValueError, match="whole seconds from 1"):
            parse_interval(text)


def test_an_interval_of_a_task_may_be_zero() -> None:
    """Goal: a file with which MirrorMaker 2's tasks do not pause runs, with the shortest pause."""
    assert [parse_task_interval(text) for text in ("0", " -0", "00", "1", "60")] == [1, 1, 1, 1, 60]
    assert parse_task_interval("-1") == -1
    for text in ("0.5", "", "10s", str(MAX_SECONDS + 1)):
        with pytest.raises(ValueError, match=r"whole seconds from 0 to .*, or a negative number"):
            parse_task_interval(text)


def test_a_replication_factor_may_be_the_default_of_the_cluster() -> None:
    assert [replicas(3)(text) for text in ("-1", "1", "3")] == [-1, 1, 3]
    for text in ("0", "4", "-2", "x"):
        with pytest.raises(ValueError, match="-1: the cluster's default"):
            replicas(3)(text)


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_a_flag_is_true_or_false(text: str) -> None:
    with pytest.raises(ValueError, match="true or false"):
        parse_flag(text)


def test_names_are_expressions() -> None:
    pattern = parse_names("a.*, b")
    assert pattern is not None
    assert pattern.pattern == "a.*|b"
    assert parse_names("") is None
    with pytest.raises(ValueError, match=r"regular expressions, comma-separated \(.*position"):
        parse_names("a, (")


def test_a_separator_is_not_stripped() -> None:
    """Goal: the policy gets it with its spaces, and no topic's name can have one."""
    assert [parse_separator(text) for text in ("", ".", "_-")] == ["", ".", "_-"]
    with pytest.raises(ValueError, match="characters of topic names"):
        parse_separator("_ ")


@pytest.mark.parametrize(
    "text", ["earliest", " latest ", "none", "by_duration:PT1H", "by_duration:P2DT3M0.5S"]
)
def test_where_a_consumer_begins(text: str) -> None:
    assert parse_offset_reset(text) == text.strip()


@pytest.mark.parametrize(
    "text", ["Earliest", "by_duration", "by_duration:", "by_duration:P", "by_duration:1h"]
)
def test_where_no_consumer_begins(text: str) -> None:
    with pytest.raises(ValueError, match="earliest, latest, none or by_duration"):
        parse_offset_reset(text)


@pytest.mark.parametrize(
    ("parser", "text", "expectation"),
    [
        (choice("a", "b"), "A", "one of a, b"),
        (only("x.Y"), "Z", "cannot load other classes"),
        (parse_formats, "", "legacy, new, or both"),
        (parse_formats, "jmx", "legacy, new, or both"),
        (number(1, 5, "1 to 5"), "9" * 30, "1 to 5"),
    ],
)
def test_errors_have_the_expectation(parser: object, text: str, expectation: str) -> None:
    assert callable(parser)
    with pytest.raises(ValueError, match=re.escape(expectation)):
        parser(text)
