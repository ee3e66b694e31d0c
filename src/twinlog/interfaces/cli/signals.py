"""SIGINT and SIGTERM, for commands that run until they are ended.

An event loop handles signals in order, but a command imports and reads files before it has one. A
signal that arrives there would end the process with a traceback, or with the signal's own status.
So it is noted, and handled by the loop as soon as there is one.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Stop = Callable[[], None]

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def end_signals() -> Iterator[Callable[[Stop], None]]:
    """Note these signals from now on.

    Yields:
        A function to call in the event loop: its argument is called at each signal from then on,
        and at once if a signal was noted.
    """
    noted = False

    def note(*_: object) -> None:
        nonlocal noted
        noted = True

    def call_at_signals(stop: Stop) -> None:
        loop = asyncio.get_running_loop()
        for number in _NUMBERS:
            loop.add_signal_handler(number, stop)
        if noted:
            stop()

    former = {number: signal.signal(number, note) for number in _NUMBERS}
    try:
        yield call_at_signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
