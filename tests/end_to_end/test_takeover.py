"""A lane is paused for longer than the session timeout: its partitions get a new owner for good.

This is the short form of test_pause in tests/chaos.
"""

import secrets
from pathlib import Path

import kills
import pytest
from chaos_harness import ordeal

pytestmark = [pytest.mark.last, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

PAUSE_SECONDS = 20.0
"""Twice the session timeout."""


def test_a_paused_lane_writes_nothing_after_a_takeover(tmp_path: Path) -> None:
    """Another node takes over; the lane continues and writes nothing without a lease."""
    with ordeal(tmp_path, secrets.token_hex(4), 400.0) as mirror:
        for name in ("one", "other"):
            mirror.stage.start_node(name, "--lanes", "1")
        mirror.await_all()
        kills.pause_lane(mirror, PAUSE_SECONDS)
        mirror.prove()
