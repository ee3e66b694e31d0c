"""Tables and errors contain foreign text: names, and brokers' messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.interfaces.cli.kafka_mirrors import _print_topics
from twinlog.interfaces.cli.tables import print_table
from twinlog.operations.results import ChangedTopics
from twinlog.text import printable


def test_terminal_escapes_in_a_table_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["TOPIC", "STATE"], [["a\x1b[1A\x1b[2K", "FAILED"], ["b\nc STOPPED", 1]])
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC            STATE",
        r"a\x1b[1A\x1b[2K  FAILED",
        r"b\nc STOPPED     1",
    ]


def test_terminal_escapes_in_a_topic_list_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A writer of `__mirror_config` may store any name."""
    _print_topics("Paused {} topic(s) in mirror")(ChangedTopics("m", "paused", ["a\x1b[2K", "b\r"]))
    assert capsys.readouterr().out == "Paused 2 topic(s) in mirror m: [a\\x1b[2K, b\\r]\n"


@given(st.text())
def test_shown_text_is_one_line_of_printable_characters(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text) == text or not text.isprintable()
