"""Tables on standard output, as Kafka's own tools print them."""

from collections.abc import Iterable, Sequence

import click

from twinlog.text import printable


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a line for each row, with columns as wide as needed."""
    table = [tuple(columns), *(tuple(map(printable, map(str, row))) for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())
