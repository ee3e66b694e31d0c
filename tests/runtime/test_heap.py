"""Freed buffers stay with the process, up to the limit; cycles are still found."""

import gc
import subprocess
import sys
import weakref

import pytest

from twinlog.runtime.heap import collect_seldom

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


class _Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_still_found() -> None:
    """Goal: what a lane leaves behind in a cycle is freed, after some ten thousand new objects."""
    former = gc.get_threshold()
    try:
        collect_seldom()
        node = weakref.ref(_Node())
        kept = [[number] for number in range(5_000)]
        assert node() is not None, "collected as often as by default"
        kept += [[number] for number in range(10_000)]
        assert node() is None
    finally:
        gc.set_threshold(*former)
