"""Tables of a MirrorMaker report: its flows, and its lines explained."""

import sys
from typing import Final

import click

from twinlog.interfaces.cli.output import print_json, say
from twinlog.interfaces.cli.tables import print_table
from twinlog.mirror.flow_circles import EXAMPLE_TOPIC
from twinlog.mirror.mirror_maker_lines import FileLine
from twinlog.mirror.mirror_maker_report import FlowRow, MirrorMakerReport, line_warnings

COLUMNS: Final = (
    "FLOW",
    "TOPICS",
    "GROUPS",
    f"{EXAMPLE_TOPIC.upper()} BECOMES",
    "HEARTBEATS",
    "CHECKPOINTS",
    "GROUP OFFSETS",
)
MAX_CELL: Final = 40
"""Characters of an expression or a value in a table; JSON has all."""


def require_valid(result: MirrorMakerReport) -> None:
    """Print warnings, also of lines, and errors; exit with 1 if there are errors."""
    for warning in (*line_warnings(result.lines), *result.warnings):
        say(f"Warning: {warning}")
    for error in result.errors:
        say(f"Error: {error}")
    if result.errors:
        sys.exit(1)


def finish(result: MirrorMakerReport, as_json: bool) -> None:
    """Print a report; exit with 1 if there are errors."""
    if as_json:
        print_json(result, indent=1)
    else:
        _print(result)
    if result.errors:
        sys.exit(1)


def _print(result: MirrorMakerReport) -> None:
    if result.flows:
        print_table(COLUMNS, map(_columns, result.flows))
        click.echo()
    print_table(("LINE", "VERDICT", "PROPERTY", "MEANING"), map(_line_columns, result.lines))
    for warning in result.warnings:
        say(f"Warning: {warning}")
    for error in result.errors:
        say(f"Error: {error}")


def _columns(row: FlowRow) -> tuple[str, ...]:
    mirrors = row.mirrors_topics
    return (
        f"{row.source}->{row.target}",
        _short(row.topics or "-") if mirrors else "-",
        _short(row.groups or "-") if row.checkpoints_seconds else "-",
        (row.remote_topic or "unknown") if mirrors else "-",
        _every(row.heartbeats_seconds),
        _every(row.checkpoints_seconds),
        _every(row.group_offsets_seconds),
    )


def _line_columns(line: FileLine) -> tuple[str, ...]:
    value = "..." if line.value is None else _short(line.value)
    number = str(line.number) if line.number else "-"
    return number, line.verdict.value, f"{line.key} = {value}", line.text


def _every(seconds: int | None) -> str:
    return "-" if seconds is None else f"every {seconds} s"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 3]}..."
