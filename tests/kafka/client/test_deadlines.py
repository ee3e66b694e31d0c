"""Twin of twinlog.kafka.client.deadlines: when it looks for what is late."""

import asyncio

from model.loop import VirtualLoop
from twinlog.kafka.client.deadlines import Deadlines


class Watched:
    """Deadlines of requests that are met, or not."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.open: dict[str, float] = {}
        self.looks: list[float] = []
        self.late: dict[str, float] = {}
        self.deadlines = Deadlines(loop, self.look)

    def add(self, name: str, seconds: float) -> None:
        self.open[name] = self.loop.time() + seconds
        self.deadlines.watch(self.open[name])

    def look(self) -> None:
        self.looks.append(self.loop.time())
        for name, deadline in list(self.open.items()):
            if deadline > self.loop.time():
                self.deadlines.watch(deadline)
            else:
                self.late[name] = self.loop.time()
                del self.open[name]


def after(seconds: float, *steps: tuple[float, str, float]) -> Watched:
    """Add deadlines at these times; a deadline of 0 seconds meets the one of this name."""
    loop = VirtualLoop()
    watched = Watched(loop)

    async def body() -> None:
        for at, name, limit in steps:
            await asyncio.sleep(at - loop.time())
            if limit:
                watched.add(name, limit)
            else:
                del watched.open[name]
        await asyncio.sleep(seconds - loop.time())
        watched.deadlines.cancel()

    loop.run_until_complete(body())
    loop.close()
    return watched


def test_each_deadline_is_kept() -> None:
    """Goal: at its own time, whatever the order in which they are watched."""
    watched = after(100, (0, "long", 30), (1, "short", 5), (2, "longer", 60))
    assert watched.late == {"short": 6, "long": 30, "longer": 62}


def test_deadlines_that_are_met_cost_one_timer() -> None:
    """Goal: one look in a timeout, however many requests there are."""
    steps = [(at / 10, f"{at}", limit) for at in range(0, 900, 2) for limit in (30, 0)]
    watched = after(95, *steps)
    assert watched.late == {}
    assert len(watched.looks) <= 4


def test_a_cancelled_timer_does_not_expire() -> None:
    """Goal: a closed connection leaves no timer behind."""
    loop = VirtualLoop()
    watched = Watched(loop)

    async def body() -> None:
        watched.add("one", 5)
        watched.deadlines.cancel()
        await asyncio.sleep(10)

    loop.run_until_complete(body())
    loop.close()
    assert watched.looks == []
