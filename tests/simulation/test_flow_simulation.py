"""Flows in the simulation: fixed seeds pass, and planted bugs are found.

More seeds: `TWINLOG_SEEDS=0:500 pytest tests/simulation/test_flow_simulation.py`.
"""

import os

import pytest

from simulation.program import run_simulation


def test_fixed_seeds_of_flows_pass() -> None:
    """Goal: under all faults each record is copied once, in order, and mapped to where it is.

    The simulation has found these bugs:

    * A fence that had to be repeated left a compacted partition FAILED: the broker had forgotten
      the last number.
    * After its lease, an owner went on sending a plan that had got no answer.
    """
    done = run_simulation("--flows", "--seeds", os.environ.get("TWINLOG_SEEDS", "0:6"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_of_flows_is_reproducible() -> None:
    """Goal: a failure can be replayed."""
    first, second = (
        run_simulation("--flows", "--seed", "4").stdout.split(" in ")[0] for _ in range(2)
    )
    assert first == second
    assert "steps" in first


@pytest.mark.parametrize(
    ("hazard", "seeds"),
    [("unclean", "0:4"), ("renamed", "0:4"), ("forgotten", "7400:7404"), ("cut", "1:5")],
)
def test_flows_pass_under_hazards(hazard: str, seeds: str) -> None:
    """Goal: lost copies and lost plans are reported, and another producer id loses none.

    In 7402 an owner went on with a partition whose plan was lost, and its lane failed.
    """
    done = run_simulation("--flows", "--seeds", seeds, "--hazards", hazard)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variant", "seeds"),
    [
        ("resending", "3:9"),
        ("unplanned", "0:4"),
        ("aborted", "0:4"),
        ("misplaced", "0:4"),
        ("fenceless", "1:2"),
        ("trustful", "0:4"),
    ],
)
def test_planted_bugs_of_flows_are_found(variant: str, seeds: str) -> None:
    """Goal: the simulation finds a flow with a known bug (flow_variants.py) within a few seeds.

    * a batch without an answer is sent again under the next number
    * no plan is stored before records are sent
    * records of aborted transactions are copied
    * the map is one offset off now and then
    * a partition is located without a fence
    * a follower that is cut off counts as contact with the source: lag 0 is reported
    """
    done = run_simulation("--flows", "--seeds", seeds, "--variant", variant, "--until-failed")
    assert "FAILED: Violation" in done.stdout, done.stdout + done.stderr


def test_a_flow_that_trusts_the_end_of_its_remote_log_is_found() -> None:
    """Goal: lost copies are missing at the end, where foreign records have taken their place."""
    arguments = ("--seeds", "3:22", "--hazards", "unclean", "--variant", "trusting")
    done = run_simulation("--flows", *arguments, "--until-failed")
    assert "FAILED: Violation" in done.stdout, done.stdout + done.stderr


def test_a_flow_that_does_not_notice_lost_plans_is_found() -> None:
    """Goal: a partition whose plan was lost with `__mirror_offsets` does not begin anew.

    Also if the topic's partitions have lost records, and others are left in them.
    """
    for hazard, seeds in (("forgotten", "3:5"), ("cut", "1:4")):
        arguments = ("--seeds", seeds, "--hazards", hazard, "--variant", "credulous")
        done = run_simulation("--flows", *arguments, "--until-failed")
        assert "FAILED: Violation" in done.stdout, done.stdout + done.stderr
