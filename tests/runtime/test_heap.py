"""Freed buffers stay with the process, up to the limit."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from twinlog.runtime.heap import keep_freed

if sys.argv[1] == "kept":
    keep_freed(64 << 20)

def faults(megabytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [bytearray(8 << 20) for _ in range(megabytes // 8)]
    del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(48)
print(min(faults(48) for _ in range(5)))
"""


def page_faults(how: str) -> int:
    """Return the page faults of a process that takes and frees six buffers of 8 MiB repeatedly."""
    command = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_buffers_cause_no_new_page_faults() -> None:
    without, kept = page_faults("not kept"), page_faults("kept")
    assert without > 5000, "the C library keeps them by itself: keep_freed is not needed any more"
    assert kept < 500
