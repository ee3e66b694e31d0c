"""The syncs of sync/registry.py, compared: findings about the difference of each `ReportedSync`.

A sync that cannot compare within its time is a finding, and the others are still compared.
Configurations and ACLs have reasons of their own; any other sync has `NOT_SYNCED` and
`SYNC_UNREADABLE`.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from twinlog.kafka.acls import Acl
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.operations.readiness.facts import AclFacts
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.operations.readiness.subject import Subject
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.acls import AclDifference, AclSync
from twinlog.sync.base import Host, ReportedSync, Sync, SyncContext
from twinlog.sync.configs import ConfigDifference, ConfigSync
from twinlog.sync.registry import create_syncs


class _Reasons(NamedTuple):
    differs: Reason
    unreadable: Reason


_REASONS: Final[Mapping[type[Sync[Any]], _Reasons]] = {
    ConfigSync: _Reasons(Reason.CONFIGURATION, Reason.CONFIGURATION_UNREADABLE),
    AclSync: _Reasons(Reason.ACL, Reason.ACL_UNREADABLE),
}
_OTHER: Final = _Reasons(Reason.NOT_SYNCED, Reason.SYNC_UNREADABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFacts:
    """What the syncs have found."""

    unknown: tuple[Finding, ...]
    """Findings about syncs that could not compare."""
    differences: Mapping[type[Sync[Any]], Any]
    """The differences of the others."""
    findings: Mapping[str | None, tuple[Finding, ...]]
    """Findings about these, by topic; None: they concern no single topic."""

    def configurations(self, topic: str) -> tuple[str, ...]:
        """Names of a topic's configurations that are not what they have to be."""
        difference = self.differences.get(ConfigSync, {}).get(topic)
        return difference.names if isinstance(difference, ConfigDifference) else ()

    @property
    def acls(self) -> AclFacts:
        """What has to be changed in ACLs; nothing if they do not follow."""
        difference = self.differences.get(AclSync)
        if not isinstance(difference, AclDifference):
            return AclFacts()
        return AclFacts(
            to_make=_named(difference.changes.make),
            to_remove=_named(difference.changes.remove),
            denying=_named(difference.denying),
            missed=_named(difference.missed),
            withheld=_named(difference.withheld),
        )


async def compare_syncs(context: SyncContext, part_s: float | None) -> SyncFacts:
    """Compare what follows the mirror's topics.

    Args:
        context: the mirror.
        part_s: seconds for each sync; None: it takes what it takes.
    """
    problems: list[Finding] = []
    differences: dict[type[Sync[Any]], Any] = {}
    findings: defaultdict[str | None, list[Finding]] = defaultdict(list)
    names = {topic.topic for topic in context.topics}
    for sync in _reported(context.destination):
        serves = sync.serves(context.mirror.kind)
        if not serves or not sync.concerns(context.settings, context.topics):
            continue
        reasons = _REASONS.get(type(sync), _OTHER)
        try:
            async with bounded(part_s):
                difference = await sync.compare(context)
        except TwinlogError as error:
            problems.append(Finding(reasons.unreadable, f"{sync.name}: {error}"))
            continue
        differences[type(sync)] = difference
        for remark in sync.describe(difference):
            reason = reasons.unreadable if remark.unreadable else reasons.differs
            topic = remark.topic if remark.topic in names else None
            findings[topic].append(Finding(reason, remark.text))
    return SyncFacts(
        unknown=tuple(problems),
        differences=differences,
        findings={topic: tuple(topic_findings) for topic, topic_findings in findings.items()},
    )


async def not_compared(destination: KafkaCluster, subject: Subject) -> tuple[Finding, ...]:
    """Findings about what cannot be compared while the source does not answer."""
    if not subject.topics:
        return ()
    return tuple(
        [
            Finding(
                _REASONS.get(type(sync), _OTHER).unreadable,
                f"{sync.name}: not compared, because the source does not respond",
            )
            for sync in _reported(destination)
            if sync.serves(subject.mirror.kind)
            and sync.concerns(subject.settings, subject.topics)
            and await sync.follows(destination)
        ]
    )


@asynccontextmanager
async def bounded(seconds: float | None) -> AsyncIterator[None]:
    """Limit the time of one part of a survey.

    Raises:
        Retriable: it takes too long.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise Retriable(f"no response within {seconds:g} s") from error


def _reported(destination: KafkaCluster) -> list[ReportedSync[Any]]:
    syncs = create_syncs(Host(destination, MirrorStore(destination)))
    return [sync for sync in syncs if isinstance(sync, ReportedSync)]


def _named(acls: Iterable[Acl]) -> tuple[str, ...]:
    return tuple(map(str, sorted(acls)))
