"""`twinlog verify`: whether both logs of a mirror are the same."""

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from twinlog.cli.options import (
    destination_options,
    destination_properties,
    spark_options,
    spark_settings,
)
from twinlog.control.verification import Verification, VerifyConfig, verify_mirrors


@click.command()
@destination_options
@click.option("--mirror", help="Only this mirror; all of them by default.")
@click.option("--topic", help="Only topics that match this regular expression.")
@spark_options
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def verify(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    mirror: str | None,
    topic: str | None,
    master: str,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare both logs of each mirror partition, batch by batch, as a Spark job.

    Exit status 0 when nothing differs, 1 when something does. What the destination does not have
    yet is said and is no difference.
    """
    try:
        pattern = re.compile(topic) if topic else None
    except re.error as error:
        raise click.BadParameter(f"{topic!r}: {error}", param_hint="--topic") from error
    config = VerifyConfig(
        destination=destination_properties(bootstrap_server, command_config),
        mirror=mirror,
        topic=pattern,
        master=master,
        spark_conf=spark_settings(conf),
    )
    result = asyncio.run(verify_mirrors(config))
    click.echo(json.dumps(_as_json(result)) if as_json else _as_text(result))
    sys.exit(0 if result.equal else 1)


def _as_text(result: Verification) -> str:
    lines = [
        f"DIFFERS {one.partition} [{one.start}, {one.end}): {one.reason}"
        for one in result.differences
    ]
    behind = f"; {result.behind} offsets are not mirrored yet" if result.behind else ""
    verdict = "the same" if result.equal else f"{len(result.differences)} ranges differ"
    lines.append(
        f"{result.partitions} partitions, {result.records} records compared: {verdict}{behind}"
    )
    return "\n".join(lines)


def _as_json(result: Verification) -> Mapping[str, object]:
    return {
        "equal": result.equal,
        "partitions": result.partitions,
        "records": result.records,
        "behind": result.behind,
        "differences": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "start": one.start,
                "end": one.end,
                "reason": one.reason,
            }
            for one in result.differences
        ],
    }
