"""The planned failover, which loses nothing: `twinlog switchover`.

    step        done when                                                         can be undone
    ----------  ----------------------------------------------------------------  -------------
    READINESS   no finding blocks a failover, except those that the steps below   yes
                end
    PRODUCERS   the source's producers are denied WRITE, if it has an             yes
                authorizer (denials.py); the operator has stopped the others
    SILENCE     the source's log ends have not moved for some seconds, and no     yes
                transaction is open
    LAG         each partition of the destination ends where the source's does,   yes
                as read from both
    GROUPS      no group can commit anything new on the source (it has no         yes
                members, or nothing is left for it to read in any partition
                that they have, and no transaction with its offsets is open),
                and all offsets are copied
    FAILOVER    a last check has confirmed all of this; the topics are removed    no
                from the mirror, and their partitions STOPPED

Before FAILOVER nothing is changed except the source's ACLs, and group offsets on the destination,
which follow anyway. So to undo a switchover is to remove the denials: mirroring continues, and
producers may write to the source again.

Between the last check and the end of mirroring, a producer that is neither denied nor stopped may
still write, and a consumer that starts just then may commit. Such records and commits are found
afterwards, and reported. A consumer that is no member of its group (`assign`) is known by its
commits only: the operator has to stop it.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError, UserError
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.changes import Topics, remove_topics
from twinlog.lifecycle.creation import connected_source
from twinlog.mirror.settings import FLOW_KINDS
from twinlog.operations.readiness.reasons import OF_SYNCS, Finding, Reason
from twinlog.operations.readiness.subject import Subject, subject_of
from twinlog.operations.readiness.survey import destination_ends, holders
from twinlog.operations.readiness.verdict import Readiness
from twinlog.operations.switchover.course import Course, at
from twinlog.operations.switchover.denials import ProducerDenials, acl_source
from twinlog.operations.switchover.observation import Observation
from twinlog.operations.switchover.producers_step import ProducersStep
from twinlog.operations.switchover.records import (
    FAILED_OVER,
    DenialsStay,
    Producers,
    Step,
    SwitchedOver,
    SwitchoverFailed,
    Tell,
)
from twinlog.operations.switchover.silence import Silence
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.group_selection import named_groups
from twinlog.text import SHOWN, few

log = logging.getLogger(__name__)

LOOKS: Final = 3
"""Last checks at most, while groups commit past markers once more, and lose nothing by it."""

HARMLESS: Final = OF_SYNCS | {
    Reason.EXTRA_PARTITIONS,
    Reason.GROUP_NOT_COPIED,
    Reason.GROUP_DELETED,
    Reason.NOT_MIRRORED,
    Reason.FOREIGN_MEMBER,
    Reason.COMPACTION_MISSED,
    Reason.BEGINS_LATER,
}
"""Reasons that lose no record, and that a switchover does not end."""
_COPIED_AGAIN: Final = frozenset({Reason.GROUP_BEHIND, Reason.GROUP_REWOUND})
PASSING: Final = HARMLESS | {
    Reason.LAG,
    Reason.OPEN_TRANSACTION,
    Reason.UNREPLICATED,
    Reason.PURGED,
    Reason.GROUP_BEHIND,
    Reason.GROUP_AHEAD,
    Reason.GROUP_REWOUND,
}
"""Reasons that do not block the start of a switchover: harmless ones, and those that end while it
waits."""


def standing_against(readiness: Readiness) -> list[Finding]:
    """The findings that block the start of a switchover."""
    return [finding for finding in readiness.all_findings() if finding.reason not in PASSING]


def harmless(readiness: Readiness) -> list[Finding]:
    """The findings that are reported and passed over: the switchover ends none of them."""
    return [finding for finding in readiness.all_findings() if finding.reason in HARMLESS]


def refuse_flow(mirror: Mirror) -> None:
    """Refuse a flow: its remote topics belong to the target's clients already.

    Raises:
        UserError: the mirror is a flow.
    """
    if mirror.kind in FLOW_KINDS:
        raise UserError(
            f"{mirror.name} is a flow, and a flow is not switched over",
            hint="stop producers and consumers on the source, wait until twinlog readiness reports "
            "no lag, and start the consumers on the target, where sync.group.offsets.enabled, "
            "RemoteClusterUtils.translateOffsets or twinlog flows translate has their offsets",
        )


async def switch_over(
    destination: KafkaCluster,
    mirror: str,
    topics: Topics,
    *,
    producers: Producers,
    silence_s: float,
    timeout_s: float,
    tell: Tell,
) -> SwitchedOver:
    """Switch topics over, once their producers on the source are denied WRITE, or stopped.

    If it ends before FAILOVER, also by a cancellation, it removes what it has denied.

    Args:
        destination: the mirror's cluster.
        mirror: the mirror's name.
        topics: a name or otherwise a regular expression, or names.
        producers: what to do about the source's producers.
        silence_s: seconds for which the source's log ends must not have moved.
        timeout_s: seconds that each step may take.
        tell: receives the progress of each step, also before FAILOVER's first change.

    Raises:
        ProducersNotStopped: producers may write, and cannot be denied it; nothing was changed.
        DenialsStay: it failed, and its denials could not be removed.
        SwitchoverFailed: it failed, for whatever reason; the error says whether anything was
            changed.
    """
    async with AsyncExitStack() as stack:
        with at(Step.READINESS):
            subject = await subject_of(destination, mirror, topics)
            refuse_flow(subject.mirror)
            grants = destination.config.grants
            source = await stack.enter_async_context(connected_source(subject.mirror, grants))
        denials = None
        if producers.deny:
            with at(Step.PRODUCERS):
                altering = acl_source(subject.mirror, producers.source_config, grants)
                denials = ProducerDenials(
                    await stack.enter_async_context(altering),
                    *(destination, subject.mirror.name, subject.names),
                )
        steps = _Switchover(source, destination, subject, denials, timeout_s=timeout_s, tell=tell)
        try:
            await steps.ready()
            await steps.producers.deny(producers)
            ends = await steps.silence(silence_s)
            await steps.no_lag(ends)
            await steps.groups(ends)
            return await steps.fail_over(ends)
        except BaseException as error:
            outcome = steps.ended(error)
            await steps.producers.go_back(outcome)
            if outcome is error:
                raise
            raise outcome from error


class _Switchover:
    """The steps, and the state that they share."""

    def __init__(
        self,
        source: KafkaCluster,
        destination: KafkaCluster,
        subject: Subject,
        denials: ProducerDenials | None,
        *,
        timeout_s: float,
        tell: Tell,
    ) -> None:
        self._source = source
        self._destination = destination
        self._subject = subject
        self._passed_over: frozenset[str] = frozenset()  # reported topics that are not mirrored
        self._reported: set[Finding] = set()
        self._course = Course(timeout_s=timeout_s, tell=tell)
        self._observation = Observation(source, destination, subject)
        self.producers = ProducersStep(denials, subject.names, self._course, self._observation)

    def ended(self, error: BaseException) -> BaseException:
        """What has ended the switchover: a SwitchoverFailed, or a cancellation."""
        if isinstance(error, SwitchoverFailed) or not isinstance(error, Exception):
            return error
        if not isinstance(error, TwinlogError):
            log.error("unexpected error in a switchover", exc_info=error)
        step = self._course.step
        text = str(error) or type(error).__name__
        return SwitchoverFailed(step, text, gone_back=step.can_go_back)

    async def ready(self) -> None:
        self._course.begin(Step.READINESS)
        with at(Step.READINESS):
            readiness = await self._observation.judge(self._subject)
        if against := standing_against(readiness):
            text = "; ".join(finding.text for finding in against)
            raise SwitchoverFailed(Step.READINESS, text, gone_back=True)
        self._passed_over = frozenset(readiness.not_mirrored)
        self._tell_harmless(Step.READINESS, readiness)
        names = self._subject.names
        self._course.done(Step.READINESS, f"{len(names)} topic(s): {few(names)}")

    async def silence(self, seconds: float) -> Mapping[TopicPartition, int]:
        """Wait for silence; return the source's log ends."""
        silence = Silence(seconds)

        async def look() -> str:
            problem = silence.look(
                await self._observation.source_ends(), asyncio.get_running_loop().time()
            )
            producers = await holders(self._source, silence.open[:SHOWN])
            names = list(dict.fromkeys(name for holders in producers.values() for name in holders))
            return f"{problem} ({few(names)})" if names else problem

        self._course.begin(Step.SILENCE)
        await self._course.until(Step.SILENCE, look)
        self._course.done(Step.SILENCE, f"nothing was written to the source for {seconds:g} s")
        return silence.ends

    async def no_lag(self, ends: Mapping[TopicPartition, int]) -> None:
        async def look() -> str:
            log_ends = await destination_ends(
                self._destination, list(ends), self._subject.translation
            )
            if unreadable := [partition for partition in ends if partition not in log_ends]:
                return f"cannot read the log end offsets on the destination: {few(unreadable)}"
            if beyond := [partition for partition in ends if log_ends[partition] > ends[partition]]:
                raise SwitchoverFailed(
                    Step.LAG,
                    "the destination ends above the source's end offset of step SILENCE, so that "
                    f"one of them was written to: {few(beyond)}",
                    gone_back=True,
                )
            lagging = [partition for partition in ends if log_ends[partition] < ends[partition]]
            lag = sum(ends[partition] - log_ends[partition] for partition in lagging)
            return f"{lag} offsets of {few(lagging)}" if lagging else ""

        self._course.begin(Step.LAG)
        await self._course.until(Step.LAG, look)
        self._course.done(Step.LAG, f"{len(ends)} partition(s) end at the source's offsets")

    async def groups(self, ends: Mapping[TopicPartition, int]) -> None:
        include = named_groups(self._subject.settings.groups_include)
        mirrored = {topic.topic: topic.topic_id for topic in self._subject.topics}
        topic_ids = {partition: mirrored[partition.topic] for partition in ends}
        served: set[str] = set()

        async def look() -> str:
            facts = await self._observation.group_facts(ends)
            served.update(group.group for group in facts)
            live = [group for group in facts if not group.idle_on_source]
            if reading := {
                group.group for group in live if await self._observation.reads(group, ends)
            }:
                return f"still reading on the source: {few(sorted(reading))}"
            pending = [group for group in facts if group.pending]
            if not pending:
                readers = await self._observation.uncommitted(ends)
                return f"still reading, without a commit yet: {few(readers)}" if readers else ""
            sync = GroupSync(self._destination, remembers=False)
            await sync.sync(
                *(self._source, self._subject.mirror.name, include, topic_ids),
                translation=self._subject.translation,
            )
            members = {group.group for group in pending if not group.idle_on_destination}
            return (
                f"with members on the destination: {few(sorted(members))}" if members else "copying"
            )

        self._course.begin(Step.GROUPS)
        await self._course.until(Step.GROUPS, look)
        self._course.done(Step.GROUPS, f"{len(served)} group(s): [{few(sorted(served))}]")

    async def fail_over(self, ends: Mapping[TopicPartition, int]) -> SwitchedOver:
        for _ in range(LOOKS):
            with at(Step.FAILOVER):
                pending = await self._last_look(ends)
            if not pending:
                break
            await self.groups(ends)
        else:
            text = f"no longer ready: {few(pending)}"
            raise SwitchoverFailed(Step.FAILOVER, text, gone_back=True)
        self._course.begin(Step.FAILOVER)
        await self._remove()
        await self._course.until(Step.FAILOVER, self._observation.not_stopped, gone_back=False)
        self._course.done(
            Step.FAILOVER, f"{len(self._observation.partitions)} partition(s) are STOPPED"
        )
        not_denied = await self.producers.deny_again()
        left_behind = await self._observation.left_behind(ends)
        return SwitchedOver(
            mirror=self._subject.mirror.name,
            topics=tuple(self._subject.names),
            left_behind=left_behind,
            denied=self.producers.denied,
            not_denied=not_denied,
            groups_behind=""
            if left_behind is None
            else await self._observation.groups_behind(ends),
        )

    async def _last_look(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Check that everything is as the steps have left it; the last point that can be undone.

        Returns:
            What has to be waited for once more: groups that have committed again.
        """
        # By the operator's expression, not by the names: topics may match it that are new since.
        subject = await subject_of(
            self._destination, self._subject.mirror.name, self._subject.expression
        )
        if other_topics := sorted(set(subject.names) ^ set(self._subject.names)):
            raise SwitchoverFailed(
                Step.FAILOVER,
                f"added to the mirror, or removed from it, since the switchover began: "
                f"{few(other_topics)}",
                gone_back=True,
            )
        if changed_topics := _changed(self._subject.topics, subject.topics):
            raise SwitchoverFailed(
                Step.FAILOVER,
                "recreated, or with other partitions, since the switchover began: "
                f"{few(changed_topics)}",
                gone_back=True,
            )
        readiness = await self._observation.judge(subject)
        if new_topics := sorted(readiness.not_mirrored.keys() - self._passed_over):
            raise SwitchoverFailed(
                Step.FAILOVER,
                f"the source has new topics that match the mirror: {few(new_topics)}",
                gone_back=True,
            )
        against = [
            finding for finding in readiness.all_findings() if finding.reason not in HARMLESS
        ]
        if any(finding.reason not in _COPIED_AGAIN for finding in against):
            text = "; ".join(finding.text for finding in against)
            raise SwitchoverFailed(Step.FAILOVER, f"no longer ready: {text}", gone_back=True)
        self._tell_harmless(Step.GROUPS, readiness)  # this can still be undone
        logs = await self._observation.source_ends()
        if grown_partitions := [p for p, log in logs.items() if log.log_end != ends.get(p)]:
            raise SwitchoverFailed(
                Step.FAILOVER,
                f"written to on the source again: {few(grown_partitions)}",
                gone_back=True,
            )
        await self.producers.check()
        return [finding.text for finding in against]

    def _tell_harmless(self, step: Step, readiness: Readiness) -> None:
        """Report findings that are passed over and were not reported yet."""
        for finding in harmless(readiness):
            if finding not in self._reported:
                self._reported.add(finding)
                self._course.say(step, f"passed over: {finding.text}")

    async def _remove(self) -> None:
        name = self._subject.mirror.name
        try:
            expression = self._subject.expression
            await remove_topics(self._destination, name, self._subject.names, expression)
        except TwinlogError as error:
            with at(Step.FAILOVER, gone_back=False):
                snapshot = await MirrorStore(self._destination).snapshot()
            removed_topics = self._observation.stopped(snapshot)
            if not removed_topics:
                raise SwitchoverFailed(Step.FAILOVER, str(error), gone_back=True) from error
            # All are removed at once: if some are not, another command has removed the rest.
            if not removed_topics.issuperset(self._subject.names):
                text = f"{error}; topics that are already removed: {few(sorted(removed_topics))}"
                raise DenialsStay(Step.FAILOVER, text, FAILED_OVER) from error


def _changed(checked: Collection[MirrorTopic], current: Collection[MirrorTopic]) -> list[str]:
    """The topics whose partitions are not those that the switchover has checked."""
    identities = {topic.topic: (topic.topic_id, topic.partitions) for topic in checked}
    return [
        topic.topic
        for topic in current
        if identities[topic.topic] != (topic.topic_id, topic.partitions)
    ]
