"""Brings mirror partitions to their desired states, for all owned state partitions at once.

    open, informed ─► PAUSING, STOPPING written ─► none of these in flight ─► PAUSED written
                                                                          └─► fenced, STOPPED
                                                                              (ownership.py, in
                                                                              the background)
                   ─► RUN partitions run

The states promise this order. A failure of one state partition holds up no other state partition;
its mirror partitions go on as before.

The desired state must be known as of the takeover, or later. A lane that was suspended may be given
a state partition while its desired state is a minute old. Since then the former owner may have
stopped a topic, and users write to it. Mirroring it would append among their records.

The same holds for a STOPPED partition that is wanted again, and perhaps not any more: a command
that removes it once more still sees STOPPED, and deletes the mirror, or gives the topic to another
mirror. So PREPARING is written first, and the desired state is read after it. Commands use the
opposite order: they write the desired state first, and read the states after it
(store/mirrors.py). So one of the two sees the other's write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from random import Random

from twinlog.kafka.errors import TwinlogError
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime.ownership import OwnedStatePartition
from twinlog.runtime.refused_stops import STOP_AGAIN_S
from twinlog.runtime.steps import PartitionStep, next_step
from twinlog.store.config_records import MirrorTopic, Wanted

log = logging.getLogger(__name__)

Mirrored = tuple[MirrorPartition, MirrorTopic]
Steps = dict[PartitionStep, list[Mirrored]]


class Ways:
    """The reconciler of one lane (see the module).

    Args:
        owned: the owned state partitions, kept up to date by the lane.
        targets: the known desired state of the mirror partitions of each state partition.
        catch_up: returns when `targets` includes all that was written before the call.
        disown: stops mirroring all but the given partitions; when it returns, nothing of the
            other partitions is in flight.
        run: mirrors these partitions of a state partition.
        on_change: is called when `go` has more to do.
        random: for jitter.
    """

    def __init__(
        self,
        owned: Mapping[int, OwnedStatePartition],
        *,
        targets: Callable[[], Mapping[int, Sequence[Mirrored]]],
        catch_up: Callable[[], Awaitable[None]],
        disown: Callable[[Collection[MirrorPartition]], Awaitable[None]],
        run: Callable[[OwnedStatePartition, Sequence[Mirrored]], Awaitable[None]],
        on_change: Callable[[], None],
        random: Random,
    ) -> None:
        self._owned = owned
        self._targets = targets
        self._catch_up = catch_up
        self._disown = disown
        self._run = run
        self._on_change = on_change
        self._random = random
        self._to_pause: dict[
            MirrorPartition, OwnedStatePartition
        ] = {}  # as soon as they are not PREPARING any more

    async def go(self) -> None:
        """Run one round.

        Raises:
            TwinlogError: something failed; the first reason.
        """
        troubles: list[TwinlogError] = []
        candidates = self._owned.keys() & self._targets().keys()
        open_numbers = await self._each(candidates, OwnedStatePartition.open, troubles)
        await self._inform(open_numbers, troubles)
        self._to_pause = {}
        targets = self._targets()
        steps = {
            number: self._steps(self._owned[number], targets.get(number, ()))
            for number in open_numbers
            if self._owned[number].informed
        }
        first = {
            PartitionStep.PAUSE: State.PAUSING,
            PartitionStep.STOP: State.STOPPING,
            PartitionStep.FORGO: State.STOPPED,
        }
        active = await self._each(steps, partial(_enter, steps, first), troubles)
        await self._disown(
            {
                name
                for number, by_step in steps.items()
                for step, entries in by_step.items()
                if step is PartitionStep.RUN or number not in active
                for name, _ in entries
            }
        )
        await self._each(
            active, partial(_enter, steps, {PartitionStep.PAUSE: State.PAUSED}), troubles
        )
        for number in active:
            self._stop(self._owned[number], steps[number][PartitionStep.STOP])
        await self._each(steps, partial(self._run_all, steps), troubles)
        if troubles:
            raise troubles[0]

    @property
    def pause_is_due(self) -> bool:
        """Whether a partition that is to be paused is not PREPARING any more."""
        return any(
            owned.reported.state(name) is not State.PREPARING
            for name, owned in self._to_pause.items()
        )

    async def _inform(self, numbers: Collection[int], troubles: list[TwinlogError]) -> None:
        """Make sure that the desired state is known as of the takeover of these."""
        uninformed = [self._owned[number] for number in numbers if not self._owned[number].informed]
        if not uninformed:
            return
        try:
            await self._catch_up()
        except TwinlogError as error:
            troubles.append(error)
        else:
            await self._each(
                [owned.number for owned in uninformed], OwnedStatePartition.inform, troubles
            )

    async def _each(
        self,
        numbers: Iterable[int],
        action: Callable[[OwnedStatePartition], Awaitable[None]],
        troubles: list[TwinlogError],
    ) -> set[int]:
        """Run an action for these state partitions concurrently; return those where it worked."""
        ordered = sorted(numbers)
        results = await asyncio.gather(
            *(action(self._owned[number]) for number in ordered), return_exceptions=True
        )
        for result in results:
            if isinstance(result, TwinlogError):
                troubles.append(result)
            elif result is not None:
                raise result
        return {number for number, result in zip(ordered, results, strict=True) if result is None}

    def _steps(self, owned: OwnedStatePartition, targets: Iterable[Mirrored]) -> Steps:
        by_step: Steps = {step: [] for step in PartitionStep}
        for name, topic in targets:
            step = next_step(topic.wanted, owned.reported.state(name))
            if owned.reported.unread(name):
                step = PartitionStep.REST
            by_step[step].append((name, topic))
            if step is PartitionStep.RUN and topic.wanted is Wanted.PAUSED:
                self._to_pause[name] = owned
        return by_step

    async def _run_all(self, steps: Mapping[int, Steps], owned: OwnedStatePartition) -> None:
        entries = steps[owned.number][PartitionStep.RUN]
        if restarts := owned.reported.to_begin_again([name for name, _ in entries]):
            await owned.begin_again(restarts)
            await self._catch_up()
            # Not the topics of before: meanwhile, one may have been removed, and added anew.
            topics = {
                name: topic
                for name, topic in self._targets().get(owned.number, ())
                if topic.wanted is not Wanted.STOPPED
            }
            await owned.begin(topics.keys() & restarts)
            entries = [
                (name, topics[name])
                for name, _ in entries
                if name in topics and name not in owned.reported.unsure
            ]
        if entries:
            await self._run(owned, entries)

    def _stop(self, owned: OwnedStatePartition, entries: Collection[Mirrored]) -> None:
        """Begin to stop these, unless a stop is running, or a backoff after a refusal lasts."""
        names = owned.refused.due(name for name, _ in entries)
        if not names or (owned.stopping is not None and not owned.stopping.done()):
            return
        topics = list({topic.incarnation: topic for _, topic in entries}.values())

        async def stop() -> None:
            try:
                await owned.stop(names, topics, jitter=self._random.random())
            except TwinlogError as error:
                log.warning("cannot stop all removed partitions yet: %s", error)
                await asyncio.sleep(STOP_AGAIN_S * (0.5 + self._random.random()))
            except Exception as error:  # a defect: reported, and retried in case it is transient
                log.exception("internal error: partitions stay STOPPING")
                owned.keep_stopping(names, f"internal error {error!r}: see the lane's log")
            if (pause := owned.refused.due_in) is not None:
                asyncio.get_running_loop().call_later(pause, self._on_change)
            self._on_change()

        owned.stopping = asyncio.create_task(stop())


async def _enter(
    steps: Mapping[int, Steps], states: Mapping[PartitionStep, State], owned: OwnedStatePartition
) -> None:
    """Write each step's state for its partitions, unless another step is due by now."""
    by_step = steps[owned.number]
    await owned.enter(
        {
            name: state
            for step, state in states.items()
            for name, topic in by_step[step]
            if next_step(topic.wanted, owned.reported.state(name)) is step
        }
    )
