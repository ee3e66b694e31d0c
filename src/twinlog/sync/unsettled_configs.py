"""Reports configurations that do not follow, since the source's brokers do not agree for long.

A change is known to one broker earlier than to another, for milliseconds as a rule. So that is
logged only if it lasts: a broker may be cut off from the controllers, or from this node.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from twinlog.sync.base import Moved, drop
from twinlog.text import few

log = logging.getLogger(__name__)

UNSETTLED_S: Final = 120.0
"""Seconds for which brokers may disagree before it is logged."""


class UnsettledConfigs:
    """Remembers, for each mirror, since when configurations are not known for certain.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, dict[str, float]] = {}  # by mirror and reason
        self._told: dict[str, set[str]] = {}

    def forget(self, moved: Moved) -> None:
        """Begin anew: another node may have served the mirrors meanwhile."""
        drop(moved, self._since, self._told)

    def waits(self, mirror: str) -> bool:
        """Whether the last check has found brokers that disagree."""
        return bool(self._since.get(mirror))

    def note(self, mirror: str, topics: Mapping[str, Collection[str]]) -> int:
        """Note what a check has found; return for how many reasons that lasts for too long.

        Each of these is logged once, and again if it ends and comes back.

        Args:
            mirror: its name.
            topics: the topics that it concerns, by reason; all that the mirror has now.
        """
        now, before = self._clock(), self._since.get(mirror, {})
        since = {reason: before.get(reason, now) for reason in topics}
        lasting = {reason for reason, at in since.items() if now - at >= UNSETTLED_S}
        for reason in sorted(lasting - self._told.get(mirror, set())):
            log.warning(
                "mirror %s: %s, for %.0f s: until all brokers report one value, no copy keeps less "
                "than now: %s; check that all brokers of the source follow its controllers and are "
                "reachable from this node",
                mirror,
                reason,
                now - since[reason],
                few(sorted(topics[reason])),
            )
        self._since[mirror], self._told[mirror] = since, lasting
        return len(lasting)


def by_reason(reasons: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """The topics by reason, of the reasons by topic."""
    topics: dict[str, list[str]] = {}
    for topic, texts in reasons.items():
        for text in texts:
            topics.setdefault(text, []).append(topic)
    return topics
