"""Sources that are unreachable for minutes, several at once, while another one stays.

Mirrors of several sources go into one destination, in one node. A source becomes unreachable in one
of two ways: its only broker is killed, and restarted later; or the broker is paused (SIGSTOP), so
that it accepts connections and answers nothing, like a host that is cut off. The mirror of the
source that stays has to go on all the time: faults of the other sources must not affect it.
"""

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from chaos_harness import Ordeal

from twinlog.local.stage import Stage

AT_ONCE: Final = 5
"""The most sources that are unreachable at the same time; one more stays."""
_LOOK_SECONDS: Final = 5.0


@contextmanager
def sources(directory: Path, seed: str, rate: float, count: int) -> Iterator[list[Ordeal]]:
    """Start mirrors of `count` sources, each with a load at `rate`; the first one has the node.

    Each mirror makes progress before the next one begins, so that no backlog accumulates.
    """
    with ExitStack() as stack:
        found: list[Ordeal] = []
        for at in range(count):
            stage = stack.enter_context(Stage(directory / f"{at}"))
            stage.start_source()
            if found:
                stage.destination = found[0].stage.destination
            else:
                stage.start_destination()
            found.append(Ordeal(stage, f"{seed}/{at}", f"source-{at}-"))
        found[0].stage.start_node("node", "--lanes", "2")
        for one in found:
            one.begin(rate)
            one.await_all()
        yield found


def be_gone(mirrors: Sequence[Ordeal], rng: random.Random, count: int, seconds: float) -> float:
    """Make `count` sources unreachable for a time and restore them; each has to resume.

    Returns:
        The longest time without progress of a mirror whose source stayed, in seconds.
    """
    gone = rng.sample(mirrors, count)
    (stays, *_) = (mirror for mirror in mirrors if mirror not in gone)
    stands_still = {one: rng.random() < 0.5 for one in gone}
    for one in gone:
        one.await_moment()
        _leave(one, stands_still=stands_still[one])
    end = time.monotonic() + seconds
    longest = 0.0
    while time.monotonic() < end:
        longest = max(longest, stays.await_all())
        time.sleep(_LOOK_SECONDS)
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(_return, one, stands_still=stands_still[one]) for one in gone]:
            done.result()
    return longest


def _leave(mirror: Ordeal, *, stands_still: bool) -> None:
    source = mirror.stage.source
    (broker,) = source.brokers
    mirror.say(f"its source {'stands still' if stands_still else 'is killed'}")
    if stands_still:
        source.pause(broker.node_id)
    else:
        source.kill(broker.node_id)


def _return(mirror: Ordeal, *, stands_still: bool) -> None:
    source = mirror.stage.source
    (broker,) = source.brokers
    if stands_still:
        source.resume(broker.node_id)
    else:
        source.start_broker(broker.node_id)
    mirror.await_resumed(time.monotonic())
