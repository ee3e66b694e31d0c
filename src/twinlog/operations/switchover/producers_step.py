"""The step PRODUCERS of a switchover: denials are made, checked, and removed on the way back."""

from collections.abc import Collection, Sequence
from contextlib import suppress

from twinlog.kafka.acls import Acl
from twinlog.kafka.client.tasks import to_its_end
from twinlog.kafka.errors import TwinlogError
from twinlog.operations.switchover.course import Course, at
from twinlog.operations.switchover.denials import Outlook, ProducerDenials
from twinlog.operations.switchover.observation import Observation
from twinlog.operations.switchover.records import (
    AS_IT_WAS,
    FAILED_OVER,
    DenialsStay,
    Producers,
    ProducersNotStopped,
    Step,
    SwitchoverFailed,
)
from twinlog.text import few


class ProducersStep:
    """What a switchover does about the source's producers, and its way back.

    Args:
        denials: makes and removes denials; None: ACLs are left alone.
        topics: the topics' names.
        course: the switchover's.
        observation: what both clusters hold.
    """

    def __init__(
        self,
        denials: ProducerDenials | None,
        topics: Sequence[str],
        course: Course,
        observation: Observation,
    ) -> None:
        self._denials = denials
        self._topics = topics
        self._course = course
        self._observation = observation
        self._denied_acls: frozenset[Acl] | None = None  # the denials to make, once that has begun
        self._outlook = Outlook()

    @property
    def denied(self) -> frozenset[Acl]:
        """The denials that were made."""
        return self._denied_acls or frozenset()

    async def deny(self, producers: Producers) -> None:
        """Deny producers WRITE, once the operator has confirmed that the others are stopped.

        Raises:
            ProducersNotStopped: they are not.
            SwitchoverFailed: a right is missing, or a cluster is unreachable.
        """
        self._course.begin(Step.PRODUCERS)
        outlook = await self._confirmed(producers)
        with at(Step.PRODUCERS):
            if self._denials is not None and outlook.denials:
                self._denied_acls, self._outlook = outlook.denials, outlook
                self._course.denied = True
                await to_its_end(self._denials.deny(outlook.denials))
        says = (
            [f"confirmed as stopped by the operator ({outlook.beyond})"] if outlook.beyond else []
        )
        if outlook.denials:
            says.insert(0, f"denied WRITE: {_principals(outlook.denials)}")
        self._course.done(Step.PRODUCERS, "; ".join(says))

    async def _confirmed(self, producers: Producers) -> Outlook:
        """What can be denied, once the operator has confirmed that the other producers are stopped.

        An answer may take long. So this is looked at again after it, and asked again if it is not
        what was confirmed.
        """
        confirmed: Outlook | None = None
        names = self._topics
        while True:
            outlook = Outlook(beyond="ACLs are not changed")
            if self._denials is not None:
                with at(Step.PRODUCERS):
                    outlook = await self._denials.outlook()
            if outlook.forbidden and producers.source_config is not None:
                raise SwitchoverFailed(Step.PRODUCERS, outlook.beyond, gone_back=True)
            if not outlook.beyond or producers.stopped or outlook == confirmed:
                return outlook
            if producers.ask is None:
                raise ProducersNotStopped(names, outlook.beyond)
            if not await producers.ask(names, outlook.beyond):
                raise ProducersNotStopped(names, "they are not stopped")
            confirmed = outlook

    async def check(self) -> None:
        """Check that the denials exist, and that the destination has none of them.

        Raises:
            SwitchoverFailed: they do not, or it has some.
        """
        if self._denials is None or self._denied_acls is None:
            return
        denials = self._denials
        shortfall = await denials.missing(self._outlook)
        if shortfall.denials:
            text = f"no longer denied WRITE: {_principals(shortfall.denials)}"
            raise SwitchoverFailed(Step.FAILOVER, text, gone_back=True)
        if shortfall.beyond:
            text = f"since producers were denied WRITE, {shortfall.beyond}"
            raise SwitchoverFailed(Step.FAILOVER, text, gone_back=True)
        if strayed := await denials.strayed():
            raise SwitchoverFailed(
                Step.FAILOVER,
                "denied on the destination, too, until the next check of ACLs: "
                f"{_principals(strayed)}",
                gone_back=True,
            )

    async def deny_again(self) -> str:
        """Make the denials that are missing after the failover.

        Another switchover that has ended may have removed them since the last check.

        Returns:
            Why some may still be missing; empty: none is.
        """
        if self._denials is None or not self._denied_acls:
            return ""
        return await _deny_again(self._denials, self._denied_acls)

    async def go_back(self, error: BaseException) -> None:
        """Remove this switchover's denials, unless the failover has begun.

        Denials that it found are left: another switchover may be running that has made them.

        Raises:
            DenialsStay: they cannot be removed, or others are left.
        """
        step = self._course.step
        failing_over = step is Step.FAILOVER
        if isinstance(error, SwitchoverFailed):
            step, failing_over = error.step, not error.gone_back
        asks = isinstance(error, ProducersNotStopped)
        if failing_over or asks or self._denials is None:
            return
        if self._denied_acls is None and not await _has_any(self._denials):
            return
        with suppress(SwitchoverFailed):  # that it cannot be reported keeps no denial
            self._course.begin(Step.PRODUCERS, "removing the denials")
        why = error.message if isinstance(error, TwinlogError) else "interrupted"
        if isinstance(error, SwitchoverFailed):
            why = error.why
        try:
            removed_topics, allowed_acls = await self._observation.removed(), frozenset[Acl]()
            if not removed_topics:
                allowed_acls = await self._denials.take_back()
                # Another switchover may have seen the denials before, and removed its topics.
                removed_topics = await self._observation.removed() if allowed_acls else []
            leftovers = await self._denials.made()
        except TwinlogError as failure:
            text = f"{why}; cannot remove the denials: {failure}"
            raise DenialsStay(step, text) from error
        if removed_topics:
            producers_state = "stay denied"
            if allowed_acls:
                producers_state = "could write for a moment, and are denied WRITE again"
                if trouble := await _deny_again(self._denials, allowed_acls):
                    producers_state = (
                        "may be able to write, because they could not be denied WRITE again: "
                        f"{trouble}"
                    )
            text = (
                f"{why}; producers {producers_state}; another switchover or command has removed "
                "topics "
                f"from the mirror: {few(removed_topics)}"
            )
            raise DenialsStay(step, text, FAILED_OVER) from error
        if leftovers:
            text = (
                f"{why}; denials of another switchover, which may be running, are kept: "
                f"{_principals(leftovers)}"
            )
            raise DenialsStay(step, text) from error
        self._denied_acls, self._course.denied = None, False
        if isinstance(error, SwitchoverFailed):
            error.hint = AS_IT_WAS
        self._course.done(Step.PRODUCERS, f"may write again: {_principals(allowed_acls)}")


async def _has_any(denials: ProducerDenials) -> bool:
    """Whether a switchover that was killed has left denials."""
    try:
        return bool(await denials.made())
    except TwinlogError:
        return False  # the error that ended the switchover is reported


async def _deny_again(denials: ProducerDenials, acls: frozenset[Acl]) -> str:
    """Make those that are missing, after topics were removed; return why some may still be missing.

    Of two switchovers of the same topics, one removes its denials and then checks whether topics
    were removed, the other removes topics and then calls this. So one of the two sees the other.
    """
    try:
        await denials.deny(acls)
    except TwinlogError as error:
        return str(error)
    return ""


def _principals(acls: Collection[Acl]) -> str:
    return few(sorted({acl.principal for acl in acls}))
