"""`kafka-mirrors`, and `twinlog mirrors`: KIP-1279's command, flag for flag.

The tables are the KIP's, on standard output; everything else (warnings, why a partition is FAILED,
that a status is old) goes to standard error, so that the tables stay what scripts expect. `--json`
gives the same and more for programs. One action for each call:

    action       needs                        may have
    -----------  ---------------------------  --------------------
    --create     --mirror, --mirror-config    --replication-factor
    --add        --mirror, --topic            --replication-factor, --rebuild, --save-tail
    --pause      --mirror, --topic
    --resume     --mirror, --topic
    --remove     --mirror, --topic
    --alter      --mirror, --mirror-config
    --delete     --mirror
    --list
    --describe                                --mirror
"""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

import twinlog
from twinlog.cli.options import destination_properties, take_control_topics
from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.config import ClusterConfig, parse_config, read_properties
from twinlog.cluster.mirrorlog import ControlTopics, States
from twinlog.control import lifecycle, mirrors
from twinlog.control.failback import Rebuild
from twinlog.control.store import MirrorStore, unknown_mirror
from twinlog.core.placement import MirrorPartition
from twinlog.core.states import State
from twinlog.wire.config_records import MirrorTopic, topic_id_text
from twinlog.wire.snapshot import Snapshot
from twinlog.wire.state_records import LastMirrored, PartitionState
from twinlog.wire.status_records import PartitionStatus, Status

OLD_STATUS: Final = 15.0
"""Seconds after which a status is called old: lanes write one each second."""

LIST_COLUMNS: Final = ("MIRROR", "TOPICS", "CLUSTER-ID", "BOOTSTRAP-SERVER")
DESCRIBE_COLUMNS: Final = (
    "MIRROR",
    "TOPIC",
    "PARTITION",
    "SOURCE-OFFSET",
    "DESTINATION-OFFSET",
    "LAG",
    "STATE",
)


class _Action(NamedTuple):
    needs: tuple[str, ...]
    may_have: tuple[str, ...]


ACTIONS: Final[Mapping[str, _Action]] = {
    "create": _Action(("mirror", "mirror_config"), ("replication_factor",)),
    "add": _Action(("mirror", "topic"), ("replication_factor", "rebuild", "save_tail")),
    "pause": _Action(("mirror", "topic"), ()),
    "resume": _Action(("mirror", "topic"), ()),
    "remove": _Action(("mirror", "topic"), ()),
    "alter": _Action(("mirror", "mirror_config"), ()),
    "delete": _Action(("mirror",), ()),
    "list": _Action((), ()),
    "describe": _Action((), ("mirror",)),
}
OF_ACTIONS: Final = (
    "mirror", "mirror_config", "topic", "replication_factor", "rebuild", "save_tail",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command line says."""

    mirror: str = ""
    mirror_config: Path | None = None
    topic: str = ""
    replication_factor: int | None = None
    rebuild: bool = False
    save_tail: Path | None = None
    as_json: bool = False


@click.command(
    help="This tool helps to create cluster mirrors and add topics to them.",
    context_settings={"max_content_width": 100},
)
@click.option(
    "--add", is_flag=True, help="Add topic(s) to an existing cluster mirror (supports regex)."
)
@click.option(
    "--alter", is_flag=True, help="Alter the configuration of an existing cluster mirror."
)
@click.option(
    "--bootstrap-server",
    metavar="<String: server to connect to>",
    required=True,
    help="REQUIRED: The destination Kafka server to connect to.",
)
@click.option(
    "--command-config",
    metavar="<String: command config property file>",
    type=click.Path(path_type=Path),
    help="Property file containing configs to be passed to Admin Client.",
)
@click.option("--create", is_flag=True, help="Create a new cluster mirror from a source cluster.")
@click.option(
    "--delete",
    is_flag=True,
    help="Delete a cluster mirror that is empty or has only stopped partitions.",
)
@click.option(
    "--describe", is_flag=True, help="Describe a cluster mirror including partition lag and state."
)
@click.option("--list", "list_", is_flag=True, help="List all cluster mirrors.")
@click.option("--mirror", metavar="<String: mirror>", help="The name of the cluster mirror.")
@click.option(
    "--mirror-config",
    metavar="<String: mirror config property file>",
    type=click.Path(path_type=Path),
    help="Property file containing source cluster configs for mirroring.",
)
@click.option(
    "--pause",
    is_flag=True,
    help="Pause mirroring for topic(s) matching the pattern (supports regex).",
)
@click.option(
    "--rebuild",
    is_flag=True,
    default=None,
    help="With --add: delete topics of the destination that were failed over and hold records that "
    "the source does not have, and mirror them anew.",
)
@click.option(
    "--remove",
    is_flag=True,
    help="Remove topic(s) from an existing cluster mirror (supports regex).",
)
@click.option(
    "--replication-factor",
    metavar="<Short: replication-factor>",
    type=click.IntRange(1, (1 << 15) - 1),
    help="The replication factor to use for the mirror topic. If not specified, uses the "
    "destination cluster's default.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Resume mirroring for previously paused topic(s) matching the pattern (supports regex).",
)
@click.option(
    "--save-tail",
    metavar="<String: directory>",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --rebuild: write the records that only the destination has there first, as "
    "TOPIC-PARTITION/OFFSET.log, for kafka-dump-log.",
)
@click.option(
    "--topic",
    metavar="<String: topic>",
    help="Topic name or regex pattern to match topics (e.g., 'my-topic' or 'test-.*').",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(
    twinlog.__version__, message="%(version)s (twinlog)", help="Display twinlog's version."
)
@click.help_option("--help", help="Print usage information.")
@click.pass_context
def mirrors_command(
    context: click.Context,
    /,
    *,
    bootstrap_server: str,
    command_config: Path | None,
    debug: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Parse, run, and end every error as one line."""
    action, arguments = _parse(options, as_json=as_json)
    try:
        config, topics = _destination(bootstrap_server, command_config)
        asyncio.run(_run(action, config, topics, arguments))
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if debug or context.find_root().params.get("debug"):
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise click.ClickException(lines[0]) from error


def main() -> None:
    """The console script `kafka-mirrors`."""
    mirrors_command(prog_name="kafka-mirrors")


def _parse(options: Mapping[str, Any], *, as_json: bool) -> tuple[str, Arguments]:
    """The one action, and its arguments.

    Raises:
        click.UsageError: none or several actions, an argument that is missing or does not belong.
    """
    chosen = [name for name in ACTIONS if options["list_" if name == "list" else name]]
    if len(chosen) != 1:
        flags = ", ".join(f"--{name}" for name in ACTIONS)
        raise click.UsageError(f"Command must include exactly one action: {flags}")
    action = ACTIONS[chosen[0]]
    given = {name: options[name] for name in OF_ACTIONS if options[name] is not None}
    for name in action.needs:
        if name not in given:
            raise click.UsageError(f"--{chosen[0]} needs {_flag(name)}")
    for name in given:
        if name not in action.needs + action.may_have:
            raise click.UsageError(f"{_flag(name)} does not go with --{chosen[0]}")
    if "save_tail" in given and not given.get("rebuild"):
        raise click.UsageError("--save-tail goes with --rebuild")
    return chosen[0], Arguments(as_json=as_json, **given)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _destination(
    bootstrap_server: str, command_config: Path | None
) -> tuple[ClusterConfig, ControlTopics]:
    """How to reach the destination, and how its control topics are to be made.

    Raises:
        UserError: a setting is malformed.
    """
    properties = destination_properties(bootstrap_server, command_config)
    topics = take_control_topics(properties)
    properties.setdefault("client.id", "kafka-mirrors")
    parsed = parse_config(properties)
    for warning in parsed.warnings:
        _say(f"{command_config}: {warning}")
    return parsed.config, topics


async def _run(
    action: str, config: ClusterConfig, topics: ControlTopics, arguments: Arguments
) -> None:
    if action == "create":
        await _create(config, topics, arguments)
        return
    async with mirrors.connected(config, "destination") as destination:
        await _ACTIONS[action](destination, arguments)


async def _create(config: ClusterConfig, topics: ControlTopics, arguments: Arguments) -> None:
    assert arguments.mirror_config is not None
    properties = read_properties(arguments.mirror_config)
    # What can be wrong without any cluster is said before one is asked.
    mirrors.check_name(arguments.mirror)
    _, warnings = mirrors.check_properties(properties)
    for warning in warnings:
        _say(f"{arguments.mirror_config}: {warning}")
    async with mirrors.connected(config, "destination") as destination:
        mirror = await mirrors.create_mirror(
            destination,
            arguments.mirror,
            properties,
            replication_factor=arguments.replication_factor,
            topics=topics,
        )
    if arguments.as_json:
        _print_json({"created": mirror.name, "cluster_id": mirror.source_cluster_id})
    else:
        click.echo(f"Created mirror {mirror.name}")


async def _add(destination: KafkaCluster, arguments: Arguments) -> None:
    names = await mirrors.add_topics(
        destination,
        arguments.mirror,
        arguments.topic,
        replication_factor=arguments.replication_factor,
        rebuild=Rebuild(arguments.save_tail) if arguments.rebuild else None,
    )
    if arguments.as_json:
        _print_json({"mirror": arguments.mirror, "added": names})
    else:
        listed = ", ".join(names)
        click.echo(f"Added {len(names)} topic(s) to mirror {arguments.mirror}: [{listed}]")


async def _pause(destination: KafkaCluster, arguments: Arguments) -> None:
    names = await lifecycle.pause_topics(destination, arguments.mirror, arguments.topic)
    _changed(arguments, names, "paused", f"Paused mirroring for {len(names)} topic(s) in mirror")


async def _resume(destination: KafkaCluster, arguments: Arguments) -> None:
    names = await lifecycle.resume_topics(destination, arguments.mirror, arguments.topic)
    _changed(arguments, names, "resumed", f"Resumed mirroring for {len(names)} topic(s) in mirror")


async def _remove(destination: KafkaCluster, arguments: Arguments) -> None:
    names = await lifecycle.remove_topics(destination, arguments.mirror, arguments.topic)
    _changed(arguments, names, "removed", f"Removed {len(names)} topic(s) from mirror")


def _changed(arguments: Arguments, names: Sequence[str], what: str, sentence: str) -> None:
    if arguments.as_json:
        _print_json({"mirror": arguments.mirror, what: names})
    else:
        click.echo(f"{sentence} {arguments.mirror}: [{', '.join(names)}]")


async def _alter(destination: KafkaCluster, arguments: Arguments) -> None:
    assert arguments.mirror_config is not None
    properties = read_properties(arguments.mirror_config)
    mirror = await lifecycle.alter_mirror(destination, arguments.mirror, properties)
    if arguments.as_json:
        _print_json({"altered": mirror.name, "set": sorted(properties)})
    else:
        click.echo(f"Completed updating config for mirror {mirror.name}.")


async def _delete(destination: KafkaCluster, arguments: Arguments) -> None:
    await lifecycle.delete_mirror(destination, arguments.mirror)
    if arguments.as_json:
        _print_json({"deleted": arguments.mirror})
    else:
        click.echo(f"Deleted mirror {arguments.mirror}")


async def _list(destination: KafkaCluster, arguments: Arguments) -> None:
    snapshot = await MirrorStore(destination).snapshot()
    rows = [
        (
            mirror.name,
            sum(topic.mirror == mirror.name for topic in snapshot.topics),
            mirror.source_cluster_id,
            mirror.source.get("bootstrap.servers", ""),
        )
        for mirror in snapshot.mirrors.values()
    ]
    if arguments.as_json:
        names = ("mirror", "topics", "cluster_id", "bootstrap_servers")
        _print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        _print_table(LIST_COLUMNS, rows)
    _warn_unreadable(snapshot.unreadable.values())


class Described(NamedTuple):
    """A mirror partition as `--describe` shows it. `written` is None where it has no status."""

    topic: MirrorTopic
    row: PartitionStatus
    written: Status | None
    mirrored: LastMirrored | None

    def columns(self) -> tuple[object, ...]:
        """The KIP's columns."""
        row = self.row
        offsets = (row.source_end, row.destination_end, row.lag)
        return (*row.partition, *offsets, row.state.name)

    def as_json(self) -> dict[str, object]:
        """All that is known."""
        row, written = self.row, self.written
        return {
            "mirror": row.partition.mirror,
            "topic": row.partition.topic,
            "partition": row.partition.partition,
            "source_offset": row.source_end,
            "source_last_stable_offset": row.source_last_stable,
            "destination_offset": row.destination_end,
            "lag": row.lag,
            "lag_ms": row.lag_ms,
            "state": row.state.name,
            "reason": row.reason,
            "wanted": self.topic.wanted.value,
            "last_mirrored_epoch": None if self.mirrored is None else self.mirrored.epoch,
            "last_mirrored_end": None if self.mirrored is None else self.mirrored.end,
            "source_topic_id": topic_id_text(self.topic.topic_id),
            "records": row.records,
            "bytes": row.bytes,
            "lane": None if written is None else written.lane,
            "node": None if written is None else written.node,
            "status_time_ms": None if written is None else written.time_ms,
        }


def described(
    snapshot: Snapshot,
    states: States,
    statuses: Iterable[Status],
    mirror: str = "",
) -> list[Described]:
    """Every partition of every topic of one mirror, or of all, in order.

    State and last mirrored epoch are as the owner has written them into `__mirror_state`; offsets
    are those of its last status, -1 where there is none.
    """
    rows: dict[MirrorPartition, tuple[PartitionStatus, Status]] = {}
    for status in sorted(statuses, key=lambda one: one.time_ms):
        rows.update((row.partition, (row, status)) for row in status.partitions)
    result = []
    for topic in snapshot.topics:
        if mirror not in {"", topic.mirror}:
            continue
        for index in range(topic.partitions):
            partition = MirrorPartition(topic.mirror, topic.topic, index)
            row, written = rows.get(partition, (None, None))
            row = _row(partition, row, states.states.get(partition))
            result.append(Described(topic, row, written, states.epochs.get(partition)))
    return result


def _row(
    partition: MirrorPartition, row: PartitionStatus | None, state: PartitionState | None
) -> PartitionStatus:
    if row is None:
        row = PartitionStatus(partition=partition, state=State.UNKNOWN)
    if state is None:
        return row
    reason = None
    if state.state is State.FAILED:
        reason = state.reason or row.reason
    return PartitionStatus(
        partition=partition,
        state=state.state,
        source_end=row.source_end,
        source_last_stable=row.source_last_stable,
        destination_end=row.destination_end,
        records=row.records,
        bytes=row.bytes,
        reason=reason,
        lag_ms=row.lag_ms,
    )


async def _describe(destination: KafkaCluster, arguments: Arguments) -> None:
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    if arguments.mirror and arguments.mirror not in snapshot.mirrors:
        raise unknown_mirror(arguments.mirror, snapshot)
    states = await store.states()
    statuses, unreadable = await store.statuses()
    rows = described(snapshot, states, statuses.values(), arguments.mirror)
    if arguments.as_json:
        _print_json([row.as_json() for row in rows])
    else:
        _print_table(DESCRIBE_COLUMNS, [row.columns() for row in rows])
        for row in rows:
            if row.row.reason is not None:
                _say(f"{row.row.partition} is {row.row.state.name}: {row.row.reason}")
        _warn_old(rows)
    _warn_unreadable([*snapshot.unreadable.values(), *states.unreadable, *unreadable])


_ACTIONS: Final = {
    "add": _add,
    "pause": _pause,
    "resume": _resume,
    "remove": _remove,
    "alter": _alter,
    "delete": _delete,
    "list": _list,
    "describe": _describe,
}
"""What is done on a destination that is connected; `create` connects by itself."""


def _warn_old(rows: Sequence[Described]) -> None:
    """Nobody writes statuses: the offsets are those of the past, or not known at all."""
    active = [row for row in rows if row.row.state not in {State.STOPPED, State.PAUSED}]
    old = time.time() - OLD_STATUS
    silent = [row for row in active if row.written is None or row.written.time_ms / 1000 < old]
    if silent:
        _say(
            f"{len(silent)} of {len(rows)} partitions have no status of the last "
            f"{OLD_STATUS:g} s: is a node running? (twinlog run)"
        )


def _warn_unreadable(troubles: Iterable[str]) -> None:
    for trouble in troubles:
        _say(f"cannot be read: {trouble}")


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = [tuple(columns), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=1))


def _say(message: str) -> None:
    click.echo(message, err=True)
