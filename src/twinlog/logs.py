"""The log format of a twinlog process: text lines, or one JSON object on each line.

    {"time": "2026-01-31T12:00:00.123Z", "level": "WARNING", "logger": "twinlog.runtime.lane",
     "lane": "host-0", "message": "...", "shard": 3, "exception": "..."}

`lane` appears only in a lane's process, `exception` only if one was logged. Other names are the
fields that the caller passed with the message (`extra`). No log contains a secret: secrets are
resolved when a connection is opened, and kept out of `repr` (kafka/client/configuration.py).
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
    """JSON lines; each contains `context`."""

    def __init__(self, context: Mapping[str, str]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Format one line, whatever the message contains."""
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            **self._context,
            "message": record.getMessage(),
        }
        extras = {name: value for name, value in vars(record).items() if name not in _GIVEN}
        fields |= {name: value for name, value in extras.items() if name not in fields}
        if record.exc_info:
            fields["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields, default=str)


class TextFormatter(logging.Formatter):
    """Text lines. No message can start a second line, or control the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Format one line, whatever the message contains."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        """Format a traceback with its own line ends only."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def set_up(level: str, style: str, lane: str | None = None) -> None:
    """Log to standard error from now on.

    Args:
        level: a level name of `logging`.
        style: one of FORMATS.
        lane: the name of this process's lane; None for a node.
    """
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(JsonFormatter({} if lane is None else {"lane": lane}))
    else:
        lane_text = "" if lane is None else f"lane {lane.replace('%', '%%')} "
        handler.setFormatter(
            TextFormatter(f"%(asctime)s %(levelname)s {lane_text}%(name)s: %(message)s")
        )
    logging.basicConfig(level=level, handlers=[handler], force=True)
