"""`kafka-mirrors`, and `twinlog mirrors`: KIP-1279's command, flag for flag.

The tables are the KIP's, on standard output; everything else (warnings, reasons of FAILED
partitions, stale statuses) goes to standard error, so that scripts get the tables that they expect.
`--json` prints the same and more for programs. Each call has one action:

    action       needs                        may have
    -----------  ---------------------------  --------------------
    --create     --mirror, --mirror-config    --replication-factor
    --add        --mirror, --topic            --replication-factor, --rebuild, --save-tail
    --pause      --mirror, --topic
    --resume     --mirror, --topic
    --remove     --mirror, --topic            --wait-seconds
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
from twinlog.interfaces.cli.options import destination_properties
from twinlog.interfaces.cli.tables import print_table
from twinlog.kafka.client.configuration import read_properties
from twinlog.kafka.client.references import EVERYTHING
from twinlog.kafka.errors import Retriable, UserError
from twinlog.lifecycle import creation as mirrors
from twinlog.lifecycle.rebuild import Interrupted, Rebuild
from twinlog.mirror.absence import Absence
from twinlog.mirror.states import State
from twinlog.operations.describe import (
    NEEDS_OWNER,
    MirrorDescription,
    PartitionDescription,
    TopicDescription,
)
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.store.config_records import NotMirrored, topic_id_text
from twinlog.store.statuses import FRESH_S
from twinlog.text import few, printable

WAIT_SECONDS: Final = 60.0
"""How long --remove waits until its partitions are STOPPED: a takeover adds a lease."""
TELL_SECONDS: Final = 3.0
"""The interval at which --remove reports what it waits for."""
LOOK_SECONDS: Final = 0.5

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
    "remove": _Action(("mirror", "topic"), ("wait_seconds",)),
    "alter": _Action(("mirror", "mirror_config"), ()),
    "delete": _Action(("mirror",), ()),
    "list": _Action((), ()),
    "describe": _Action((), ("mirror",)),
}
OF_ACTIONS: Final = (
    "mirror", "mirror_config", "topic", "replication_factor", "rebuild", "save_tail",
    "wait_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of the action."""

    mirror: str = ""
    mirror_config: Path | None = None
    topic: str = ""
    replication_factor: int | None = None
    rebuild: bool = False
    save_tail: Path | None = None
    wait_seconds: float = WAIT_SECONDS
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
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
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
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
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
    help="With --add: delete topics of the destination that were failed over, or removed from a "
    "mirror, and hold records that the source does not have, and mirror them anew.",
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
@click.option(
    "--wait-seconds",
    metavar="<Float: seconds>",
    type=click.FloatRange(0),
    help="With --remove: how long to wait until the partitions are STOPPED; it is an error if they "
    f"are not by then, and the removal goes on. {WAIT_SECONDS:g} by default, 0 does not wait.",
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
    """Parse the options, run the action, and print each error as one line."""
    action, arguments = _parse(options, as_json=as_json)
    try:
        asyncio.run(_run(action, _admin(bootstrap_server, command_config), arguments))
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Interrupted as error:
        _say(f"Error: {error}")
        context.exit(error.exit_status)
    except Exception as error:
        if debug or context.find_root().params.get("debug"):
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise click.ClickException(printable(lines[0])) from error


def _parse(options: Mapping[str, Any], *, as_json: bool) -> tuple[str, Arguments]:
    """Return the action and its arguments.

    Raises:
        click.UsageError: none or several actions, or a missing or surplus argument.
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


def _admin(bootstrap_server: str, command_config: Path | None) -> MirrorAdmin:
    """The administration client for the destination's mirrors.

    Raises:
        UserError: a setting is malformed.
    """
    properties = destination_properties(bootstrap_server, command_config)
    admin = MirrorAdmin({"client.id": "kafka-mirrors", **properties})
    for warning in admin.warnings:
        _say(f"{command_config}: {warning}")
    return admin


async def _run(action: str, admin: MirrorAdmin, arguments: Arguments) -> None:
    if action == "create":
        # What can be checked without a cluster is checked before any request.
        mirrors.check_name(arguments.mirror)
        warnings = _warnings(arguments)
        for warning in warnings:
            _say(f"{arguments.mirror_config}: {warning}")
    async with admin:
        await _ACTIONS[action](admin, arguments)


def _warnings(arguments: Arguments) -> Sequence[str]:
    """The unused settings in the file of --mirror-config; an error names the file."""
    try:
        return mirrors.check_properties(_configs(arguments), EVERYTHING)[1]
    except UserError as error:
        error.message = f"{arguments.mirror_config}: {error.message}"
        raise


def _configs(arguments: Arguments) -> dict[str, str]:
    assert arguments.mirror_config is not None
    return read_properties(arguments.mirror_config)


async def _create(admin: MirrorAdmin, arguments: Arguments) -> None:
    created = await admin.create_mirror(
        arguments.mirror, _configs(arguments), replication_factor=arguments.replication_factor
    )
    if arguments.as_json:
        _print_json({"created": created.mirror, "cluster_id": created.source_cluster_id})
    else:
        click.echo(f"Created mirror {created.mirror}")


async def _add(admin: MirrorAdmin, arguments: Arguments) -> None:
    names = await admin.add_topics_to_mirror(
        arguments.mirror,
        arguments.topic,
        replication_factor=arguments.replication_factor,
        rebuild=Rebuild(arguments.save_tail, _say) if arguments.rebuild else None,
    )
    if arguments.as_json:
        _print_json({"mirror": arguments.mirror, "added": names})
    else:
        listed = printable(", ".join(names))
        click.echo(f"Added {len(names)} topic(s) to mirror {arguments.mirror}: [{listed}]")


async def _pause(admin: MirrorAdmin, arguments: Arguments) -> None:
    names = await admin.pause_mirror_topics(arguments.mirror, arguments.topic)
    _changed(arguments, names, "paused", f"Paused mirroring for {len(names)} topic(s) in mirror")


async def _resume(admin: MirrorAdmin, arguments: Arguments) -> None:
    names = await admin.resume_mirror_topics(arguments.mirror, arguments.topic)
    _changed(arguments, names, "resumed", f"Resumed mirroring for {len(names)} topic(s) in mirror")


async def _remove(admin: MirrorAdmin, arguments: Arguments) -> None:
    names = await admin.remove_topics_from_mirror(arguments.mirror, arguments.topic)
    if arguments.wait_seconds:
        await _await_stopped(admin, arguments, frozenset(names))
    _changed(arguments, names, "removed", f"Removed {len(names)} topic(s) from mirror")
    if arguments.wait_seconds:
        await _say_reasons(admin, arguments.mirror, frozenset(names))


async def _say_reasons(admin: MirrorAdmin, mirror: str, names: frozenset[str]) -> None:
    """Print the reasons stored with STOPPED: foreign records, or that nothing was fenced."""
    for described in (await admin.describe_mirrors([mirror])).mirrors:
        for topic in described.topics:
            for one in topic.partitions:
                if topic.topic in names and one.state is State.STOPPED and one.reason:
                    _say(f"{topic.topic}-{one.partition} is STOPPED: {one.reason}")


async def _await_stopped(admin: MirrorAdmin, arguments: Arguments, names: frozenset[str]) -> None:
    """Wait until all partitions of these topics are STOPPED, and report those that are not.

    Raises:
        Retriable: not in time, or the states cannot be read. The removal is stored all the same.
    """
    deadline = time.monotonic() + arguments.wait_seconds
    told = time.monotonic()
    while True:
        waiting = await _not_stopped(admin, arguments.mirror, names)
        if not waiting:
            return
        if time.monotonic() >= deadline:
            raise Retriable(
                f"not STOPPED within {arguments.wait_seconds:g} s: {waiting}",
                hint="the removal is stored and goes on; --describe shows the states",
            )
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            _say(f"waiting until STOPPED (the removal is stored): {waiting}")
        await asyncio.sleep(LOOK_SECONDS)


async def _not_stopped(admin: MirrorAdmin, mirror: str, names: frozenset[str]) -> str:
    """The partitions that are not STOPPED yet, with state and reason; empty if there are none."""
    try:
        found = (await admin.describe_mirrors([mirror])).mirrors
    except Retriable as error:
        return str(error)
    left = [
        f"{topic.topic}-{one.partition} is {one.state.name}"
        + (f" ({one.reason})" * bool(one.reason))
        for described in found
        for topic in described.topics
        for one in topic.partitions
        if topic.topic in names and one.state is not State.STOPPED
    ]
    return f"{len(left)} partition(s): {few(left, '; ')}" if left else ""


def _changed(arguments: Arguments, names: Sequence[str], what: str, sentence: str) -> None:
    if arguments.as_json:
        _print_json({"mirror": arguments.mirror, what: names})
    else:
        click.echo(f"{sentence} {arguments.mirror}: [{printable(', '.join(names))}]")


async def _alter(admin: MirrorAdmin, arguments: Arguments) -> None:
    configs = _configs(arguments)
    await admin.alter_mirror(arguments.mirror, configs)
    if arguments.as_json:
        _print_json({"altered": arguments.mirror, "set": sorted(configs)})
    else:
        click.echo(f"Completed updating config for mirror {arguments.mirror}.")


async def _delete(admin: MirrorAdmin, arguments: Arguments) -> None:
    result = await admin.delete_mirror(arguments.mirror)
    if arguments.as_json:
        _print_json({"deleted": result.mirror, "copied_acls": list(result.copied_acls)})
        return
    click.echo(f"Deleted mirror {result.mirror}")
    if result.copied_acls:
        _say(
            f"{len(result.copied_acls)} ACL(s) that were copied from the source stay, and follow "
            "it no more; kafka-acls --remove takes away those that are not to stay:"
        )
        for acl in result.copied_acls:
            _say(acl)


async def _list(admin: MirrorAdmin, arguments: Arguments) -> None:
    result = await admin.list_mirrors()
    rows = [
        (one.mirror, one.topics, one.source_cluster_id, one.source_bootstrap)
        for one in result.mirrors
    ]
    if arguments.as_json:
        names = ("mirror", "topics", "cluster_id", "bootstrap_servers")
        _print_json(
            [
                {
                    **dict(zip(names, row, strict=True)),
                    "config": one.config,
                    "not_mirrored": dict(one.not_mirrored.topics),
                }
                for row, one in zip(rows, result.mirrors, strict=True)
            ]
        )
    else:
        print_table(LIST_COLUMNS, rows)
    _warn_not_mirrored(one.not_mirrored for one in result.mirrors)
    _warn_unreadable(result.unreadable)


class _Row(NamedTuple):
    """A partition as `--describe` shows it."""

    mirror: MirrorDescription
    topic: TopicDescription
    one: PartitionDescription

    def columns(self) -> tuple[object, ...]:
        """The KIP's columns."""
        one = self.one
        offsets = (one.source_offset, one.destination_offset, one.lag)
        return (self.mirror.mirror, self.topic.topic, one.partition, *offsets, one.state.name)

    def as_json(self) -> dict[str, object]:
        """All known fields."""
        one = self.one
        return {
            "mirror": self.mirror.mirror,
            "topic": self.topic.topic,
            "partition": one.partition,
            "source_offset": one.source_offset,
            "source_last_stable_offset": one.source_last_stable_offset,
            "destination_offset": one.destination_offset,
            "lag": one.lag,
            "lag_ms": one.lag_ms,
            "state": one.state.name,
            "reason": one.reason,
            "wanted": self.topic.wanted.value,
            "last_mirrored_epoch": one.last_mirrored_epoch,
            "last_mirrored_end": one.last_mirrored_end,
            "source_topic_id": topic_id_text(self.topic.source_topic_id),
            "records": one.records,
            "bytes": one.bytes,
            "filled_offsets": {
                reason.name.lower(): count
                for reason, count in zip(Absence, one.filled, strict=True)
            },
            "lane": one.lane,
            "node": one.node,
            "status_time_ms": one.status_time_ms,
            "fresh": one.fresh,
            "source_time_ms": one.source_time_ms,
        }


async def _describe(admin: MirrorAdmin, arguments: Arguments) -> None:
    result = await admin.describe_mirrors([arguments.mirror] if arguments.mirror else None)
    rows = [
        _Row(mirror, topic, one)
        for mirror in result.mirrors
        for topic in mirror.topics
        for one in topic.partitions
    ]
    if arguments.as_json:
        _print_json([row.as_json() for row in rows])
    else:
        print_table(DESCRIBE_COLUMNS, [row.columns() for row in rows])
        for mirror, topic, one in rows:
            if one.reason is not None and (one.fresh or one.state not in NEEDS_OWNER):
                name = f"{mirror.mirror}/{topic.topic}-{one.partition}"
                _say(f"{name} is {one.state.name}: {one.reason}")
        _warn_old(rows)
        _warn_silent(rows)
    _warn_not_mirrored(one.not_mirrored for one in result.mirrors)
    _warn_unreadable(result.unreadable)


_ACTIONS: Final = {
    "create": _create,
    "add": _add,
    "pause": _pause,
    "resume": _resume,
    "remove": _remove,
    "alter": _alter,
    "delete": _delete,
    "list": _list,
    "describe": _describe,
}


def _warn_old(rows: Sequence[_Row]) -> None:
    """Warn of partitions that need an owner and have no fresh status: their offsets are stale."""
    silent = [row for row in rows if row.one.state in NEEDS_OWNER and not row.one.fresh]
    if silent:
        mirror, topic, one = silent[0]
        _say(
            f"{len(silent)} of {len(rows)} partitions have no status of the last {FRESH_S:g} s: "
            f"is a node running? (twinlog run) For example "
            f"{mirror.mirror}/{topic.topic}-{one.partition}: {one.reason}"
        )


def _warn_not_mirrored(mirrors: Iterable[NotMirrored]) -> None:
    for one in mirrors:
        for topic, reason in one.topics:
            _say(f"{one.mirror}: source topic {topic} is not mirrored: {reason}")
        if one.total > len(one.topics):
            _say(f"{one.mirror}: {one.total} source topics are not mirrored")


def _warn_silent(rows: Iterable[_Row]) -> None:
    """Warn of sources that have not answered: the shown offsets of their partitions are stale."""
    heard: dict[str, list[int]] = {}
    for mirror, _, one in rows:
        if one.source_time_ms is not None and one.status_time_ms is not None:
            silent_ms = one.status_time_ms - one.source_time_ms
            if one.state is State.MIRRORING and silent_ms > FRESH_S * 1000:
                heard.setdefault(mirror.mirror, []).append(one.source_time_ms)
    for name, times in heard.items():
        since = time.time() - min(times) / 1000
        _say(
            f"{name}: the source has not answered for {since:.0f} s for {len(times)} partition(s); "
            f"SOURCE-OFFSET and LAG are of then (twinlog readiness)"
        )


def _warn_unreadable(troubles: Iterable[str]) -> None:
    for trouble in troubles:
        _say(f"cannot be read: {trouble}")


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=1))


def _say(message: str) -> None:
    click.echo(printable(message), err=True)
