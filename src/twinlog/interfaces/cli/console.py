"""`twinlog console`: prints the records of MirrorMaker 2's internal topics.

It prints the lines of kafka-console-consumer with the formatters of MirrorMaker 2, and has those of
its flags that say what is read and for how long.
A record that cannot be decoded is printed as such, and makes the exit status 1; a tombstone, at
which Kafka's formatters fail, is printed with its key.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import click

from twinlog.interfaces.cli.options import destination_properties
from twinlog.interfaces.cli.output import print_json, say, unread_output_ignored
from twinlog.interfaces.client.topic_records import read_topic
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import ClusterConfig, parse_config
from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.requests.partitions import OffsetSpec
from twinlog.kafka.types import Offset
from twinlog.mirror.mm2_records import (
    Checkpoint,
    Heartbeat,
    Mm2Record,
    OffsetSync,
    decode_checkpoint,
    decode_checkpoint_key,
    decode_heartbeat,
    decode_heartbeat_key,
    decode_offset_sync,
    decode_offset_sync_key,
)
from twinlog.store.topic_reader import ControlRecord
from twinlog.text import printable

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, as of kafka-console-consumer."""
CONNECT_S: Final = 10.0

_SPECS: Final = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_PARTITION: Final = (1 << 31) - 1
_SUFFIX: Final = "Formatter"
_KIP_SUFFIX: Final = "MessageFormatter"
"""How the names of the formatters end in KIP-382."""
_PACKAGE: Final = "org.apache.kafka.connect.mirror.formatters."


class _Key(NamedTuple):
    """The key of a record: its text in Kafka's manner, and its fields."""

    text: str
    fields: dict[str, object]


class _Format(NamedTuple):
    decode: Callable[[bytes | None, bytes | None], Mm2Record | None]
    decode_key: Callable[[bytes | None], _Key]


def _heartbeat_key(key: bytes | None) -> _Key:
    source, target = decode_heartbeat_key(key)
    text = f"Heartbeat{{sourceClusterAlias={source}, targetClusterAlias={target}}}"
    return _Key(text, {"source_cluster_alias": source, "target_cluster_alias": target})


def _checkpoint_key(key: bytes | None) -> _Key:
    group, partition = decode_checkpoint_key(key)
    text = f"Checkpoint{{consumerGroupId={group}, topicPartition={partition}}}"
    return _Key(text, {"group": group, **partition._asdict()})


def _offset_sync_key(key: bytes | None) -> _Key:
    partition = decode_offset_sync_key(key)
    return _Key(f"OffsetSync{{topicPartition={partition}}}", partition._asdict())


FORMATTERS: Final = {
    "CheckpointFormatter": _Format(decode_checkpoint, _checkpoint_key),
    "HeartbeatFormatter": _Format(decode_heartbeat, _heartbeat_key),
    "OffsetSyncFormatter": _Format(decode_offset_sync, _offset_sync_key),
}
"""By the names of Kafka's classes."""


class _StartOffset(click.ParamType[OffsetSpec | Offset]):
    """`earliest`, `latest`, or an offset, as kafka-console-consumer understands them."""

    name = "OFFSET"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> OffsetSpec | Offset:
        """Parse where to begin."""
        if isinstance(value, OffsetSpec):
            return value
        text = str(value)
        spec = _SPECS.get(text.lower())
        if spec is not None:
            return spec
        digits = text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_OFFSET))
        if not digits or int(text) > _MAX_OFFSET:
            self.fail(
                f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', "
                "'latest', or a non-negative long.",
                param,
                ctx,
            )
        return Offset(int(text))


class _FormatterName(click.ParamType[_Format]):
    """The name of a formatter, with or without Kafka's package."""

    name = "CLASS"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> _Format:
        """Find the formatter."""
        known = str(value).removeprefix(_PACKAGE)
        if known.endswith(_KIP_SUFFIX):
            known = known.removesuffix(_KIP_SUFFIX) + _SUFFIX
        found = FORMATTERS.get(known)
        if found is None:
            self.fail(f"{value!r}: expected one of {', '.join(FORMATTERS)}", param, ctx)
        return found


@click.command()
@click.option(
    "--bootstrap-server", required=True, metavar="HOST:PORT,...", help="The topic's cluster."
)
@click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Client properties for the cluster (security, timeouts).",
)
@click.option("--topic", required=True, help="The topic.")
@click.option(
    "--formatter",
    required=True,
    type=_FormatterName(),
    help=f"What its records are: {', '.join(FORMATTERS)}; as of {_PACKAGE.rstrip('.')}.",
)
@click.option("--from-beginning", is_flag=True, help="Begin at the log start, not at the end.")
@click.option(
    "--partition", type=click.IntRange(0, _MAX_PARTITION), help="Only this partition of the topic."
)
@click.option(
    "--offset",
    type=_StartOffset(),
    help="With --partition: begin at this offset, or at 'earliest' or 'latest'.",
)
@click.option("--max-messages", type=click.IntRange(min=1), help="End after this many records.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(min=0),
    help="End after this time without a record, if all was read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each record as one JSON object.")
def console(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    topic: str,
    formatter: _Format,
    from_beginning: bool,
    partition: int | None,
    offset: OffsetSpec | Offset | None,
    max_messages: int | None,
    timeout_ms: int | None,
    as_json: bool,
) -> None:
    """Print checkpoints, heartbeats or offset syncs of MirrorMaker 2, as they are written.

    The flags are those of kafka-console-consumer of the same names. It ends with Ctrl-C.
    """
    if partition is None and offset is not None:
        raise click.UsageError("The partition is required when offset is specified.")
    if from_beginning and offset is not None:
        raise click.UsageError("Options from-beginning and offset cannot be specified together.")
    if offset is None:
        offset = OffsetSpec.EARLIEST if from_beginning else OffsetSpec.LATEST
    read = partial(
        read_topic,
        topic=topic,
        start=offset,
        partition=partition,
        idle_s=None if timeout_ms is None else timeout_ms / 1000,
        tell=lambda line: say(f"Warning: {topic}: {line}"),
    )
    parsed = parse_config(destination_properties(bootstrap_server, command_config))
    for warning in parsed.warnings:
        say(f"Warning: {warning}")
    printer = _Printer(formatter, max_messages, as_json=as_json)
    status = 0
    try:
        asyncio.run(_print_topic(parsed.config, read, printer))
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough: `| head`
        with unread_output_ignored():
            raise
    say(f"Processed a total of {printer.count} messages")
    if printer.undecodable:
        say(f"Error: {printer.undecodable} of them could not be decoded: check --formatter")
    sys.exit(status or bool(printer.undecodable))


async def _print_topic(
    config: ClusterConfig,
    read: Callable[[KafkaCluster], AsyncGenerator[list[ControlRecord], None]],
    printer: "_Printer",
) -> None:
    cluster = KafkaCluster(config)
    await cluster.start(min(config.api_timeout, CONNECT_S))
    try:
        async with aclosing(read(cluster)) as batches:
            async for records in batches:
                for record in records:
                    if not printer.show(record):
                        return
    finally:
        await cluster.close()


class _Printer:
    """Prints records; `count` is how many, `undecodable` how many of them are damaged."""

    def __init__(self, formatter: _Format, limit: int | None, *, as_json: bool) -> None:
        self.count = 0
        self.undecodable = 0
        self._format = formatter
        self._limit = limit
        self._as_json = as_json

    def show(self, record: ControlRecord) -> bool:
        """Print a record; return whether there may be more."""
        try:
            key = self._format.decode_key(record.key)
            decoded = self._format.decode(record.key, record.value)
        except ProtocolError as error:
            self.undecodable += 1
            text = f"Undecodable{{partition={record.partition}, offset={record.offset}}}: {error}"
            self._print(record, text, {"error": error.message})
        else:
            value = None if decoded is None else _fields(decoded)
            text = f"{key.text} (tombstone)" if decoded is None else str(decoded)
            self._print(record, text, {"key": key.fields, "value": value})
        self.count += 1
        return self.count != self._limit

    def _print(self, record: ControlRecord, text: str, content: dict[str, object]) -> None:
        if self._as_json:
            place = {name: getattr(record, name) for name in ("partition", "offset", "timestamp")}
            print_json({**place, **content})
        else:
            click.echo(printable(text))


def _fields(record: Mm2Record) -> dict[str, object]:
    """The fields of a record's value."""
    match record:
        case Heartbeat():
            return {"timestamp": record.timestamp}
        case Checkpoint():
            return {**_offsets(record), "metadata": record.metadata}
        case OffsetSync():
            return _offsets(record)


def _offsets(record: Checkpoint | OffsetSync) -> dict[str, object]:
    return {
        "upstream_offset": record.upstream_offset,
        "downstream_offset": record.downstream_offset,
    }
