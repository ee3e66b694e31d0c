"""What a log line looks like."""

import json
import logging
from collections.abc import Iterator

import pytest

from twinlog.logs import set_up


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The root logger as it was: pytest's own handlers are on it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_log_lines_have_message_and_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """One object on a line, with what was given beside the message, whatever that holds."""
    set_up("INFO", "json", "node-1")
    log = logging.getLogger("twinlog.some")
    log.info('a "message"\nof %d lines', 2, extra={"shard": 3, "what": {1}, "lane": "other"})
    log.debug("below the level")
    try:
        int("deep\ndown")
    except ValueError:
        log.exception("it has failed")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "INFO",
        "logger": "twinlog.some",
        "lane": "node-1",
        "message": 'a "message"\nof 2 lines',
        "shard": 3,
        "what": "{1}",
    }
    assert second["level"] == "ERROR"
    assert second["exception"].rstrip().endswith(r"'deep\ndown'")


@pytest.mark.parametrize(("lane", "who"), [(None, ""), ("50%s", "lane 50%s ")])
def test_text_log_lines_have_level_lane_and_logger(
    capsys: pytest.CaptureFixture[str], lane: str | None, who: str
) -> None:
    set_up("WARNING", "text", lane)
    logging.getLogger("twinlog.some").warning("so it is")
    line = capsys.readouterr().err
    assert line.endswith(f" WARNING {who}twinlog.some: so it is\n")


def test_terminal_escapes_in_log_messages_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A broker's word may hold escape sequences, and a line that looks like one of ours."""
    set_up("WARNING", "text")
    log = logging.getLogger("twinlog.some")
    log.warning("refused: %s", "\x1b[2Jall is well\n2026-01-01 INFO twinlog: all is well\u202e")

    def fail() -> None:
        raise ValueError("\x1b]0;title\x07")

    try:
        fail()
    except ValueError:
        log.exception("it has failed")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith(
        r"refused: \x1b[2Jall is well\n2026-01-01 INFO twinlog: all is well\u202e"
    )
    assert len(rest) > 3, "a traceback has its lines"
    assert rest[-1] == r"ValueError: \x1b]0;title\x07"
