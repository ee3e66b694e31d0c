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
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, contextmanager
from typing import Final

from twinlog.kafka.acls import Acl
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.requests.partitions import DEBUGGING, Isolation, OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.changes import Topics, remove_topics
from twinlog.lifecycle.creation import connected_source
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.operations.readiness.facts import GroupFacts, SourceLog, Standing
from twinlog.operations.readiness.group_survey import group_facts, uncommitted
from twinlog.operations.readiness.reasons import OF_SYNCS, Finding, Reason
from twinlog.operations.readiness.subject import Subject, subject_of
from twinlog.operations.readiness.survey import (
    destination_ends,
    holders,
    survey_live,
)
from twinlog.operations.readiness.verdict import Readiness, judge
from twinlog.operations.switchover.denials import Outlook, ProducerDenials, acl_source
from twinlog.operations.switchover.readable import Readable
from twinlog.operations.switchover.records import (
    AS_IT_WAS,
    FAILED_OVER,
    DenialsStay,
    LeftBehind,
    Producers,
    ProducersNotStopped,
    Progress,
    Step,
    SwitchedOver,
    SwitchoverFailed,
    Tell,
)
from twinlog.operations.switchover.silence import Silence, SourceEnd
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.group_offsets import GroupSync
from twinlog.text import SHOWN, few

LOOK_S: Final = 0.5
"""Seconds between two checks while a step waits."""
TELL_S: Final = 2.0
"""Seconds between two progress reports while a step waits."""
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


def standing_against(found: Readiness) -> list[Finding]:
    """The findings that block the start of a switchover."""
    return [one for one in found.all_findings() if one.reason not in PASSING]


def harmless(found: Readiness) -> list[Finding]:
    """The findings that are reported and passed over: the switchover ends none of them."""
    return [one for one in found.all_findings() if one.reason in HARMLESS]


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
        SwitchoverFailed: it failed; the error says whether anything was changed.
    """
    async with AsyncExitStack() as stack:
        with _at(Step.READINESS):
            subject = await subject_of(destination, mirror, topics)
            grants = destination.config.grants
            source = await stack.enter_async_context(connected_source(subject.mirror, grants))
        denials = None
        if producers.deny:
            with _at(Step.PRODUCERS):
                altering = acl_source(subject.mirror, producers.source_config, grants)
                denials = ProducerDenials(
                    await stack.enter_async_context(altering),
                    *(destination, subject.mirror.name, subject.names),
                )
        steps = _Switchover(source, destination, subject, denials, timeout_s=timeout_s, tell=tell)
        try:
            await steps.ready()
            await steps.deny_producers(producers)
            ends = await steps.silence(silence_s)
            await steps.no_lag(ends)
            await steps.groups(ends)
            return await steps.fail_over(ends)
        except BaseException as error:
            await steps.go_back(error)
            raise


@contextmanager
def _at(step: Step, *, gone_back: bool = True) -> Iterator[None]:
    try:
        yield
    except SwitchoverFailed:
        raise
    except TwinlogError as error:
        raise SwitchoverFailed(step, str(error), gone_back=gone_back) from error


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
        self._partitions = subject.partitions
        self._denials = denials
        self._denied: frozenset[Acl] | None = None  # the denials to make, once that has begun
        self._outlook = Outlook()
        self._passed_over: frozenset[str] = frozenset()  # reported topics that are not mirrored
        self._told: set[Finding] = set()
        self._step = Step.READINESS
        self._readable = Readable.of(source)
        self._timeout_s = timeout_s
        self._tell = tell

    async def ready(self) -> None:
        self._begin(Step.READINESS)
        with _at(Step.READINESS):
            found = await self._judge(self._subject)
        if against := standing_against(found):
            text = "; ".join(one.text for one in against)
            raise SwitchoverFailed(Step.READINESS, text, gone_back=True)
        self._passed_over = frozenset(found.not_mirrored)
        self._tell_harmless(Step.READINESS, found)
        names = self._subject.names
        self._done(Step.READINESS, f"{len(names)} topic(s): {few(names)}")

    async def deny_producers(self, producers: Producers) -> None:
        self._begin(Step.PRODUCERS)
        found = await self._confirmed(producers)
        with _at(Step.PRODUCERS):
            if self._denials is not None and found.denials:
                self._denied, self._outlook = found.denials, found
                await _to_its_end(self._denials.deny(found.denials))
        says = [f"the operator says that they are stopped ({found.beyond})"] if found.beyond else []
        if found.denials:
            says.insert(0, f"denied WRITE: {_principals(found.denials)}")
        self._done(Step.PRODUCERS, "; ".join(says))

    async def _confirmed(self, producers: Producers) -> Outlook:
        """What can be denied, once the operator has confirmed that the other producers are stopped.

        An answer may take long. So this is looked at again after it, and asked again if it is not
        what was confirmed.
        """
        confirmed: Outlook | None = None
        names = self._subject.names
        while True:
            found = Outlook(beyond="ACLs are left alone")
            if self._denials is not None:
                with _at(Step.PRODUCERS):
                    found = await self._denials.outlook()
            if found.forbidden and producers.source_config is not None:
                raise SwitchoverFailed(Step.PRODUCERS, found.beyond, gone_back=True)
            if not found.beyond or producers.stopped or found == confirmed:
                return found
            if producers.ask is None:
                raise ProducersNotStopped(names, found.beyond)
            if not await producers.ask(names, found.beyond):
                raise ProducersNotStopped(names, "they are not stopped")
            confirmed = found

    async def go_back(self, error: BaseException) -> None:
        """Remove this switchover's denials, unless the failover has begun.

        Denials that it found are left: another switchover may be running that has made them.

        Raises:
            DenialsStay: they cannot be removed, or others are left.
        """
        step, begun = self._step, self._step is Step.FAILOVER
        if isinstance(error, SwitchoverFailed):
            step, begun = error.step, not error.gone_back
        asks = isinstance(error, ProducersNotStopped)
        if begun or asks or self._denials is None:
            return
        if self._denied is None and not await _has_any(self._denials):
            return
        self._begin(Step.PRODUCERS, "taking back what was denied")
        why = error.message if isinstance(error, TwinlogError) else "interrupted"
        if isinstance(error, SwitchoverFailed):
            why = error.why
        try:
            removed, allowed = await self._removed(), frozenset[Acl]()
            if not removed:
                allowed = await self._denials.take_back()
                # Another switchover may have seen the denials before, and removed its topics.
                removed = await self._removed() if allowed else []
            left = await self._denials.made()
        except TwinlogError as refused:
            text = f"{why}; what was denied cannot be taken back: {refused}"
            raise DenialsStay(step, text) from error
        if removed:
            denied = "stay denied"
            if allowed:
                denied = "could write for a moment, and are denied again"
                if trouble := await _deny_again(self._denials, allowed):
                    denied = (
                        f"may be able to write, since a deny ACL cannot exclude them: {trouble}"
                    )
            text = (
                f"{why}; producers {denied}; {few(removed)} were removed from the mirror "
                f"meanwhile, by another switchover or command"
            )
            raise DenialsStay(step, text, FAILED_OVER) from error
        if left:
            text = (
                f"{why}; denials of another switchover, which may be running, stay: "
                f"{_principals(left)}"
            )
            raise DenialsStay(step, text) from error
        self._denied = None
        if isinstance(error, SwitchoverFailed):
            error.hint = AS_IT_WAS
        self._done(Step.PRODUCERS, f"may write again: {_principals(allowed)}")

    async def silence(self, seconds: float) -> Mapping[TopicPartition, int]:
        """Wait for silence; return the source's log ends."""
        silence = Silence(seconds)

        async def look() -> str:
            waiting = silence.look(await self._source_ends(), asyncio.get_running_loop().time())
            held = await holders(self._source, silence.open[:SHOWN])
            names = list(dict.fromkeys(name for some in held.values() for name in some))
            return f"{waiting} ({few(names)})" if names else waiting

        self._begin(Step.SILENCE)
        await self._until(Step.SILENCE, look)
        self._done(Step.SILENCE, f"nothing was written to the source for {seconds:g} s")
        return silence.ends

    async def no_lag(self, ends: Mapping[TopicPartition, int]) -> None:
        async def look() -> str:
            ours = await destination_ends(self._destination, list(ends), self._subject.translation)
            if unknown := [one for one in ends if one not in ours]:
                return f"the destination does not say where it ends: {few(unknown)}"
            if beyond := [one for one in ends if ours[one] > ends[one]]:
                raise SwitchoverFailed(
                    Step.LAG,
                    f"the destination ends beyond where the source was silent, which was written "
                    f"to again: {few(beyond)}",
                    gone_back=True,
                )
            behind = [one for one in ends if ours[one] < ends[one]]
            lag = sum(ends[one] - ours[one] for one in behind)
            return f"{lag} offsets of {few(behind)}" if behind else ""

        self._begin(Step.LAG)
        await self._until(Step.LAG, look)
        self._done(Step.LAG, f"{len(ends)} partition(s) end where the source's do")

    async def groups(self, ends: Mapping[TopicPartition, int]) -> None:
        include = self._subject.settings.groups_include
        mirrored = {topic.topic: topic.topic_id for topic in self._subject.topics}
        topic_ids = {one: mirrored[one.topic] for one in ends}
        served: set[str] = set()

        async def look() -> str:
            facts = await self._group_facts(ends)
            served.update(group.group for group in facts)
            live = [group for group in facts if not group.idle_on_source]
            if reading := {group.group for group in live if await self._reads(group, ends)}:
                return f"still reading on the source: {few(sorted(reading))}"
            pending = [one for one in facts if one.pending]
            if not pending:
                early = await self._uncommitted(ends)
                return f"still reading, and nothing committed yet: {few(early)}" if early else ""
            sync = GroupSync(self._destination, remembers=False)
            await sync.sync(
                *(self._source, self._subject.mirror.name, include, topic_ids),
                translation=self._subject.translation,
            )
            held = {one.group for one in pending if not one.idle_on_destination}
            return f"with members on the destination: {few(sorted(held))}" if held else "copying"

        self._begin(Step.GROUPS)
        await self._until(Step.GROUPS, look)
        self._done(Step.GROUPS, f"{len(served)} group(s): [{few(sorted(served))}]")

    async def fail_over(self, ends: Mapping[TopicPartition, int]) -> SwitchedOver:
        for _ in range(LOOKS):
            with _at(Step.FAILOVER):
                behind = await self._last_look(ends)
            if not behind:
                break
            await self.groups(ends)
        else:
            text = f"no longer ready: {few(behind)}"
            raise SwitchoverFailed(Step.FAILOVER, text, gone_back=True)
        self._begin(Step.FAILOVER)
        await self._remove()
        await self._until(Step.FAILOVER, self._not_stopped, gone_back=False)
        self._done(Step.FAILOVER, f"{len(self._partitions)} partition(s) are STOPPED")
        not_denied = ""
        if self._denials is not None and self._denied:
            # Another switchover that has ended may have removed them since the last check.
            not_denied = await _deny_again(self._denials, self._denied)
        left_behind = await self._left_behind(ends)
        return SwitchedOver(
            mirror=self._subject.mirror.name,
            topics=tuple(self._subject.names),
            left_behind=left_behind,
            denied=self._denied or frozenset(),
            not_denied=not_denied,
            groups_behind="" if left_behind is None else await self._groups_behind(ends),
        )

    # ---- what the steps are made of ------------------------------------------------------------

    async def _judge(self, subject: Subject) -> Readiness:
        ends = await destination_ends(self._destination, subject.partitions, subject.translation)
        return judge(await survey_live(self._source, self._destination, subject, ends))

    async def _group_facts(self, ends: Mapping[TopicPartition, int]) -> list[GroupFacts]:
        """The groups whose offsets are copied; no offset may be part of an open transaction."""
        logs = {one: SourceLog(0, end, end) for one, end in ends.items()}
        include = self._subject.settings.groups_include
        by_topic, _ = await group_facts(
            *(self._source, self._destination, self._subject.mirror.name, include, logs),
            stable=True,
            translation=self._subject.translation,
        )
        return [group for groups in by_topic.values() for group in groups]

    async def _groups_behind(self, ends: Mapping[TopicPartition, int]) -> str:
        """Groups that have committed since the last check, or whose copy was overwritten.

        They are reported and not copied: on the destination they may have begun to read.
        """
        try:
            facts = await self._group_facts(ends)
        except TwinlogError as error:
            return f"whether all groups' offsets are as on the source is not known: {error}"
        behind = sorted({one.group for one in facts if one.pending})
        return f"offsets are not as on the source: {few(behind)}" if behind else ""

    async def _reads(self, group: GroupFacts, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether anything is left on the source for a group to read."""
        for begin in group.unread_from:
            if await self._readable.between(begin, ends[begin.partition]):
                return True
        return False

    async def _uncommitted(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Groups whose members have read a partition, and may still make their first commit for it.

        Raises:
            Retriable: it cannot be determined now, or offsets are part of an open transaction.
            ProtocolError, UserError: it cannot be determined.
        """
        found = await uncommitted(self._source, self._subject.settings.groups_include, ends)
        asked = sorted(set().union(*found.values()))
        starts = await list_offsets(self._source, asked, OffsetSpec.EARLIEST) if asked else {}
        readable = set[TopicPartition]()
        for one in asked:
            start = starts[one]
            if isinstance(start, Refusal):
                raise Retriable(f"the source does not say where {one} begins: {start}")
            if await self._readable.between(Standing(one, start.offset), ends[one]):
                readable.add(one)
        return [
            f"{group} ({few(left)})"
            for group, some in found.items()
            if (left := sorted(some & readable))
        ]

    async def _last_look(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Check that everything is as the steps have left it; the last point that can be undone.

        Returns:
            What has to be waited for once more: groups that have committed again.
        """
        subject = await subject_of(
            self._destination, self._subject.mirror.name, self._subject.names
        )
        if changed := _changed(self._subject.topics, subject.topics):
            raise SwitchoverFailed(
                Step.FAILOVER,
                f"other partitions, or recreated, since the switchover began: {few(changed)}",
                gone_back=True,
            )
        found = await self._judge(subject)
        if new := sorted(found.not_mirrored.keys() - self._passed_over):
            raise SwitchoverFailed(
                Step.FAILOVER,
                f"the source has got topics that the mirror stands for: {few(new)}",
                gone_back=True,
            )
        against = [one for one in found.all_findings() if one.reason not in HARMLESS]
        if any(one.reason not in _COPIED_AGAIN for one in against):
            text = "; ".join(one.text for one in against)
            raise SwitchoverFailed(Step.FAILOVER, f"no longer ready: {text}", gone_back=True)
        self._tell_harmless(Step.GROUPS, found)  # this can still be undone
        logs = await self._source_ends()
        if moved := [one for one, log in logs.items() if log.log_end != ends.get(one)]:
            raise SwitchoverFailed(
                Step.FAILOVER, f"written to on the source again: {few(moved)}", gone_back=True
            )
        if self._denials is not None and self._denied is not None:
            await self._still_denied(self._denials)
        return [one.text for one in against]

    def _tell_harmless(self, step: Step, found: Readiness) -> None:
        """Report findings that are passed over and were not reported yet."""
        for one in harmless(found):
            if one not in self._told:
                self._told.add(one)
                self._say(step, f"passed over: {one.text}")

    async def _still_denied(self, denials: ProducerDenials) -> None:
        """Check that the denials exist, and that the destination has none of them."""
        missing = await denials.missing(self._outlook)
        if missing.denials:
            text = f"not denied WRITE any more: {_principals(missing.denials)}"
            raise SwitchoverFailed(Step.FAILOVER, text, gone_back=True)
        if missing.beyond:
            text = f"since producers were denied WRITE, {missing.beyond}"
            raise SwitchoverFailed(Step.FAILOVER, text, gone_back=True)
        if strayed := await denials.strayed():
            raise SwitchoverFailed(
                Step.FAILOVER,
                f"denied on the destination, too, until ACLs are next looked at: "
                f"{_principals(strayed)}",
                gone_back=True,
            )

    async def _remove(self) -> None:
        name = self._subject.mirror.name
        try:
            expression = self._subject.expression
            await remove_topics(self._destination, name, self._subject.names, expression)
        except TwinlogError as error:
            with _at(Step.FAILOVER, gone_back=False):
                snapshot = await MirrorStore(self._destination).snapshot()
            stopped = self._stopped(snapshot)
            if not stopped:
                raise SwitchoverFailed(Step.FAILOVER, str(error), gone_back=True) from error
            # All are removed at once: if some are not, another command has removed the rest.
            if not stopped.issuperset(self._subject.names):
                text = f"{error}; of these topics are removed already: {few(sorted(stopped))}"
                raise DenialsStay(Step.FAILOVER, text, FAILED_OVER) from error

    async def _not_stopped(self) -> str:
        store = MirrorStore(self._destination)
        # A topic may have grown after the last check, and before it was removed.
        removed = self._of_mirror(await store.snapshot())
        states = await store.states()
        grown = {
            TopicPartition(topic.topic, index)
            for topic in removed
            for index in range(topic.partitions)
        }
        self._partitions = sorted(grown.union(self._partitions))
        name = self._subject.mirror.name
        left = [
            one
            for one in self._partitions
            if states.state(MirrorPartition(name, *one)) is not State.STOPPED
        ]
        return f"not STOPPED yet: {few(left)}" if left else ""

    async def _removed(self) -> list[str]:
        """Topics that another command has failed over."""
        return sorted(self._stopped(await MirrorStore(self._destination).snapshot()))

    def _stopped(self, snapshot: Snapshot) -> set[str]:
        return {one.topic for one in self._of_mirror(snapshot) if one.wanted is Wanted.STOPPED}

    def _of_mirror(self, snapshot: Snapshot) -> list[MirrorTopic]:
        """The switchover's topics with their present desired state."""
        name, names = self._subject.mirror.name, self._subject.names
        return [one for one in snapshot.topics_of(name) if one.topic in names]

    async def _left_behind(
        self, ends: Mapping[TopicPartition, int]
    ) -> tuple[LeftBehind, ...] | None:
        name = self._subject.mirror.name
        try:
            epochs = (await MirrorStore(self._destination).states()).epochs
            logs = await self._source_ends()
        except TwinlogError:
            return None
        found = []
        for one, log in logs.items():
            last = epochs.get(MirrorPartition(name, *one))
            mirrored = ends.get(one, 0)
            if last is not None and last.end >= 0:
                mirrored = self._subject.translation.offsets(one).to_source(last.end)
            if log.log_end > mirrored:
                found.append(LeftBehind(one, mirrored, log.log_end))
        return tuple(found)

    async def _source_ends(self) -> dict[TopicPartition, SourceEnd]:
        """The source's log ends: the leaders' own, including what followers do not have yet.

        A last stable offset is at most the high watermark. If it equals the log end, no transaction
        is open, and every in-sync follower has everything.

        Raises:
            Retriable: one cannot be read.
        """
        asked = self._partitions
        stable, ends = await asyncio.gather(
            list_offsets(self._source, asked, isolation=Isolation.READ_COMMITTED),
            list_offsets(self._source, asked, replica_id=DEBUGGING),
        )
        logs = {}
        for one in asked:
            last_stable, log_end = stable[one], ends[one]
            if isinstance(last_stable, Refusal) or isinstance(log_end, Refusal):
                raise Retriable(f"the source does not say where {one} ends")
            logs[one] = SourceEnd(log_end.offset, last_stable.offset)
        return logs

    async def _until(
        self, step: Step, look: Callable[[], Awaitable[str]], *, gone_back: bool = True
    ) -> None:
        """Check until nothing is waited for.

        Raises:
            SwitchoverFailed: it takes too long, or fails.
        """
        clock = asyncio.get_running_loop().time
        deadline, told = clock() + self._timeout_s, clock()
        while True:
            with _at(step, gone_back=gone_back):
                waiting = await _look(look)
            if not waiting:
                return
            if clock() > deadline:
                raise SwitchoverFailed(
                    step, f"not within {self._timeout_s:g} s: {waiting}", gone_back=gone_back
                )
            if clock() - told >= TELL_S:
                told = clock()
                self._say(step, waiting)
            await asyncio.sleep(LOOK_S)

    def _begin(self, step: Step, text: str = "") -> None:
        self._step = step
        self._say(step, text or step.value)

    def _done(self, step: Step, text: str) -> None:
        self._say(step, text, done=True)

    def _say(self, step: Step, text: str, *, done: bool = False) -> None:
        self._tell(Progress(step, done, text, self._denied is not None))


async def _has_any(denials: ProducerDenials) -> bool:
    """Whether a switchover that was killed has left denials."""
    try:
        return bool(await denials.made())
    except TwinlogError:
        return False  # the error that ended the switchover is reported


async def _deny_again(denials: ProducerDenials, denied: frozenset[Acl]) -> str:
    """Make those that are missing, after topics were removed; return why some may still be missing.

    Of two switchovers of the same topics, one removes its denials and then checks whether topics
    were removed, the other removes topics and then calls this. So one of the two sees the other.
    """
    try:
        await denials.deny(denied)
    except TwinlogError as error:
        return str(error)
    return ""


def _changed(before: Collection[MirrorTopic], now: Collection[MirrorTopic]) -> list[str]:
    """The topics whose partitions are not those that the switchover has checked."""
    known = {topic.topic: (topic.topic_id, topic.partitions) for topic in before}
    return [one.topic for one in now if known[one.topic] != (one.topic_id, one.partitions)]


async def _to_its_end(action: Coroutine[None, None, None]) -> None:
    """Await an action that a cancellation does not cut off, so that its requests are answered."""
    task = asyncio.ensure_future(action)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _look(look: Callable[[], Awaitable[str]]) -> str:
    """What is waited for; an unreachable cluster is waited for, too."""
    try:
        return await look()
    except Retriable as error:
        return str(error)


def _principals(acls: Collection[Acl]) -> str:
    return few(sorted({acl.principal for acl in acls}))
