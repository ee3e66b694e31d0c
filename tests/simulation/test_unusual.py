"""The model's source whose answers are inconvenient, where a reader depends on a detail of them."""

import random
from typing import cast

import pytest

from model.log import Log
from model.loop import VirtualLoop
from model.unusual import PREFERRED, Unusual, _Mood
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import EpochEnd, TopicPartition

KEY = TopicPartition("t", 0)
DIVERGING = Fetched(0, 9, 9, 0, (), memoryview(b""), EpochEnd(4, 3))


class Still:
    """A loop whose time stands still."""

    def time(self) -> float:
        """No time passes."""
        return 0.0


@pytest.mark.parametrize("answers_alone", [False, True])
def test_a_leader_that_names_a_replica_compares_no_epochs(answers_alone: bool) -> None:
    """Goal: as a broker, which then does not read (KIP-392); only a leader that reads compares."""
    unusual = Unusual(cast("VirtualLoop", Still()), random.Random(1))
    unusual.quiet = False
    unusual._moods[KEY] = _Mood(1.0, "preferred", 0.4 if answers_alone else 0.6)
    log = cast("Log", None)
    named = DIVERGING._replace(diverging=None, preferred_replica=PREFERRED)
    assert unusual.alter(KEY, 5, log, DIVERGING) == named
    found = unusual.alter(KEY, 5, log, DIVERGING, alone=True)
    assert found == (DIVERGING if answers_alone else named)


@pytest.mark.parametrize("kind", ["", "crowded", "remote", "cut"])
def test_a_leader_that_reads_reports_a_lost_end(kind: str) -> None:
    unusual = Unusual(cast("VirtualLoop", Still()), random.Random(1))
    unusual.quiet = False
    unusual._moods[KEY] = _Mood(1.0, kind)
    for alone in (False, True):
        assert unusual.alter(KEY, 5, cast("Log", None), DIVERGING, alone=alone) == DIVERGING
