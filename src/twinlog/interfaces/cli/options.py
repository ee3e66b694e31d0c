"""Options that several commands have."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.configuration import read_properties
from twinlog.mirror.mirror_names import mirror_name
from twinlog.runtime.lane_options import parse_lane_settings

LOOPBACK = "127.0.0.1"

F = TypeVar("F", bound=Callable[..., Any])


class ListenAddress(click.ParamType[tuple[str, int]]):
    """`HOST:PORT`, `:PORT` or `PORT`; an IPv6 host is in brackets."""

    name = "HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Parse host and port."""
        host, _, port = str(value).rpartition(":")
        if not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536):
            self.fail(f"{value!r}: expected HOST:PORT, with a port from 0 to 65535", param, ctx)
        return host.strip("[]") or LOOPBACK, int(port)


class MirrorName(click.ParamType[str]):
    """The name of a mirror or flow; a flow is `A-to-B`, or `A->B` as in MirrorMaker 2's files."""

    def __init__(self, name: str = "MIRROR") -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name of the mirror."""
        del param, ctx
        return mirror_name(str(value))


def destination_options(command: F) -> F:
    """`--bootstrap-server` and `--command-config`, for `destination_properties`."""
    command = click.option(
        "--command-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Client properties for the destination (security, timeouts).",
    )(command)
    return click.option(
        "--bootstrap-server",
        required=True,
        metavar="HOST:PORT,...",
        help="The destination cluster, which holds the mirrors.",
    )(command)


def spark_options(command: F) -> F:
    """`--master` and `--conf`, for `spark_settings`."""
    command = click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."
    )(command)
    return click.option(
        "--master", default="local[*]", show_default=True, help="Spark master, as for spark-submit."
    )(command)


def lane_options(command: F) -> F:
    """`--lane-config` and `--lane-property`, for `lane_settings`."""
    command = click.option(
        "--lane-property",
        multiple=True,
        metavar="KEY=VALUE",
        help="A lane setting, which takes precedence over the file; may be repeated.",
    )(command)
    return click.option(
        "--lane-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Properties file with lane settings (buffers, connections, waits).",
    )(command)


def destination_properties(bootstrap_server: str, command_config: Path | None) -> dict[str, str]:
    """Client properties of the destination; `:9094` is on this host, as with Kafka's own tools."""
    properties = read_properties(command_config) if command_config else {}
    servers = [f"localhost{s}" if s.startswith(":") else s for s in bootstrap_server.split(",")]
    return {**properties, "bootstrap.servers": ",".join(servers)}


def spark_settings(conf: Sequence[str]) -> dict[str, str]:
    """The settings of `--conf`."""
    return key_values("--conf", conf)


def lane_settings(lane_config: Path | None, lane_property: Sequence[str]) -> LaneSettings:
    """The lanes' settings.

    Raises:
        UserError: a setting does not exist or is malformed.
    """
    properties = read_properties(lane_config) if lane_config else {}
    return parse_lane_settings({**properties, **key_values("--lane-property", lane_property)})


def key_values(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse the values of a KEY=VALUE flag; the last value of a key counts."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{text!r}: expected KEY=VALUE", param_hint=flag)
        pairs[key] = value
    return pairs
