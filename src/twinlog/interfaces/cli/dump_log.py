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


def _batch(batch: DumpedBatch) -> str:
    at = batch.delete_horizon_ms
    horizon = "OptionalLong.empty" if at is None else f"OptionalLong[{at}]"
    return (
        f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} "
        f"count: {batch.count} baseSequence: {batch.base_sequence} lastSequence: "
        f"{batch.last_sequence} "
        f"producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch} "
        f"partitionLeaderEpoch: {batch.leader_epoch} "
        f"isTransactional: {_java(batch.is_transactional)} isControl: {_java(batch.is_control)} "
        f"deleteHorizonMs: {horizon} position: {batch.position} "
        f"{batch.timestamp_type}: {batch.max_timestamp} size: {batch.size} "
        f"magic: {batch.magic} compresscodec: {batch.codec} crc: {batch.crc} "
        f"isvalid: {_java(batch.is_valid)}"
    )


def _record(record: DumpedRecord) -> str:
    return (
        f"| offset: {record.offset} {record.timestamp_type}: {record.timestamp} "
        f"keySize: {record.key_size} valueSize: {record.value_size} sequence: {record.sequence} "
        f"headerKeys: [{','.join(record.header_keys)}] {_content(record.content)}"
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
