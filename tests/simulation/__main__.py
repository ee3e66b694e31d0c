"""Run simulations: `python -m tests.simulation [--seed N | --seeds FIRST:LAST] [--variant NAME]`.

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
    from simulation.scenario import HAZARDS, Hazards, simulate  # noqa: PLC0415 (the path is set above)
    from simulation.variants import VARIANTS  # noqa: PLC0415

    # A log of 20,000 batches makes each garbage collection slow: fewer collections save a third.
    gc.set_threshold(200_000, 20, 100)
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:20", help="FIRST:LAST, LAST not included")
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="none")
    parser.add_argument("--hazards", nargs="*", choices=HAZARDS, default=[])
    parser.add_argument("--until-failed", action="store_true", help="stop at the first failure")
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL + 1)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if options.seed is None else [options.seed]
    hazards = Hazards(**dict.fromkeys(options.hazards, True))
    failed = []
    for seed in seeds:
        began = time.monotonic()
        try:
            outcome = simulate(seed, options.variant, hazards)
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
        _say(f"failed: {failed}; replay one with: make sim SEED={failed[0]}")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _again() -> list[str]:
    return ["-m", "tests.simulation", *sys.argv[1:]]


if __name__ == "__main__":
    sys.exit(main())
