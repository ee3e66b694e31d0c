"""Why a client cannot start, as its message says."""

import re
from collections.abc import Callable

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable


async def start_error(make: Callable[[], KafkaCluster], *expected: str) -> str:
    """Return why a client cannot start; it names all of these causes (regular expressions).

    On a busy machine a short time shows only that it is over: then there is more time.
    """
    for seconds in (1.0, 10.0, 100.0):
        try:
            await make().start(seconds)
        except Retriable as error:
            message = str(error)
        else:
            raise AssertionError("it has started")
        if all(re.search(cause, message) for cause in expected):
            break
    else:
        raise AssertionError(f"expected {expected}: {message}")
    assert "\n" not in message
    return message
