"""`twinlog cluster`: real Kafka clusters on this machine, for tests and trials."""

import json
import re
from collections.abc import Mapping

import click

from twinlog.kafka.client.configuration import PROTOCOLS
from twinlog.local import named
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.errors import LocalError
from twinlog.local.layout import OWN_LISTENERS, PLACES


@click.group()
def cluster() -> None:
    """Run real Kafka clusters on this machine.

    They live on after the command that started them, until they are taken down.
    """


def _parse_config(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    config = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r}: expected KEY=VALUE", context, parameter)
        if key in PLACES:
            raise click.BadParameter(
                f"{key} cannot be set: it places a broker in its cluster", context, parameter
            )
        config[key] = setting
    return config


def _parse_listeners(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    listeners = {}
    for value in values:
        name, _, protocol = value.partition("=")
        if re.fullmatch("[A-Z][A-Z0-9_]*", name) is None or protocol not in PROTOCOLS:
            raise click.BadParameter(
                f"{value!r}: expected NAME=PROTOCOL, NAME in capitals, PROTOCOL one of "
                f"{', '.join(PROTOCOLS)}",
                context,
                parameter,
            )
        if name in OWN_LISTENERS:
            raise click.BadParameter(f"listener {name} already exists", context, parameter)
        listeners[name] = protocol
    return listeners


def _check_keystores(listeners: Mapping[str, str], config: Mapping[str, str]) -> None:
    """Require a certificate for TLS listeners: without one, the broker starts but serves none."""
    for name, protocol in listeners.items():
        prefixes = ("", f"listener.name.{name.lower()}.")
        stores = {
            f"{prefix}ssl.keystore.{setting}"
            for prefix in prefixes
            for setting in ("location", "key")
        }
        if protocol.endswith("SSL") and not stores & config.keys():
            raise click.UsageError(
                f"--listener {name}={protocol} needs a certificate: --config ssl.keystore.type=PEM "
                "--config ssl.keystore.location=FILE"
            )


@cluster.command()
@click.argument("name")
@click.option("--brokers", type=click.IntRange(1, 3), default=1, show_default=True)
@click.option("--kafka-version", default=DEFAULT_VERSION, show_default=True, help="3.9.0 or newer.")
@click.option("--heap", default="512m", show_default=True, help="Java heap of each broker.")
@click.option(
    "--config",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_parse_config,
    help="A broker property; may be repeated.",
)
@click.option(
    "--listener",
    "listeners",
    metavar="NAME=PROTOCOL",
    multiple=True,
    callback=_parse_listeners,
    help="A listener in addition to the PLAINTEXT one; may be repeated.",
)
def up(
    name: str,
    *,
    brokers: int,
    kafka_version: str,
    heap: str,
    config: dict[str, str],
    listeners: dict[str, str],
) -> None:
    """Start cluster NAME and print its bootstrap servers."""
    _check_keystores(listeners, config)
    cluster = named.up(name, brokers, kafka_version, config=config, heap=heap, listeners=listeners)
    click.echo(cluster.bootstrap_servers)
    for listener, protocol in listeners.items():
        click.echo(f"{listener} ({protocol}): {cluster.listener(listener)}", err=True)
    nodes = "1 broker" if brokers == 1 else f"{brokers} brokers"
    click.echo(f"Kafka {kafka_version}, {nodes}, in {cluster.directory}", err=True)
    click.echo(f"to remove it: twinlog cluster down {name}", err=True)


@cluster.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="All clusters of this user on this machine.")
def down(name: str | None, every: bool) -> None:
    """End cluster NAME and remove its data."""
    if (name is None) != every:
        raise click.UsageError("specify a cluster name or --all")
    for cluster_name in named.names() if name is None else [name]:
        named.down(cluster_name)


@cluster.command()
@click.argument("name")
@click.argument("node", type=int)
def kill(name: str, node: int) -> None:
    """Kill node NODE of cluster NAME, as kill -9 does."""
    named.kill(name, node)


@cluster.command()
@click.argument("name")
@click.argument("node", type=int)
def start(name: str, node: int) -> None:
    """Restart node NODE of cluster NAME, with its data."""
    named.start(name, node)


@cluster.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_clusters(as_json: bool) -> None:
    """Show the clusters of this machine's user."""
    rows = [_row(name) for name in named.names()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo("no clusters (twinlog cluster up NAME starts one)", err=True)
        return
    columns = ("name", "state", "version", "bootstrap_servers", "listeners")
    table = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _cell(value: object) -> str:
    """The text of a column; listeners are `NAME=ADDRESS,...`, separated by blanks."""
    if isinstance(value, dict):
        return " ".join(f"{name}={servers}" for name, servers in value.items())
    return str(value)


def _row(name: str) -> dict[str, object]:
    try:
        cluster = named.find(name)
    except LocalError:
        return {
            "name": name,
            "state": "starting, or incomplete",
            "version": "",
            "bootstrap_servers": "",
            "listeners": {},
            "nodes": {},
        }
    nodes = {node_id: node_id in cluster.living for node_id in cluster.node_ids}
    return {
        "name": name,
        "state": _state(cluster),
        "version": cluster.version,
        "bootstrap_servers": cluster.bootstrap_servers,
        "listeners": {
            listener: cluster.listener(listener) for listener in cluster.settings.listeners
        },
        "nodes": {node_id: "up" if alive else "down" for node_id, alive in nodes.items()},
        "directory": str(cluster.directory),
    }


def _state(cluster: LocalCluster) -> str:
    missing = sorted(set(cluster.node_ids) - set(cluster.living))
    if not missing:
        return "up"
    if not cluster.living:
        return "not running"
    return f"up, without node {', '.join(map(str, missing))}"
