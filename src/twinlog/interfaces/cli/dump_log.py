"""`twinlog dump-log --mirror-state-decoder`: the records of `__mirror_state` in a broker's files.

The lines have the format of Kafka's own `kafka-dump-log.sh`.
"""

import json
from pathlib import Path
from typing import assert_never

import click

from twinlog.interfaces.cli.output import print_json
from twinlog.operations.log_dump import (
    DumpedBatch,
    DumpedMarker,
    DumpedRecord,
    DumpedState,
    DumpEntry,
    NoBatch,
    Undecodable,
)
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.text import printable


@click.command("dump-log")
@click.option(
    "--files",
    required=True,
    help="The log segments to dump, separated by commas.",
)
@click.option(
    "--mirror-state-decoder",
    is_flag=True,
    required=True,
    help="Decode records of __mirror_state. No other decoder is supported.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of each line.")
def dump_log(
    *,
    files: str,
    mirror_state_decoder: bool,  # noqa: ARG001 - must be given
    as_json: bool,
) -> None:
    """Print log segments of __mirror_state, for debugging.

    For all other topics, use Kafka's own kafka-dump-log.sh.
    """
    for file in map(Path, files.split(",")):
        dump = MirrorAdmin.dump_log(file)
        if as_json:
            print_json(dump)
        else:
            click.echo(f"Dumping {file}")
            click.echo(f"Log starting offset: {dump.starting_offset}")
        for entry in dump.entries():
            if as_json:
                print_json(entry)
            else:
                click.echo(printable(_line(entry)))  # names of headers, and JSON, may be any text


def _line(entry: DumpEntry) -> str:
    match entry:
        case DumpedBatch():
            return _batch(entry)
        case DumpedRecord():
            return _record(entry)
        case Undecodable(error):
            return f"| {error}"
        case NoBatch(position, size):
            return f"Found {size} bytes from position {position} that are not a batch"
        case _:
            assert_never(entry)


def _batch(one: DumpedBatch) -> str:
    at = one.delete_horizon_ms
    horizon = "OptionalLong.empty" if at is None else f"OptionalLong[{at}]"
    return (
        f"baseOffset: {one.base_offset} lastOffset: {one.last_offset} "
        f"count: {one.count} baseSequence: {one.base_sequence} lastSequence: {one.last_sequence} "
        f"producerId: {one.producer_id} producerEpoch: {one.producer_epoch} "
        f"partitionLeaderEpoch: {one.leader_epoch} "
        f"isTransactional: {_java(one.is_transactional)} isControl: {_java(one.is_control)} "
        f"deleteHorizonMs: {horizon} position: {one.position} "
        f"{one.timestamp_type}: {one.max_timestamp} size: {one.size} "
        f"magic: {one.magic} compresscodec: {one.codec} crc: {one.crc} "
        f"isvalid: {_java(one.is_valid)}"
    )


def _record(one: DumpedRecord) -> str:
    return (
        f"| offset: {one.offset} {one.timestamp_type}: {one.timestamp} "
        f"keySize: {one.key_size} valueSize: {one.value_size} sequence: {one.sequence} "
        f"headerKeys: [{','.join(one.header_keys)}] {_content(one.content)}"
    )


def _content(content: DumpedMarker | DumpedState | str) -> str:
    match content:
        case DumpedMarker(kind, epoch):
            return f"endTxnMarker: {kind} coordinatorEpoch: {epoch}"
        case DumpedState(key, payload):
            return f"key: {_compact(key)} payload: {_compact(payload)}"
        case str():
            return content
        case _:
            assert_never(content)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _java(value: bool) -> str:
    return "true" if value else "false"
