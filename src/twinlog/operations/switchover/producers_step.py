"""The step PRODUCERS of a switchover: denials are made, checked, and removed on the way back."""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress

from twinlog.kafka.acls import Acl
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
        self._denied: frozenset[Acl] | None = None  # the denials to make, once that has begun
        self._outlook = Outlook()

    @property
    def denied(self) -> frozenset[Acl]:
        """The denials that were made."""
        return self._denied or frozenset()

    async def deny(self, producers: Producers) -> None:
        """Deny producers WRITE, once the operator has confirmed that the others are stopped.

        Raises:
            ProducersNotStopped: they are not.
            SwitchoverFailed: a right is missing, or a cluster is unreachable.
        """
        self._course.begin(Step.PRODUCERS)
        found = await self._confirmed(producers)
        with at(Step.PRODUCERS):
            if self._denials is not None and found.denials:
                self._denied, self._outlook = found.denials, found
                self._course.denied = True
                await _to_its_end(self._denials.deny(found.denials))
        says = [f"confirmed as stopped by the operator ({found.beyond})"] if found.beyond else []
        if found.denials:
            says.insert(0, f"denied WRITE: {_principals(found.denials)}")
        self._course.done(Step.PRODUCERS, "; ".join(says))

    async def _confirmed(self, producers: Producers) -> Outlook:
        """What can be denied, once the operator has confirmed that the other producers are stopped.

        An answer may take long. So this is looked at again after it, and asked again if it is not
        what was confirmed.
        """
        confirmed: Outlook | None = None
        names = self._topics
        while True:
            found = Outlook(beyond="ACLs are not changed")
            if self._denials is not None:
                with at(Step.PRODUCERS):
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

    async def check(self) -> None:
        """Check that the denials exist, and that the destination has none of them.

        Raises:
            SwitchoverFailed: they do not, or it has some.
        """
        if self._denials is None or self._denied is None:
            return
        denials = self._denials
        missing = await denials.missing(self._outlook)
        if missing.denials:
            text = f"no longer denied WRITE: {_principals(missing.denials)}"
            raise SwitchoverFailed(Step.FAILOVER, text, gone_back=True)
        if missing.beyond:
            text = f"since producers were denied WRITE, {missing.beyond}"
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
        if self._denials is None or not self._denied:
            return ""
        return await _deny_again(self._denials, self._denied)

    async def go_back(self, error: BaseException) -> None:
        """Remove this switchover's denials, unless the failover has begun.

        Denials that it found are left: another switchover may be running that has made them.

        Raises:
            DenialsStay: they cannot be removed, or others are left.
        """
        step = self._course.step
        begun = step is Step.FAILOVER
        if isinstance(error, SwitchoverFailed):
            step, begun = error.step, not error.gone_back
        asks = isinstance(error, ProducersNotStopped)
        if begun or asks or self._denials is None:
            return
        if self._denied is None and not await _has_any(self._denials):
            return
        with suppress(SwitchoverFailed):  # that it cannot be reported keeps no denial
            self._course.begin(Step.PRODUCERS, "removing the denials")
        why = error.message if isinstance(error, TwinlogError) else "interrupted"
        if isinstance(error, SwitchoverFailed):
            why = error.why
        try:
            removed, allowed = await self._observation.removed(), frozenset[Acl]()
            if not removed:
                allowed = await self._denials.take_back()
                # Another switchover may have seen the denials before, and removed its topics.
                removed = await self._observation.removed() if allowed else []
            left = await self._denials.made()
        except TwinlogError as refused:
            text = f"{why}; cannot remove the denials: {refused}"
            raise DenialsStay(step, text) from error
        if removed:
            denied = "stay denied"
            if allowed:
                denied = "could write for a moment, and are denied WRITE again"
                if trouble := await _deny_again(self._denials, allowed):
                    denied = (
                        "may be able to write, because they could not be denied WRITE again: "
                        f"{trouble}"
                    )
            text = (
                f"{why}; producers {denied}; another switchover or command has removed topics "
                f"from the mirror: {few(removed)}"
            )
            raise DenialsStay(step, text, FAILED_OVER) from error
        if left:
            text = (
                f"{why}; denials of another switchover, which may be running, are kept: "
                f"{_principals(left)}"
            )
            raise DenialsStay(step, text) from error
        self._denied, self._course.denied = None, False
        if isinstance(error, SwitchoverFailed):
            error.hint = AS_IT_WAS
        self._course.done(Step.PRODUCERS, f"may write again: {_principals(allowed)}")


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


async def _to_its_end(action: Coroutine[None, None, None]) -> None:
    """Await an action that a cancellation does not cut off, so that its requests are answered."""
    task = asyncio.ensure_future(action)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _principals(acls: Collection[Acl]) -> str:
    return few(sorted({acl.principal for acl in acls}))
