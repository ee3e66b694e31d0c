"""`twinlog dump-log --mirror-state-decoder` on files as a broker stores them."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from twinlog.interfaces.cli.main import main
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.store.state_records import (
    MIRROR_PARTITION_STATE,
    LastMirrored,
    PartitionState,
    encode_epoch,
    encode_state,
    epochs_key,
)

PARTITION = MirrorPartition("my-mirror", "my-topic", 0)
BASE = 12


def batch(entries: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Return a batch with a producer, at offset 12, as stored in a segment."""
    records = [
        RawRecord(offset, 1_000 + offset, 0, memoryview(encode_tail(*entry)))
        for offset, entry in enumerate(entries)
    ]
    data = whole(build(records, Codec.NONE), producer_id=7, epoch=1, sequence=3)
    return BASE.to_bytes(8, "big") + data[8:]


def dumped(path: Path) -> Result:
    return CliRunner().invoke(main, ["dump-log", "--mirror-state-decoder", "--files", str(path)])


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000012.log"


def test_output_has_the_lines_of_the_kip(segment: Path) -> None:
    """The output has batch lines and record lines, with the decoder's JSON."""
    segment.write_bytes(
        batch(
            [
                encode_state(PartitionState(PARTITION, State.PREPARING)),
                encode_state(PartitionState(PARTITION, State.FAILED, "why")),
                encode_epoch(PARTITION, LastMirrored(LeaderEpoch(5), Offset(9))),
                (epochs_key(PARTITION), None),
            ]
        )
    )
    done = dumped(segment)
    assert done.exit_code == 0, done.output
    head, start, first, *records = done.output.splitlines()
    assert head == f"Dumping {segment}"
    assert start == "Log starting offset: 12"
    assert first.startswith(
        "baseOffset: 12 lastOffset: 15 count: 4 baseSequence: 3 lastSequence: 6 producerId: 7 "
        "producerEpoch: 1 partitionLeaderEpoch: -1 isTransactional: false isControl: false "
        "deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1003 size: "
    )
    assert first.endswith(" isvalid: true")
    topic = '"topicName":"my-topic","partition":0'
    key = f'"data":{{"mirrorName":"my-mirror",{topic}}}}}'
    end = '"lastMirroredEnd":9'
    state, epochs = f'{{"type":"2",{key}', f'{{"type":"1",{key}'
    assert [line.partition("key: ")[2].partition(" payload: ")[::2] for line in records] == [
        (state, f'{{"version":"0","data":{{{topic},"state":1}}}}'),
        (state, f'{{"version":"0","data":{{{topic},"state":7,"reason":"why"}}}}'),
        (
            epochs,
            f'{{"version":"0","data":{{"topics":[{{{topic},"lastMirroredEpoch":5,{end}}}]}}}}',
        ),
        (epochs, "null"),
    ]
    assert records[0].startswith("| offset: 12 CreateTime: 1000 keySize: ")


def test_damaged_batches_and_segments_are_reported(segment: Path) -> None:
    """A wrong checksum, an invalid key, and an incomplete end of a segment are reported."""
    data = bytearray(batch([(MIRROR_PARTITION_STATE.to_bytes(2, "big"), b"")]))
    data[-1] ^= 1
    segment.write_bytes(bytes(data) + bytes(100))
    lines = dumped(segment).output.splitlines()
    assert lines[2].endswith(" isvalid: false")
    assert len(lines) == 4
    segment.write_bytes(b"\1" * 200)
    assert dumped(segment).output.endswith("Found 200 bytes from position 0 that are not a batch\n")


def test_files_that_are_no_segments_are_refused(tmp_path: Path) -> None:
    for name in ("00000000000000000000.log", "x.log"):
        file = tmp_path / name
        if name == "x.log":
            file.write_bytes(b"")
        done = dumped(file)
        assert done.exit_code == 1
        assert done.output.count("\n") <= 2
        assert "segment" in done.output


def test_terminal_escapes_in_records_are_escaped(segment: Path) -> None:
    """Goal: header names, characters that JSON does not escape and non-text bytes are escaped."""
    key, value = encode_state(PartitionState(PARTITION, State.FAILED, "\x9b2J\u202e"))
    headers = [("\x1b]0;title\x07", b""), ("\udcff", None)]
    records = [RawRecord(BASE, 1_000, 0, memoryview(encode_tail(key, value, headers)))]
    segment.write_bytes(BASE.to_bytes(8, "big") + whole(build(records, Codec.NONE))[8:])
    done = dumped(segment)
    assert done.exit_code == 0, done.output
    (line,) = done.output.splitlines()[3:]
    assert line.isprintable()
    assert r"headerKeys: [\x1b]0;title\x07,\udcff]" in line
    assert r'"reason":"\x9b2J\u202e"' in line


def test_json_output_has_one_object_per_line(segment: Path) -> None:
    """Goal: `--json` has the same entries, damaged ones too."""
    record = encode_state(PartitionState(PARTITION, State.FAILED, "why"))
    segment.write_bytes(batch([record, (b"", b"")]) + b"\1" * 9)
    done = CliRunner().invoke(
        main, ["dump-log", "--mirror-state-decoder", "--json", "--files", str(segment)]
    )
    assert done.exit_code == 0, done.output
    head, first, state, other, rest = map(json.loads, done.stdout.splitlines())
    assert head == {"file": str(segment), "starting_offset": BASE}
    assert (first["base_offset"], first["count"], first["is_valid"]) == (BASE, 2, True)
    place = {"topicName": "my-topic", "partition": 0}
    assert state["content"] == {
        "key": {"type": "2", "data": {"mirrorName": "my-mirror", **place}},
        "payload": {"version": "0", "data": {**place, "state": 7, "reason": "why"}},
    }
    assert isinstance(other["content"], str)
    assert rest == {"position": first["size"], "size": 9}
