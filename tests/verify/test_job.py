"""What a task of `verify` asks at its end, without brokers."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.verify.job import check_topic

READ = UUID(int=1)


@pytest.mark.parametrize(
    ("shown", "text"),
    [(UUID(int=2), "t was recreated in the meantime"), (None, "t was deleted in the meantime")],
)
def test_a_log_that_is_not_there_any_more_was_not_seen(shown: UUID | None, text: str) -> None:
    """Goal: a broker that does not show a topic proves nothing about the one that was read."""
    with pytest.raises(Retriable, match=text):
        asyncio.run(check_topic(cluster(shown), "t", READ))


def test_the_topic_that_was_read_is_still_there() -> None:
    asyncio.run(check_topic(cluster(READ), "t", READ))


def cluster(topic_id: UUID | None) -> Any:
    """A cluster whose broker shows the topic with this id, or not at all."""

    async def refresh(names: list[str]) -> object:
        shown = {} if topic_id is None else {n: SimpleNamespace(topic_id=topic_id) for n in names}
        return SimpleNamespace(topics=shown)

    return SimpleNamespace(name="source", refresh=refresh)
