"""Pauses between two checks of whether markers are in the log, up to a deadline.

EndTxn is answered before its markers are written, usually milliseconds before.
"""

import asyncio
from typing import Final

from twinlog.kafka.backoff import Backoff

_PAUSES: Final = Backoff(initial=0.001, maximum=0.1, jitter=0.0)
"""One shard polls for its own markers: there are no others to keep apart from by jitter."""


class MarkerPolls:
    """The polls for the markers of one transaction, or of one round of them.

    Args:
        deadline_s: how long to poll.
    """

    def __init__(self, deadline_s: float) -> None:
        self._now = asyncio.get_running_loop().time
        self._deadline = self._now() + deadline_s
        self._polls = 0

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._now() >= self._deadline

    async def pause(self) -> None:
        """Wait until the next poll."""
        self._polls += 1
        await asyncio.sleep(_PAUSES.delay(self._polls))
