"""Which ACLs the source no longer has, so that their copies are removed.

**An ACL that one answer does not list is not gone.** A broker that has just started, or a cluster
whose ACLs were lost or are being restored, lists too few. A copy is removed only if

1. two checks, `ABSENT_S` apart, do not list the ACL, and
2. no broker of the source lists it, and each of them lists some ACL: its authorizer has answered
   (or `mirror.acl.empty.source.trusted`).
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from twinlog.kafka.acls import Acl
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.acls import describe_acls_everywhere
from twinlog.sync.base import Moved, drop

log = logging.getLogger(__name__)

ABSENT_S: Final = 10.0
"""Seconds for which the source does not list an ACL before its copy is removed."""
_NONE: Final[frozenset[Acl]] = frozenset()


class MirrorTexts:
    """Logs texts about mirrors, each until another text is logged about the same subject.

    Earlier texts are not kept: the source decides how often a text changes.
    """

    def __init__(self) -> None:
        self.last: dict[tuple[str, str], str] = {}
        """The last text, by mirror and subject."""

    def tell(self, mirror: str, about: str, text: str, level: int = logging.WARNING) -> None:
        """Log a text, unless it is the last one that was logged about this subject."""
        if self.last.get((mirror, about)) != text:
            self.last[mirror, about] = text
            log.log(level, "mirror %s: %s", mirror, text)


class AbsentAcls:
    """Remembers, for each mirror, since when the source does not list an ACL.

    Args:
        texts: where it is logged why copies are kept.
        clock: monotonic seconds.
    """

    def __init__(self, texts: MirrorTexts, clock: Callable[[], float] = time.monotonic) -> None:
        self._texts = texts
        self._clock = clock
        self._since: dict[str, dict[Acl, float]] = {}

    def forget(self, moved: Moved) -> None:
        """Begin anew: another node may have seen the ACLs meanwhile."""
        drop(moved, self._since)

    def waits(self, mirror: str) -> bool:
        """Whether a copy may be removed by the next check."""
        return bool(self._since.get(mirror))

    async def gone(
        self,
        source: KafkaCluster,
        mirror: str,
        absent: frozenset[Acl],
        *,
        advice: str,
        empty_trusted: bool = False,
        copies: Callable[[frozenset[Acl]], frozenset[Acl]] = lambda acls: acls,
    ) -> frozenset[Acl]:
        """Those of the copies that the source does not have any more; see the module.

        Args:
            source: the source.
            mirror: the mirror's name.
            absent: copies of ACLs that the last answer did not list.
            advice: what to do if the source has no ACL on purpose.
            empty_trusted: whether a broker that lists no ACL at all has none.
            copies: the copies of the ACLs that a broker lists.

        Raises:
            Retriable, UserError: a broker of the source is unreachable, or refuses.
        """
        now, before = self._clock(), self._since.get(mirror, {})
        since_times = {acl: before.get(acl, now) for acl in absent}
        self._since[mirror] = since_times
        candidates = frozenset(
            acl for acl in absent if acl in before and now - since_times[acl] >= ABSENT_S
        )
        if not candidates:
            return _NONE
        lists = await describe_acls_everywhere(source)
        silent = [str(node) for node, listing in lists.items() if not listing]
        disabled = None in lists.values()
        if not lists or disabled or (silent and not empty_trusted):
            self._texts.tell(
                mirror,
                "empty",
                f"broker(s) {', '.join(silent)} of the source list no ACL at all: "
                f"{len(candidates)} copied ACL(s) are kept; if the source has none on purpose, "
                f"{advice}",
            )
            return _NONE
        return candidates.difference(*(copies(listing or _NONE) for listing in lists.values()))
