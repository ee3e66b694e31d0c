"""Run simulations: `python -m tests.simulation [--seed N | --seeds FIRST:LAST] [--variant NAME]`.

With `--flows`, of MirrorMaker 2 flows instead of the exact engine.

Python's hash seed decides the order of sets of names, so it has to be fixed too: the program
restarts itself with a fixed hash seed.
"""

import argparse
import gc
import logging
import os
import sys
import time
import traceback
from pathlib import Path

_HASH_SEED = "0"


def main() -> int:
    """Simulate; the exit status is 1 if a seed failed."""
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        environment = {**os.environ, "PYTHONHASHSEED": _HASH_SEED}
        os.execve(sys.executable, [sys.executable, *_again()], environment)
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "support")]
    from simulation.flow_variants import FLOW_VARIANTS  # noqa: PLC0415
    from simulation.flows import FLOW_HAZARDS, FlowHazards, simulate_flows  # noqa: PLC0415
    from simulation.scenario import HAZARDS, Hazards, simulate  # noqa: PLC0415 (the path is set above)
    from simulation.variants import VARIANTS  # noqa: PLC0415

    # A log of 20,000 batches makes each garbage collection slow: fewer collections save a third.
    gc.set_threshold(200_000, 20, 100)
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:20", help="FIRST:LAST, LAST not included")
    parser.add_argument("--flows", action="store_true", help="simulate flows")
    parser.add_argument("--variant", choices=sorted({*VARIANTS, *FLOW_VARIANTS}), default="none")
    parser.add_argument("--hazards", nargs="*", choices=HAZARDS + FLOW_HAZARDS, default=[])
    parser.add_argument("--until-failed", action="store_true", help="stop at the first failure")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL + 1)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if options.seed is None else [options.seed]
    chosen = dict.fromkeys(options.hazards, True)
    failed = []
    for seed in seeds:
        began = time.monotonic()
        try:
            if options.flows:
                outcome = simulate_flows(seed, options.variant, FlowHazards(**chosen))
            else:
                outcome = simulate(seed, options.variant, Hazards(**chosen))
        except Exception as error:
            failed.append(seed)
            if options.seed is not None:
                traceback.print_exc()
            _say(f"seed {seed}: FAILED: {type(error).__name__}: {error}")
            if options.until_failed:
                break
        else:
            _say(f"{outcome} in {time.monotonic() - began:.2f} s")
    if failed:
        _say(f"failed: {failed}; replay one with: {_replay(failed[0], options.flows)}")
    return 1 if failed else 0


def _replay(seed: int, flows: bool) -> str:
    return f"make sim SEED={seed}{' FLOWS=1' if flows else ''}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _again() -> list[str]:
    return ["-m", "tests.simulation", *sys.argv[1:]]


if __name__ == "__main__":
    sys.exit(main())
