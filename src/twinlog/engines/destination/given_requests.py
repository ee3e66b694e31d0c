"""Append requests that were given to a destination and have no answer yet.

When an engine ends, those that still wait to be sent have to be withdrawn: another lane may own
their partitions by the time they would be sent. To cancel the tasks that wait for the answers is
not enough, as a task that has not begun yet does not know its request.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeAlias

from twinlog.engines.ports import Appended
from twinlog.kafka.types import TopicPartition

Answers: TypeAlias = Mapping[TopicPartition, Appended]


class GivenRequests:
    """The requests of a sender."""

    def __init__(self) -> None:
        self._answers: set[asyncio.Future[Answers]] = set()

    def add(self, request: Awaitable[Answers]) -> asyncio.Future[Answers]:
        """Keep a request until `end`; return its answer."""
        answer = asyncio.ensure_future(request)
        self._answers.add(answer)
        return answer

    def end(self, answer: Awaitable[Answers]) -> None:
        """Forget a request: it was answered, or an error has ended it."""
        self._answers.difference_update((answer,))

    def withdraw(self) -> None:
        """Cancel all; those that were sent already are not called back."""
        for answer in list(self._answers):
            answer.cancel()
