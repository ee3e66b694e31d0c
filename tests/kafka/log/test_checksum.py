"""A patched checksum against one that is computed anew, compiled and interpreted."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from batch_builders import batch, joined, record
from compiled_forms import interpreted, source
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.log import checksum, lone, record_parts, small_transactions
from twinlog.kafka.log.batch import patched_header
from twinlog.kafka.types import ProducerEpoch, ProducerId, Sequence

Patched = Callable[[int, bytes, bytes, int], int]
FORMS = {"installed": checksum.patched, "interpreted": interpreted(checksum).patched}
both = pytest.mark.parametrize("patched", FORMS.values(), ids=FORMS)
forty = st.binary(min_size=40, max_size=40)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    "module", [checksum, lone, record_parts, small_transactions], ids=lambda module: module.__name__
)
def test_the_installed_modules_are_compiled(module: ModuleType) -> None:
    """Goal: no test or measurement uses a slower, or an older, form unnoticed."""
    built = Path(str(module.__file__))
    assert built != source(module), "not compiled: touch pyproject.toml; make setup"
    assert built.stat().st_mtime >= source(module).stat().st_mtime, "its source is newer: make"


@both
@given(before=forty, after=forty, rest=st.binary(max_size=300))
def test_a_patched_checksum_equals_a_recomputed_one(
    patched: Patched, before: bytes, after: bytes, rest: bytes
) -> None:
    """Goal: any first bytes, any bytes behind them."""
    assert patched(crc32c(before + rest), before, after, len(rest)) == crc32c(after + rest)


@both
@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 20, 10_000_019])
def test_checksums_of_long_messages_are_patched(patched: Patched, size: int) -> None:
    """Goal: lengths of many bits."""
    rest = bytes(range(256)) * (size // 256 + 1)
    rest = rest[:size]
    before, after = bytes(40), bytes(range(40))
    assert patched(crc32c(before + rest), before, after, size) == crc32c(after + rest)


def test_a_bit_flip_in_memory_keeps_a_wrong_checksum() -> None:
    """Goal: records that have changed since their checksum was right keep a wrong one."""
    [header], buffer = joined(batch([record(0, value=bytes(1000))]))
    records = bytearray(header.records(buffer))
    identity = (ProducerId(7), ProducerEpoch(1), Sequence(9))
    good = patched_header(header, memoryview(records), *identity)
    assert int.from_bytes(good[17:21], "big") == crc32c(good[21:] + records)
    records[500] ^= 1
    bad = patched_header(header, memoryview(records), *identity)
    assert int.from_bytes(bad[17:21], "big") != crc32c(bad[21:] + records)
