"""Which topics of the source compact: whether a skipped offset is explained by compaction.

The destination's `cleanup.policy` does not tell. It stays as it was when the topic was added, or an
operator has set it. So the source is asked: for the topics that are compacted on the destination as
soon as they are mirrored, for others when a question about them comes up. The policy may change, so
it is asked again every `MAX_AGE_S`.

Nothing waits for an answer. While none is known, compaction explains nothing: skipped offsets are
read twice (jumps.py), and a comparison that depends on it is repeated (proof.py).
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from twinlog.engines.ports import SourcePort
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition

log = logging.getLogger(__name__)

MAX_AGE_S: Final = 30.0
"""Seconds after which the source is asked again."""


class SourcePolicies:
    """What the source has answered about the policies of its topics.

    Args:
        partitions: those that are read.
        backoff: the pause in seconds after a number of failures.
    """

    def __init__(
        self,
        partitions: Collection[TopicPartition] | Collection[MirrorPartition],
        backoff: Callable[[int], float],
    ) -> None:
        self._partitions = partitions
        self._backoff = backoff
        self._answers: dict[str, bool | None] = {}
        self._topics: set[str] = set()
        self._forgotten: set[str] = set()  # since the last request was sent
        self._wake = asyncio.Event()

    def compacts(self, topic: str) -> bool | None:
        """Whether the source's topic compacts; None if that is not known, or not yet."""
        self.ask(topic)
        return self._answers.get(topic)

    def ask(self, topic: str) -> None:
        """Ask the source about this topic soon, if it was not asked before."""
        if topic not in self._topics:
            self._topics.add(topic)
            self._wake.set()

    def forget(self, topic: str) -> None:
        """Drop the answer about a topic, which may have been recreated since."""
        self._topics.discard(topic)
        self._forgotten.add(topic)
        self._answers.pop(topic, None)

    async def run(self, source: SourcePort) -> None:
        """Ask about new topics at once, and about all of them again every `MAX_AGE_S`."""
        failures = 0
        while True:
            self._wake.clear()
            self._topics &= {key.topic for key in self._partitions}
            try:
                if self._topics:
                    self._forgotten.clear()
                    answers = await source.compacts(set(self._topics))
                    # An answer that was on its way when a topic was forgotten is about the former.
                    self._answers = {t: a for t, a in answers.items() if t not in self._forgotten}
                failures = 0
            except TwinlogError as error:
                failures += 1
                self._answers = {}  # an old answer would explain what the source has no say in
                log.info(
                    "cleanup.policy of the source's topics cannot be read now; retrying: %s", error
                )
                await asyncio.sleep(self._backoff(failures))
                continue
            try:
                async with asyncio.timeout(MAX_AGE_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
