"""Sources that are gone for minutes, several at once, while another one stays.

Mirrors of several sources go into one destination, in one node. A source is gone in one of two
ways: its only broker is killed, and started again; or it stands still (SIGSTOP), so that it takes
connections and answers nothing, as a host that is cut off. The mirror of the one that stays has to
go on all the time: what the others suffer it must not feel.
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
"""Sources that are gone at the same time, at most; one more stays."""
_LOOK_SECONDS: Final = 5.0


@contextmanager
def sources(directory: Path, seed: str, rate: float, count: int) -> Iterator[list[Ordeal]]:
    """Mirrors of so many sources, each with a load at a rate; the first one has the node.

    Each goes on before the next one begins: what has gathered would have to be caught up with.
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
    """So many of the sources are gone for a time and come back; each has to resume.

    Returns:
        The longest that the mirror of a source that stayed was without news, in seconds.
    """
    gone = rng.sample(mirrors, count)
    (stays, *_) = (one for one in mirrors if one not in gone)
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
