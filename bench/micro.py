"""Records per second that `plan` turns from a Fetch answer into pieces, in one process.

.venv/bin/python bench/micro.py

CPU time, the best of several rounds: the machine may be busy with other programs.
"""

import random
import time
from collections.abc import Callable

from twinlog.kafka.log.batch import CONTROL, TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.types import Offset
from twinlog.mirror.plan import plan

ANSWER = 1024 * 1024
"""Bytes of one partition's part of a Fetch answer, as the lanes request it."""
ROUNDS = 15
MARKER = TRANSACTIONAL | CONTROL
NOW = 1_700_000_000_000


def main() -> None:
    """Measure and print the figures."""
    report("16 KB zstd batches, forwarded", answer(Codec.ZSTD, 160, 110))
    report("lone records of 100 bytes, merged", answer(Codec.NONE, 1, 100))
    report("batches of 3 records of 100 bytes, merged", answer(Codec.NONE, 3, 100))
    report("lone records of 100 bytes, of LogAppendTime", answer(Codec.NONE, 1, 100, 0x08))
    report("transactions of 1 + 9 records, merged", transactions(100))
    report("lone zstd records of 300 bytes, merged", answer(Codec.ZSTD, 1, 300))
    report("lone snappy records of 300 bytes, merged", answer(Codec.SNAPPY, 1, 300))
    report("batches of 100 records, LogAppendTime, lz4", answer(Codec.LZ4, 100, 100, 0x08))


def answer(codec: Codec, count: int, size: int, attributes: int = 0) -> tuple[bytes, int]:
    """Return the bytes of batches with `count` records of `size` bytes, and the record count."""
    rng = random.Random(1)
    words = [rng.randbytes(6).hex().encode() for _ in range(200)]
    made: list[bytes] = []
    offset = length = 0
    while length < ANSWER:
        records = []
        for _ in range(count):
            value = b" ".join(rng.choices(words, k=size // 12 + 1))[:size]
            tail = memoryview(encode_tail(None, value))
            records.append(RawRecord(offset, NOW + offset // 10, 0, tail))
            offset += 1
        batch = whole(build(records, codec), attributes=attributes)
        made.append((offset - count).to_bytes(8, "big") + batch[8:])
        length += len(batch)
    return b"".join(made), offset


def transactions(size: int) -> tuple[bytes, int]:
    """Return transactions whose first record is a batch by itself, and the end offset."""
    made: list[bytes] = []
    offset = length = 0
    while length < ANSWER:
        for count, attributes in ((1, TRANSACTIONAL), (9, TRANSACTIONAL), (1, MARKER)):
            key = b"\0\0\0\1" if attributes == MARKER else None
            tail = memoryview(encode_tail(key, bytes(6 if key else size)))
            records = [RawRecord(offset + at, NOW + offset // 10, 0, tail) for at in range(count)]
            batch = whole(build(records, Codec.NONE), attributes=attributes, producer_id=7)
            made.append(offset.to_bytes(8, "big") + batch[8:])
            offset += count
            length += len(batch)
    return b"".join(made), offset


def report(what: str, made: tuple[bytes, int]) -> None:
    """Print the best of some rounds."""
    data, records = made
    buffer = memoryview(data)
    pieces = plan(buffer, Offset(0))
    assert pieces[-1].end == records
    best = min(cpu_seconds(lambda: plan(buffer, Offset(0))) for _ in range(ROUNDS))
    print(
        f"{what:<48}{records / best:>12,.0f} records/s{len(data) / best / 1e6:>8,.0f} MB/s"
        f"{len(pieces):>6} pieces"
    )


def cpu_seconds(action: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    started = time.process_time()
    action()
    return time.process_time() - started


if __name__ == "__main__":
    main()
