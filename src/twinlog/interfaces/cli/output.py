"""What commands print: results as JSON on standard output, all else on standard error."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from twinlog.operations.serialise import json_data
from twinlog.text import printable


def print_json(result: object, indent: int | None = None) -> None:
    """Print a result as one JSON value; without `indent` on one line."""
    click.echo(json.dumps(json_data(result), indent=indent))


def say(message: str) -> None:
    """Print a line on standard error."""
    click.echo(printable(message), err=True)


@contextmanager
def unread_output_ignored() -> Iterator[None]:
    """Go on where output cannot be written (a closed pipe or terminal), here and at the exit.

    For the last output of a command whose exit status says more than its output: Python's own flush
    at the exit would replace that status by 120.
    """
    try:
        yield
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
