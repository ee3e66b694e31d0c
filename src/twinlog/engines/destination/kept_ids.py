"""Keeps transactional ids in use, so that their coordinators do not forget them.

A coordinator forgets an id that is not used for `transactional.id.expiration.ms`, and then gives it
another producer id, whose fence does not exclude what was sent under the former one. Neither data
nor a written marker is a use of an id: only requests to its coordinator are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from twinlog.kafka.errors import TwinlogError

log = logging.getLogger(__name__)

_TIMES: Final = 4
"""How often ids are used in the time after which their coordinator forgets them."""
_LOOK_S: Final = 60.0
"""The longest wait, as brokers may report a shorter time later."""


async def keep_ids(
    name: str, expiration_ms: Callable[[], int], use: Callable[[], Awaitable[None]]
) -> None:
    """Use ids again and again, until cancelled. A failure is logged, and followed by the next use.

    Args:
        name: whose ids they are, for messages.
        expiration_ms: after how long a coordinator forgets an id, as far as is known now.
        use: uses each of the ids.
    """
    now = asyncio.get_running_loop().time
    used_at = now()
    while True:
        while (wait := used_at + expiration_ms() / 1000 / _TIMES - now()) > 0:
            await asyncio.sleep(min(wait, _LOOK_S))
        used_at = now()
        try:
            await use()
        except TwinlogError as error:
            log.warning("%s: its ids cannot be kept just now: %s", name, error)
