"""How a process of twinlog logs: lines for people, or a JSON object on each line for programs.

    {"time": "2026-01-31T12:00:00.123Z", "level": "WARNING", "logger": "twinlog.runtime.lane",
     "lane": "host-0", "message": "...", "shard": 3, "exception": "..."}

`lane` is there in a lane's process only, `exception` where one was logged; other names are what the
line's writer gave beside its message (`extra`). Nothing that is logged holds a secret: they are
resolved where somebody connects and kept out of `repr` (kafka/client/configuration.py).
"""

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from twinlog.text import printable

FORMATS: Final = ("text", "json")

_GIVEN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """A line for programs; `context` is in each."""

    def __init__(self, context: Mapping[str, str]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            **self._context,
            "message": record.getMessage(),
        }
        more = {name: value for name, value in vars(record).items() if name not in _GIVEN}
        fields |= {name: value for name, value in more.items() if name not in fields}
        if record.exc_info:
            fields["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields, default=str)


class TextFormatter(logging.Formatter):
    """A line for people: no message writes a second one, or to the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """One line, whatever the message holds."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        """As many lines as the traceback has."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def set_up(level: str, style: str, lane: str | None = None) -> None:
    """Log to standard error from now on.

    Args:
        level: a name of logging's.
        style: one of FORMATS.
        lane: the lane that this process is; None for a node.
    """
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(JsonFormatter({} if lane is None else {"lane": lane}))
    else:
        who = "" if lane is None else f"lane {lane.replace('%', '%%')} "
        handler.setFormatter(TextFormatter(f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
