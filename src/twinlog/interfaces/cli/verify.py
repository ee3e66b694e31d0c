"""`twinlog verify`: checks that both logs of each mirror partition are the same."""

import re
import sys
import time
from pathlib import Path
from typing import Final

import click

from twinlog.interfaces.cli.calls import call
from twinlog.interfaces.cli.options import (
    MirrorName,
    destination_options,
    destination_properties,
    spark_options,
    spark_settings,
)
from twinlog.interfaces.cli.output import print_json
from twinlog.operations.verification_report import (
    DIFFERS,
    NOT_SEEN,
    SAME,
    Counts,
    LogReport,
    Verification,
)
from twinlog.runtime.job_progress import JobProgress
from twinlog.text import printable
from twinlog.verify.job import RangeDifference
from twinlog.verify.log_reader import PATIENCE_S

EXIT_STATUS: Final = {SAME: 0, DIFFERS: 1, NOT_SEEN: 3}
LINE_S: Final = 30.0
"""Seconds between lines of progress if standard error is not a terminal."""


@click.command()
@destination_options
@click.option(
    "--mirror",
    type=MirrorName(),
    help="Only this mirror, or the flow A-to-B or A->B; all by default.",
)
@click.option("--topic", help="Only topics that match this regular expression.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds without progress after which an offset counts as not seen.",
)
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def verify(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    mirror: str | None,
    topic: str | None,
    patience: float,
    master: str,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare both logs of each mirror partition, offset by offset, as a Spark job.

    Flows of MirrorMaker 2 are compared record by record, and their recorded maps with that.

    Exit status 0 if every offset that the destination has reached was seen and nothing differs, 1
    if something differs, 3 if nothing differs but an offset, or a whole mirror, could not be seen.
    Offsets that the destination has not reached yet are counted; they are not a difference.
    """
    try:
        pattern = re.compile(topic) if topic else None
    except re.error as error:
        raise click.BadParameter(f"{topic!r}: {error}", param_hint="--topic") from error
    properties = destination_properties(bootstrap_server, command_config)
    settings = spark_settings(conf)
    reporter = _Reporter()
    try:
        result = call(
            properties,
            lambda admin: admin.verify(
                *(mirror, pattern),
                master=master,
                spark_conf=settings,
                patience_s=patience,
                progress=reporter,
            ),
        )
    finally:
        reporter.end()
    if as_json:
        print_json(result)
    else:
        click.echo(_as_text(result))
    sys.exit(EXIT_STATUS[result.verdict])


def _as_text(result: Verification) -> str:
    lines = [f"DIFFERS {_range(difference)}" for difference in result.differences]
    lines += [f"NOT SEEN {_range(difference)}" for difference in result.unseen]
    lines += [
        f"NOT SEEN what this unreadable record describes: {record}" for record in result.unreadable
    ]
    lines += [
        f"NOT SEEN any log of mirror {name}: {why}" for name, why in result.unverified.items()
    ]
    lines += map(_log, result.logs)
    lag = result.counts.behind
    lag_note = f"; {lag} offsets are not mirrored yet" if lag else ""
    lines.append(
        f"{len(result.logs)} partitions, {_counted(result.counts)}: {_verdict(result)}{lag_note}"
    )
    return "\n".join(map(printable, lines))


def _log(report: LogReport) -> str:
    line = f"{report.partition}: {_counted(report.counts)}"
    remote = report.remote
    if remote is None:
        return line
    recorded = remote.recorded_map
    text = (
        "none to compare"
        if recorded is None
        else (
            f"{recorded.compared} records agree, {recorded.differs} differ, "
            f"{recorded.not_seen} not seen"
        )
    )
    return f"{line}; {remote.partition}: {_counted(remote.counts)}; recorded map: {text}"


def _range(difference: RangeDifference) -> str:
    return f"{difference.partition} [{difference.start}, {difference.end}): {difference.reason}"


def _verdict(result: Verification) -> str:
    if result.verdict == DIFFERS:
        return f"{len(result.differences)} ranges differ"
    if result.verdict == NOT_SEEN:
        records = len(result.unreadable)
        more = f", nor what {records} unreadable record(s) describe" if records else ""
        if mirrors := len(result.unverified):
            more += f", nor any log of {mirrors} mirror(s)"
        return f"{result.counts.not_seen} offsets were not seen{more}: unknown whether they differ"
    return result.verdict


def _counted(counts: Counts) -> str:
    """The counts of all classes; their sum is the first number."""
    reasons = counts.absent_by_reason
    absent = ", ".join(f"{reason} {count}" for reason, count in reasons.items() if count)
    return (
        f"{counts.length} offsets = {counts.compared} compared + {counts.differs} differing + "
        f"{sum(counts.absent.values())} absent{f' ({absent})' if absent else ''} + "
        f"{counts.not_seen} not seen + {counts.behind} behind"
    )


class _Reporter:
    """Progress on standard error: in place on a terminal, else a line each `LINE_S`."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next_at = time.monotonic() + LINE_S

    def __call__(self, progress: JobProgress) -> None:
        """Show the progress."""
        text = f"verify: {progress.done} of {progress.total} tasks done"
        if self._terminal:
            click.echo(f"\r{text}", err=True, nl=False)
        elif time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + LINE_S
            click.echo(text, err=True)

    def end(self) -> None:
        """Clear the line of progress."""
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
