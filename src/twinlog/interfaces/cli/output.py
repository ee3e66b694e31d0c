"""What commands print: results as JSON on standard output, all else on standard error."""

import json

import click

from twinlog.operations.serialise import json_data
from twinlog.text import printable


def print_json(result: object, indent: int | None = None) -> None:
    """Print a result as one JSON value; without `indent` on one line."""
    click.echo(json.dumps(json_data(result), indent=indent))


def say(message: str) -> None:
    """Print a line on standard error."""
    click.echo(printable(message), err=True)
