"""Twin of properties_text.py; test_mirror_maker_java.py compares it with Java."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.properties_text import Property, last_values, parse_lines


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_properties_have_the_number_of_their_first_line(end: str) -> None:
    text = "# comment|a = b\\|  c||! note|d: e |  f|".replace("|", end)
    assert parse_lines(text) == (
        Property(2, "a", "bc"),
        Property(6, "d", "e "),
        Property(7, "f", ""),
    )


def test_the_last_value_of_a_key_counts() -> None:
    lines = parse_lines("a=1\nb=2\na=3\n")
    assert len(lines) == 3
    assert last_values(lines) == {"a": Property(3, "a", "3"), "b": Property(2, "b", "2")}


def test_a_malformed_escape_is_an_error_with_its_line() -> None:
    with pytest.raises(UserError, match=r"line 2 is no valid line .*u12"):
        parse_lines("a=1\nb=\\u12\n")
