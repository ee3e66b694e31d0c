"""`twinlog readiness`: whether a failover is possible now, and what it would lose."""

import sys
from pathlib import Path
from typing import Final

import click

from twinlog.interfaces.cli.calls import call
from twinlog.interfaces.cli.options import MirrorName, destination_options, destination_properties
from twinlog.interfaces.cli.output import print_json
from twinlog.interfaces.cli.tables import print_table
from twinlog.operations.mirror_admin import ALL_TOPICS
from twinlog.operations.readiness.facts import FlowFacts
from twinlog.operations.readiness.reasons import Reason, Verdict
from twinlog.operations.readiness.verdict import Readiness, TopicReadiness
from twinlog.text import printable

STATUSES: Final = {Verdict.READY: 0, Verdict.WARNING: 3, Verdict.NOT_READY: 4}
"""Exit statuses. 1 and 2 mean, as with every command, an error: there is no verdict."""
COLUMNS: Final = ("MIRROR", "TOPIC", "READINESS", "LAG", "LAG-SECONDS")
SKIPPING: Final = frozenset({Reason.GROUP_SKIPS, Reason.GROUP_REWOUND})


@click.command()
@destination_options
@click.option(
    "--mirror", required=True, type=MirrorName(), help="The mirror, or the flow A-to-B or A->B."
)
@click.option(
    "--topic",
    default=ALL_TOPICS,
    help="Only this topic, or the topics that match this regular expression; all by default.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def readiness(
    *, bootstrap_server: str, command_config: Path | None, mirror: str, topic: str, as_json: bool
) -> None:
    """Report whether topics of a mirror can be failed over now, and what would be lost.

    Of a flow of MirrorMaker 2: whether consumers can go on at its target, and what they would miss.

    Exit status 0: ready, nothing would be lost. 3: ready, the losses and changes are listed.
    4: not ready. (1, 2: an error, there is no verdict.)
    """
    properties = destination_properties(bootstrap_server, command_config)
    report = call(properties, lambda admin: admin.readiness(mirror, topic))
    if as_json:
        print_json(report, indent=1)
    else:
        print_readiness(report)
    sys.exit(STATUSES[report.verdict])


def print_readiness(report: Readiness) -> None:
    """Print a table of topics, the findings, and the verdict."""
    print_table(COLUMNS, [_columns(report.mirror, topic) for topic in report.topics])
    for finding in report.all_findings():
        click.echo(printable(f"{finding.verdict.name}: {finding.text}"))
    click.echo(_sentence(report))


def _columns(mirror: str, topic: TopicReadiness) -> tuple[object, ...]:
    seconds = "-" if topic.lag_ms is None else f"{topic.lag_ms / 1000:.1f}"
    return (mirror, topic.topic, topic.verdict.name, _or_unknown(topic.lag), seconds)


def _or_unknown(number: int | None) -> str:
    return "-" if number is None else str(number)


def _sentence(report: Readiness) -> str:
    if report.flow is not None:
        return _flow_sentence(report, report.flow)
    if report.verdict is Verdict.NOT_READY:
        return f"Mirror {report.mirror} is not ready for a failover"
    return f"Mirror {report.mirror} can be failed over: {_loss(report)} ({_rests_on(report)})"


def _flow_sentence(report: Readiness, flow: FlowFacts) -> str:
    """A flow is not failed over: consumers go on in its remote topics."""
    ages = (
        f"{_rests_on(report)}, last heartbeat {_seconds(flow.heartbeat_age_ms)} ago, last "
        f"checkpoint {_seconds(flow.checkpoint_age_ms)} ago"
    )
    if report.verdict is Verdict.NOT_READY:
        return f"Flow {report.mirror}: consumers are not ready to go on at the target ({ages})"
    return f"Flow {report.mirror}: consumers can go on at the target: {_loss(report)} ({ages})"


def _loss(report: Readiness) -> str:
    """What a failover would lose; "nothing" only if everything was seen."""
    if report.verdict is Verdict.READY:
        return "nothing would be lost"
    if report.lag_is_all:
        loss = f"{report.lag} offsets would be lost" if report.lag else "no record would be lost"
        skips = any(finding.reason in SKIPPING for finding in report.all_findings())
        return f"{loss}, and groups would skip records" if skips else loss
    if report.lag:
        return f"at least {report.lag} offsets would be lost"
    return "unknown what would be lost"


def _rests_on(report: Readiness) -> str:
    """The age of the facts that the verdict is based on."""
    facts = f"destination read {_seconds(report.age_ms)} ago"
    facts += f", last contact with the source {_seconds(report.source_age_ms)} ago"
    return f"{facts}, statuses up to {_seconds(report.status_age_ms)} old"


def _seconds(milliseconds: int | None) -> str:
    return "unknown time" if milliseconds is None else f"{milliseconds / 1000:.1f} s"
