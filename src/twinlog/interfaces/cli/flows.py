"""`twinlog flows`: flows of MirrorMaker 2 by command, instead of by a file.

    create      aliases, source and settings, or a file of MirrorMaker 2
    list        one line for each flow
    describe    its partitions, and the settings that are not the default
    pause, resume, delete
    import-positions    where the group of another program has committed
    translate   offsets of either side, by offset, group or timestamp

Each command is one call of `FlowAdmin`. The commands import what they need when they run
(mirror_maker.py has the reason).
"""

import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from twinlog.interfaces.cli.calls import call
from twinlog.interfaces.cli.conditions import say_conditions, say_incomplete
from twinlog.interfaces.cli.options import (
    MirrorName,
    destination_options,
    destination_properties,
    key_values,
)
from twinlog.interfaces.cli.output import print_json, say
from twinlog.interfaces.cli.tables import print_table
from twinlog.interfaces.cli.translated_offsets import print_translated
from twinlog.kafka.client.configuration import read_properties
from twinlog.kafka.errors import UserError
from twinlog.lifecycle.flow_positions import GroupSide, ImportedPosition
from twinlog.mirror.flow_settings import SOURCE_HEARTBEATS
from twinlog.mirror.mirror_maker_file import Flow
from twinlog.operations.describe import DescribedPartition
from twinlog.operations.flow_results import (
    CreateFlowResult,
    Creation,
    DescribeFlowsResult,
    Direction,
    FlowDescription,
    ListFlowsResult,
)
from twinlog.operations.flows import ALL_TOPICS, DELETE_S
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.results import ChangedTopics
from twinlog.text import printable

PROPERTIES_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
NOT_ALL_KNOWN: Final = 3
"""Exit status of `translate` if an offset is unknown, or not certain."""
LIST_COLUMNS: Final = ("FLOW", "TOPICS", "PARTITIONS", "STATES", "LAG", "BOOTSTRAP-SERVER")
DESCRIBE_COLUMNS: Final = (
    "TOPIC",
    "PARTITION",
    "TARGET-TOPIC",
    "SOURCE-OFFSET",
    "COPIED-OFFSET",
    "TARGET-OFFSET",
    "LAG",
    "STATE",
)
POSITION_COLUMNS: Final = ("SOURCE", "BEGINS-AT", "TARGET", "FORMER", "DELETED-ON-SOURCE")
_CREATED: Final = {
    Creation.CREATED: "Created flow {}",
    Creation.REPLACED: "Replaced the settings of flow {}",
}


class Timestamp(click.ParamType[int]):
    """Milliseconds since 1970, or an ISO 8601 time with its offset from UTC."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds since 1970."""
        text = str(value).strip()
        if text.isascii() and text.isdecimal() and len(text) < 19:
            return int(text)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            self.fail(
                f"{value!r}: expected milliseconds since 1970, or a time such as "
                "2026-11-26T14:30:00Z",
                param,
                ctx,
            )
        return int(time.timestamp() * 1000)


_FLOW: Final = click.option(
    "--flow", required=True, type=MirrorName("FLOW"), help="The flow: A-to-B, or A->B."
)
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_TOPIC: Final = click.option(
    "--topic",
    default=ALL_TOPICS,
    show_default=True,
    help="A topic of the source, or a regular expression that matches its whole name. The default "
    "is the whole flow, with the topics that it gets later.",
)


@click.group()
def flows() -> None:
    """Create, list, describe, pause, resume and delete flows of MirrorMaker 2; translate offsets.

    A flow A->B copies topics of a source cluster A to a target cluster B under other names. It is
    stored on the target, with the name A-to-B; `twinlog run` on the target runs it.
    """


@flows.command()
@click.option(
    "--bootstrap-server", metavar="HOST:PORT,...", help="The target cluster. Required without FILE."
)
@click.option(
    "--command-config",
    type=PROPERTIES_FILE,
    help="Client properties for the target (security, timeouts).",
)
@click.option("--source", metavar="ALIAS", help="The source's alias: A of A->B.")
@click.option("--target", metavar="ALIAS", help="The target's alias: B of A->B.")
@click.option("--source-bootstrap-server", metavar="HOST:PORT,...", help="The source cluster.")
@click.option(
    "--source-config",
    type=PROPERTIES_FILE,
    help="Client properties for the source (security, timeouts).",
)
@click.option("--topics", metavar="LIST", help="Topics to copy: regular expressions, by comma.")
@click.option("--groups", metavar="LIST", help="Groups whose offsets are translated, likewise.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A property of MirrorMaker 2, as behind A->B. in its file; may be repeated.",
)
@click.option(
    "--file",
    type=PROPERTIES_FILE,
    help="A properties file of MirrorMaker 2: all its flows, or that of --source and --target.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="If the flow exists, replace its settings; those that are not given get their defaults.",
)
@_JSON
def create(*, file: Path | None, as_json: bool, replace: bool, **options: Any) -> None:
    """Create a flow; a node (twinlog run) then adds its topics and copies them."""
    from twinlog.operations.mirror_maker import check_queries  # noqa: PLC0415

    plan = [_flow_of_options(**options)] if file is None else _flows_of_file(file, **options)
    for warning in check_queries([flow for _, flow in plan], say):
        say(f"Warning: {warning}")
    results: list[CreateFlowResult] = []
    for properties, flow in plan:
        result = call(properties, partial(_create, flow, replaces=replace))
        results.append(result)
        for line in result.lines:
            say(f"{result.flow}: {line}")
        if not as_json:
            click.echo(_CREATED[result.creation].format(result.flow))
    if as_json:
        print_json(results[0] if file is None else results, indent=1)


async def _create(flow: Flow, admin: MirrorAdmin, *, replaces: bool) -> CreateFlowResult:
    return await admin.flows.create(flow, replaces=replaces)


def _flow_of_options(
    *,
    bootstrap_server: str | None,
    command_config: Path | None,
    source: str | None,
    target: str | None,
    source_bootstrap_server: str | None,
    source_config: Path | None,
    topics: str | None,
    groups: str | None,
    configs: tuple[str, ...],
) -> tuple[Mapping[str, str], Flow]:
    """The target's client properties, and the flow."""
    from twinlog.operations.mirror_maker import FlowRequest, check_flow  # noqa: PLC0415

    for name, value in (
        ("--bootstrap-server", bootstrap_server),
        ("--source", source),
        ("--target", target),
    ):
        if value is None:
            raise click.UsageError(f"{name} is missing; without it, --file is needed")
    assert bootstrap_server is not None
    assert source is not None
    assert target is not None
    client = read_properties(source_config) if source_config else {}
    if source_bootstrap_server is not None:
        client = destination_properties(source_bootstrap_server, source_config)
    settings = key_values("--config", configs)
    for name, text in (("topics", topics), ("groups", groups)):
        if text is not None and name in settings:
            raise click.UsageError(f"--{name} and --config {name}=... are both given")
        if text is not None:
            settings[name] = text
    checked = check_flow(
        FlowRequest(source_alias=source, target_alias=target, source=client, settings=settings)
    )
    for warning in checked.warnings:
        say(f"Warning: {warning}")
    return destination_properties(bootstrap_server, command_config), checked.flow


def _flows_of_file(
    file: Path, *, source: str | None, target: str | None, **others: Any
) -> list[tuple[Mapping[str, str], Flow]]:
    """The flows of a file that copy topics, each with its target's client properties."""
    from twinlog.interfaces.cli.mirror_maker_tables import require_valid  # noqa: PLC0415
    from twinlog.operations.mirror_maker import check_file  # noqa: PLC0415

    for name, value in others.items():
        if value:
            flag = "--config" if name == "configs" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} cannot be used with --file, which has it")
    checked = check_file(file)
    require_valid(checked.report)
    selection = [
        flow
        for flow in checked.flows
        if source in {None, flow.source_alias} and target in {None, flow.target_alias}
    ]
    copying = [flow for flow in selection if not flow.heartbeats_only]
    for flow in selection:
        if flow.heartbeats_only and flow.settings.emits_heartbeats:
            reverse = f"{flow.target_alias}->{flow.source_alias}"
            nodes = f", or nodes of {reverse} with {SOURCE_HEARTBEATS}=true"
            is_copied = any(other.name == reverse for other in copying)
            say(
                f"{flow.name} only writes heartbeats: twinlog mirror-maker does it"
                f"{nodes * is_copied}"
            )
    if not copying:
        raise UserError(
            f"{file} has no such flow that copies topics",
            hint="write SOURCE->TARGET.enabled = true, or select another flow",
        )
    return [(checked.clusters[flow.target_alias], flow) for flow in copying]


@flows.command("list")
@destination_options
@_JSON
def list_flows(*, bootstrap_server: str, command_config: Path | None, as_json: bool) -> None:
    """List all flows, with the states of their partitions and their lag."""
    properties = destination_properties(bootstrap_server, command_config)
    result = call(properties, lambda admin: admin.flows.list_flows())
    if as_json:
        print_json(result, indent=1)
    else:
        print_table(LIST_COLUMNS, map(_listed, result.flows))
    _say_incomplete(result)


@flows.command()
@destination_options
@click.option("--flow", type=MirrorName("FLOW"), help="Only this flow: A-to-B, or A->B.")
@_JSON
def describe(
    *, bootstrap_server: str, command_config: Path | None, flow: str | None, as_json: bool
) -> None:
    """Describe flows: their partitions with lag and state, their target topics, their settings."""
    properties = destination_properties(bootstrap_server, command_config)
    names = None if flow is None else [flow]
    result = call(properties, lambda admin: admin.flows.describe(names))
    if as_json:
        print_json(result, indent=1)
    else:
        for number, one in enumerate(result.flows):
            if number:
                click.echo()
            _print_flow(one)
        say_conditions([row for one in result.flows for row in one.partitions])
    _say_incomplete(result)


@flows.command()
@destination_options
@_FLOW
@_TOPIC
@_JSON
def pause(
    *, bootstrap_server: str, command_config: Path | None, flow: str, topic: str, as_json: bool
) -> None:
    """Stop copying a flow, or some of its topics.

    Without --topic, topics that the flow selects later are paused, too.
    """
    properties = destination_properties(bootstrap_server, command_config)
    result = call(properties, lambda admin: admin.flows.pause(flow, topic))
    _print_topics(result, "Paused", as_json, whole=topic == ALL_TOPICS)


@flows.command()
@destination_options
@_FLOW
@_TOPIC
@_JSON
def resume(
    *, bootstrap_server: str, command_config: Path | None, flow: str, topic: str, as_json: bool
) -> None:
    """Resume a flow, or some of its topics, from where they are."""
    properties = destination_properties(bootstrap_server, command_config)
    result = call(properties, lambda admin: admin.flows.resume(flow, topic))
    _print_topics(result, "Resumed", as_json, whole=topic == ALL_TOPICS)


@flows.command()
@destination_options
@_FLOW
@click.option(
    "--wait-seconds",
    type=click.FloatRange(0),
    default=DELETE_S,
    show_default=True,
    help="How long to wait until all partitions are STOPPED.",
)
@click.option(
    "--forget-offsets",
    is_flag=True,
    help="Delete the recorded map and positions, too: a flow that is created again begins anew.",
)
@_JSON
def delete(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    flow: str,
    wait_seconds: float,
    forget_offsets: bool,
    as_json: bool,
) -> None:
    """End a flow and delete it; its topics on the target stay, with their records."""
    properties = destination_properties(bootstrap_server, command_config)
    result = call(
        properties,
        lambda admin: admin.flows.delete(
            flow, forgets_offsets=forget_offsets, timeout_s=wait_seconds, tell=say
        ),
    )
    if as_json:
        print_json(result, indent=1)
    elif result.forgot_offsets:
        click.echo(f"Deleted flow {result.flow}, and what it had recorded")
    else:
        click.echo(f"Deleted flow {result.flow}")


@flows.command("import-positions")
@destination_options
@_FLOW
@click.option("--group", required=True, help="A consumer group; it may not have members.")
@click.option(
    "--on",
    type=click.Choice(["source", "target"]),
    required=True,
    help="The cluster on which the group has committed offsets of the source.",
)
@click.option("--dry-run", is_flag=True, help="Check all, and write nothing.")
@click.option(
    "--replace", is_flag=True, help="Replace positions that a former flow of this name has left."
)
@_JSON
def import_positions(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    flow: str,
    group: str,
    on: str,
    dry_run: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Have a flow begin where a group of another program has committed, before its first start.

    The group may be that of a sink connector (connect-NAME), or of any consumer.
    """
    properties = destination_properties(bootstrap_server, command_config)
    side = GroupSide(on)
    result = call(
        properties,
        lambda a: a.flows.import_positions(flow, group, side, replaces=replace, dry_run=dry_run),
    )
    if as_json:
        print_json(result, indent=1)
        return
    print_table(POSITION_COLUMNS, map(_imported, result.positions))
    done = "would begin" if dry_run else "begins"
    click.echo(f"Flow {result.flow} {done} at {len(result.positions)} position(s) of group {group}")


@flows.command()
@destination_options
@_FLOW
@click.option("--topic", help="A topic of the source; with --to-source, of the target.")
@click.option("--partition", type=click.IntRange(0), help="A partition of it.")
@click.option(
    "--offset",
    "offsets",
    type=click.IntRange(0),
    multiple=True,
    help="An offset of it; may be repeated.",
)
@click.option("--group", help="All offsets that this consumer group has committed.")
@click.option(
    "--from-checkpoints",
    is_flag=True,
    help="With --group: do not ask the source, but the flow's checkpoints on the target.",
)
@click.option(
    "--timestamp",
    type=Timestamp(),
    help="The first record with this timestamp or a later one: milliseconds since 1970, or "
    "2026-11-26T14:30:00Z.",
)
@click.option(
    "--to-source",
    is_flag=True,
    help="Topic, offsets, group and timestamp are the target's; find those of the source.",
)
@_JSON
def translate(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    flow: str,
    topic: str | None,
    partition: int | None,
    offsets: tuple[int, ...],
    group: str | None,
    from_checkpoints: bool,
    timestamp: int | None,
    to_source: bool,
    as_json: bool,
) -> None:
    """Translate offsets of a flow exactly, from the source to the target or back.

    By --topic, --partition and --offset; or by --group; or by --timestamp, of all partitions of the
    flow or of those of --topic and --partition.

    If the source is dead, --from-checkpoints finds the offsets of a group in its checkpoints.

    Exit status 3: one of the offsets is unknown, or not certain; its line says why.
    """
    _check_question(topic, partition, offsets, group, timestamp)
    if from_checkpoints and (group is None or to_source):
        raise click.UsageError("--from-checkpoints needs --group, without --to-source")
    direction = Direction.TO_SOURCE if to_source else Direction.TO_TARGET
    properties = destination_properties(bootstrap_server, command_config)
    if group is not None:
        found = call(
            properties,
            lambda a: a.flows.translate_group(
                flow, group, direction, from_checkpoints=from_checkpoints
            ),
        )
    elif timestamp is not None:
        found = call(
            properties,
            lambda a: a.flows.translate_timestamp(flow, timestamp, topic, partition, direction),
        )
    else:
        assert topic is not None
        assert partition is not None
        found = call(
            properties,
            lambda a: a.flows.translate_offsets(flow, topic, partition, offsets, direction),
        )
    print_translated(found, as_json=as_json)
    if not found.all_known:
        sys.exit(NOT_ALL_KNOWN)


def _check_question(
    topic: str | None,
    partition: int | None,
    offsets: tuple[int, ...],
    group: str | None,
    timestamp: int | None,
) -> None:
    """Refuse flags that do not go together.

    Raises:
        click.UsageError: a flag is missing or surplus.
    """
    kinds = [bool(offsets), group is not None, timestamp is not None]
    if sum(kinds) != 1:
        raise click.UsageError("expected exactly one of --offset, --group and --timestamp")
    if offsets and (topic is None or partition is None):
        raise click.UsageError("--offset needs --topic and --partition")
    if group is not None and (topic is not None or partition is not None):
        raise click.UsageError(
            "--group translates all its offsets: without --topic and --partition"
        )
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")


def _listed(flow: FlowDescription) -> tuple[object, ...]:
    counted = [f"{count} {name}" for name, count in flow.states.items()]
    states = ", ".join([*counted, "paused"] if flow.paused else counted) or "-"
    counts = (len(flow.mirror.topics), len(flow.partitions))
    return (flow.flow, *counts, states, flow.lag, flow.mirror.source_bootstrap)


def _print_flow(flow: FlowDescription) -> None:
    mirror = flow.mirror
    click.echo(
        printable(
            f"Flow {flow.flow}: from {flow.source or 'unknown'} (cluster "
            f"{mirror.source_cluster_id}, {mirror.source_bootstrap}) to {flow.target or 'unknown'}"
            f"{', paused' if flow.paused else ''}"
        )
    )
    print_table(DESCRIBE_COLUMNS, map(_described, flow.partitions))
    if flow.changed:
        click.echo()
        print_table(("SETTING", "VALUE"), ((name, flow.settings[name]) for name in flow.changed))


def _described(row: DescribedPartition) -> tuple[object, ...]:
    _, topic, partition = row
    return (
        topic.topic,
        partition.partition,
        topic.destination_topic,
        partition.source_offset,
        partition.mirrored_offset,
        partition.destination_offset,
        partition.lag,
        partition.state.name,
    )


def _print_topics(result: ChangedTopics, done: str, as_json: bool, *, whole: bool) -> None:
    if as_json:
        print_json(result, indent=1)
        return
    names = printable(", ".join(result))
    if not whole:
        click.echo(f"{done} {len(result)} topic(s) of flow {result.mirror}: [{names}]")
    elif result:
        click.echo(f"{done} flow {result.mirror}, with {len(result)} topic(s): [{names}]")
    else:
        click.echo(f"{done} flow {result.mirror}, with no topic")


def _imported(one: ImportedPosition) -> tuple[object, ...]:
    former = {None: "-", -1: "lost"}.get(one.former, one.former)
    return one.source, one.position, one.target, former, one.lost


def _say_incomplete(result: ListFlowsResult | DescribeFlowsResult) -> None:
    say_incomplete((flow.mirror.not_mirrored for flow in result.flows), result.unreadable)
