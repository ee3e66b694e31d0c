"""`twinlog readiness`: whether a failover is possible now, and what it would lose."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from twinlog.interfaces.cli.options import destination_options, destination_properties
from twinlog.interfaces.cli.tables import print_table
from twinlog.kafka.client.configuration import parse_config
from twinlog.lifecycle.creation import connected
from twinlog.operations.readiness.subject import subject_of
from twinlog.operations.readiness.survey import survey
from twinlog.operations.readiness.verdict import (
    Finding,
    Readiness,
    Reason,
    TopicReadiness,
    Verdict,
    judge,
)
from twinlog.text import printable

STATUSES: Final = {Verdict.READY: 0, Verdict.WARNING: 3, Verdict.NOT_READY: 4}
"""Exit statuses. 1 and 2 mean, as with every command, an error: there is no verdict."""
COLUMNS: Final = ("MIRROR", "TOPIC", "READINESS", "LAG", "LAG-SECONDS")
ALL: Final = ".*"
SKIPPING: Final = frozenset({Reason.GROUP_SKIPS, Reason.GROUP_REWOUND})


@click.command()
@destination_options
@click.option("--mirror", required=True, help="The mirror.")
@click.option(
    "--topic", default=ALL, help="Only this topic of it, or those that match; all by default."
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def readiness(
    *, bootstrap_server: str, command_config: Path | None, mirror: str, topic: str, as_json: bool
) -> None:
    """Report whether topics of a mirror can be failed over now, and what would be lost.

    Exit status 0: ready, nothing would be lost. 3: ready, the losses and changes are listed.
    4: not ready. (1, 2: an error, there is no verdict.)
    """
    properties = destination_properties(bootstrap_server, command_config)
    found = asyncio.run(find_readiness(properties, mirror, topic))
    if as_json:
        click.echo(json.dumps(as_object(found), indent=1))
    else:
        print_readiness(found)
    sys.exit(STATUSES[found.verdict])


async def find_readiness(properties: Mapping[str, str], mirror: str, topic: str) -> Readiness:
    """Read the facts from both clusters, and return the verdict.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED,
            INVALID_REGULAR_EXPRESSION.
        Retriable, UserError: the destination does not answer, or refuses.
    """
    async with connected(parse_config(properties).config, "destination") as destination:
        return judge(await survey(destination, await subject_of(destination, mirror, topic)))


def print_readiness(found: Readiness) -> None:
    """Print a table of topics, the findings, and the verdict."""
    print_table(COLUMNS, [_columns(found.mirror, topic) for topic in found.topics])
    for finding in found.all_findings():
        click.echo(printable(f"{finding.verdict.name}: {finding.text}"))
    click.echo(_sentence(found))


def _columns(mirror: str, topic: TopicReadiness) -> tuple[object, ...]:
    seconds = "-" if topic.lag_ms is None else f"{topic.lag_ms / 1000:.1f}"
    return (mirror, topic.topic, topic.verdict.name, _or_unknown(topic.lag), seconds)


def _or_unknown(number: int | None) -> str:
    return "-" if number is None else str(number)


def _sentence(found: Readiness) -> str:
    if found.verdict is Verdict.NOT_READY:
        return f"Mirror {found.mirror} is not ready to be failed over"
    return f"Mirror {found.mirror} can be failed over: {_loss(found)} ({_rests_on(found)})"


def _loss(found: Readiness) -> str:
    """What a failover would lose; "nothing" only if everything was seen."""
    if found.verdict is Verdict.READY:
        return "nothing would be lost"
    if found.lag_is_all:
        lost = f"{found.lag} offsets would be lost" if found.lag else "no record would be lost"
        skips = any(one.reason in SKIPPING for one in found.all_findings())
        return f"{lost}, and groups would skip records" if skips else lost
    if found.lag:
        return f"at least {found.lag} offsets would be lost"
    return "what would be lost is not known"


def _rests_on(found: Readiness) -> str:
    """The age of the facts that the verdict is based on."""
    facts = f"destination asked {_seconds(found.age_ms)} ago"
    facts += f", source last seen {_seconds(found.source_age_ms)} ago"
    return f"{facts}, statuses up to {_seconds(found.status_age_ms)} old"


def _seconds(milliseconds: int | None) -> str:
    return "unknown time" if milliseconds is None else f"{milliseconds / 1000:.1f} s"


def as_object(found: Readiness) -> dict[str, Any]:
    """The whole result, for JSON."""
    return {
        "mirror": found.mirror,
        "readiness": found.verdict.name,
        "lag": found.lag,
        "lag_is_all": found.lag_is_all,
        "age_ms": found.age_ms,
        "source_age_ms": found.source_age_ms,
        "status_age_ms": found.status_age_ms,
        "not_mirrored": dict(found.not_mirrored),
        "findings": [_finding(one) for one in found.findings],
        "acls": {
            "to_make": list(found.acls.to_make),
            "to_remove": list(found.acls.to_remove),
            "denying": list(found.acls.denying),
            "missed": list(found.acls.missed),
            "withheld": list(found.acls.withheld),
        },
        "topics": [_topic(topic) for topic in found.topics],
    }


def _finding(one: Finding) -> dict[str, str]:
    return {"reason": one.reason.name, "weight": one.verdict.name, "text": one.text}


def _topic(topic: TopicReadiness) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "readiness": topic.verdict.name,
        "lag": topic.lag,
        "undecided": topic.undecided,
        "lag_ms": topic.lag_ms,
        "findings": [_finding(one) for one in topic.findings],
        "partitions": [
            {
                "partition": one.partition,
                "state": one.state.name,
                "source_start": None if one.source is None else one.source.start,
                "source_offset": None if one.source is None else one.source.high_watermark,
                "source_last_stable_offset": (
                    None if one.source is None else one.source.last_stable
                ),
                "source_log_end": None if one.source is None else one.source.log_end,
                "destination_offset": one.destination_end,
                "reported_end": one.reported_end,
                "lacks": None if one.lacks is None else list(one.lacks),
                "held_by": list(one.held_by),
            }
            for one in topic.facts.partitions
        ],
        "groups": [
            {
                "group": one.group,
                "kind": one.kind,
                "followed": one.followed,
                "idle_on_source": one.idle_on_source,
                "idle_on_destination": one.idle_on_destination,
                "due": one.due,
                "behind": one.behind,
                "missing": one.missing,
                "ahead": one.ahead,
                "skips": [
                    {
                        "partition": skip.partition.partition,
                        "source": skip.source,
                        "destination": skip.destination,
                        "follows": skip.follows,
                    }
                    for skip in one.skips
                ],
                "deleted": [
                    {"partition": gone.partition.partition, "destination": gone.offset}
                    for gone in one.deleted
                ],
                "unread": one.unread,
            }
            for one in topic.facts.groups
        ],
        "configurations": list(topic.facts.configurations),
    }
