"""What Spark says of an error, in a line."""

from typing import Final

from py4j.protocol import Py4JJavaError

_LENGTH: Final = 500
_MAX_CAUSES: Final = 10


def first_line(error: Exception) -> str:
    """The first line of an error: of one in a job of Java, that of its cause."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        for _ in range(_MAX_CAUSES):
            cause = cause.getCause() or cause
        text = cause.getMessage() or cause.toString()
    line = next(iter(text.strip().splitlines()), type(error).__name__)
    return line[:_LENGTH]
