"""A deletion is concluded from all brokers; with brokers: tests/sync/test_refresh.py."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests.topics import absent_everywhere

NONE, UNKNOWN, DENIED = 0, 3, 29


class Brokers:
    """Brokers with an answer for each topic; None: no answer."""

    def __init__(self, *answers: dict[str, int] | None) -> None:
        self._answers = dict(enumerate(answers))
        self.metadata = SimpleNamespace(brokers=self._answers)

    async def call(self, request: Any, *, node: int) -> Any:
        answers = self._answers[node]
        if answers is None:
            raise Retriable("no answer")
        return SimpleNamespace(
            topics=[
                SimpleNamespace(name=topic.name, error_code=answers[topic.name])
                for topic in request.topics
            ]
        )


def absent(*answers: dict[str, int] | None) -> set[str]:
    return asyncio.run(absent_everywhere(Brokers(*answers), {"t", "u"}))  # type: ignore[arg-type]


def test_a_topic_is_absent_only_if_every_broker_reports_so() -> None:
    """A broker that has just started may not know a topic yet."""
    gone = {"t": UNKNOWN, "u": UNKNOWN}
    assert absent(gone, gone) == {"t", "u"}
    assert absent(gone, {"t": NONE, "u": UNKNOWN}) == {"u"}
    assert absent({"t": UNKNOWN, "u": DENIED}) == {"t"}
    assert absent() == set()


def test_a_missing_answer_raises_an_error() -> None:
    with pytest.raises(Retriable):
        absent({"t": UNKNOWN, "u": UNKNOWN}, None)
