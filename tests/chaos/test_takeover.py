"""A real MirrorMaker 2 killed under load, and a flow that goes on: `make chaos ONLY=takeover`."""

import random
import sys
import time
from pathlib import Path

import pytest
from chaos_harness import Trials
from real_mirror_maker import Handover, random_settings

from twinlog.local.processes import ProcessGroup
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]

RATE = 3000.0
MOMENT_S = 6.0


def test_takeover_from_a_killed_mirror_maker(trials: Trials) -> None:
    """Kill MirrorMaker 2 at a random moment: each number is there, and none is copied twice."""
    chance = random.Random(trials.own_seed)
    sys.stdout.write(f"seed {trials.own_seed}\n")  # pytest shows it with a failure
    with Stage(trials.directory / "stage") as stage:
        stage.start_source()
        stage.start_destination()
        for number in range(trials.times):
            _hand_over(stage, trials.directory, number, chance)


def _hand_over(stage: Stage, folder: Path, number: int, chance: random.Random) -> None:
    settings = random_settings(chance)
    handover = Handover(folder, str(number), stage.source, stage.destination, settings)
    with ProcessGroup() as group, handover.writing(RATE):
        mirror_maker = handover.start_mirror_maker(group)
        time.sleep(chance.uniform(0, MOMENT_S))
        mirror_maker.kill()
        with handover.twinlog("--takeover") as output:
            named = handover.named(output)
            handover.await_copies(200)
            tally = handover.prove(named)
    sys.stdout.write(f"{number}: {settings} {dict(tally)} {named}\n")
    sys.stdout.flush()
    assert tally["twice"] == 0
