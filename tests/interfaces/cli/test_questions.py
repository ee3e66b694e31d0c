"""Twin of twinlog.interfaces.cli.questions, on a pipe as standard input."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from twinlog.interfaces.cli.questions import confirm


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return the descriptor whose bytes are typed."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield writing
    os.close(writing)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("what?\ny\n", True)],
)
def test_yes_and_no_are_accepted_and_other_input_asks_again(
    typing: int, typed: str, answer: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    os.write(typing, typed.encode())
    assert asyncio.run(confirm("Sure?")) is answer
    asked = capsys.readouterr().err
    assert asked.count("Sure? [y/N]: ") == typed.count("\n")
    assert ("Error: invalid input" in asked) == ("what" in typed)


def test_an_answer_without_line_end_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `printf y |`."""
    reading, writing = os.pipe()
    os.write(writing, b"y")
    os.close(writing)
    with os.fdopen(reading, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert asyncio.run(confirm("Sure?")) is True


def test_a_closed_standard_input_counts_as_no(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert asyncio.run(confirm("Sure?")) is False


def test_a_prompt_does_not_block_the_event_loop_and_can_be_cancelled(typing: int) -> None:
    del typing

    async def story() -> None:
        asking = asyncio.create_task(confirm("Sure?"))
        await asyncio.sleep(0.05)
        assert not asking.done()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(story())
