"""Twin of twinlog.kafka.log_reader: what a caller is told of answers, without brokers."""

from collections.abc import Collection, Mapping

import pytest
from batch_builders import batch, record

from model.loop import VirtualLoop, run
from twinlog.kafka.client.metadata import EMPTY, Metadata
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Disconnected, Retriable, UserError
from twinlog.kafka.log_reader import READ_TRIES, ClusterLogs
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.requests.fetch_requests import failed
from twinlog.kafka.types import TopicPartition

KEY = TopicPartition("t", 0)
EMPTY_ANSWER = failed(0)
RECORDS = Fetched(0, 9, 9, 0, (), memoryview(batch([record(4)])))


class Scripted(ClusterLogs):
    """A cluster that gives these answers in order, and the last one again and again."""

    def __init__(self, *answers: Fetched | Exception) -> None:
        self._answers = list(answers)
        self.reads = self.refreshed = 0

    async def refresh(self, topics: Collection[str]) -> Metadata:
        assert topics == {KEY.topic}
        self.refreshed += 1
        return EMPTY

    async def read(
        self, offsets: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        del partition_max_bytes
        assert offsets == {KEY: 4}
        self.reads += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {KEY: answer}


def read(logs: Scripted) -> list[int]:
    """Return the sizes of the answers up to the first one with records."""
    sizes: list[int] = []

    async def main(_: VirtualLoop) -> None:
        async for answer in logs.answers(KEY, 4):
            sizes.append(len(answer.records))
            if sizes[-1]:
                break

    run(main)
    return sizes


def test_a_read_is_repeated_after_an_empty_answer() -> None:
    """Goal: only the caller knows what an answer without records means; it is asked for again."""
    assert read(Scripted(EMPTY_ANSWER, EMPTY_ANSWER, RECORDS)) == [0, 0, len(RECORDS.records)]


def test_repeated_empty_answers_end_with_an_error() -> None:
    """Goal: a range that was not read is never taken for an empty one, and the wait is bounded."""
    logs = Scripted(EMPTY_ANSWER)
    with pytest.raises(Retriable, match="cannot read the log at offset 4"):
        read(logs)
    assert logs.reads == READ_TRIES


def test_a_read_is_retried_while_the_leader_is_unreachable() -> None:
    """Goal: errors that pass are not answers; from the second one on the leaders are refreshed."""
    moved = failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    logs = Scripted(Disconnected("lost"), moved, moved, RECORDS)
    assert read(logs) == [len(RECORDS.records)]
    assert logs.refreshed == 2


def test_a_missing_right_is_reported_at_once() -> None:
    """Goal: the user has to act; more requests would not help."""
    logs = Scripted(failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(UserError, match="TOPIC_AUTHORIZATION_FAILED"):
        read(logs)
    assert logs.reads == 1
