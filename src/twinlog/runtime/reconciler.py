"""What runs is brought to what is wanted, for all state partitions that are ours at once.

    open, informed ─► PAUSING, STOPPING written ─► nothing of these under way ─► PAUSED written
                                                                            └─► fenced, STOPPED
                                                                                (ownership.py,
                                                                                beside)
                   ─► what is to run, runs

The order is what the states promise. What cannot be done for one state partition holds up no other;
its partitions go on as before.

What is wanted has to be known as of the takeover, or later. A lane that has stood still may be
given a state partition while it still knows what was wanted a minute ago; since then the former
owner has stopped a topic, which its users write to. To mirror it would be to write among them.

The same goes for what is STOPPED and is wanted again, as we have heard, and perhaps no more: who
removes it once more sees it STOPPED still, and deletes the mirror, or gives the topic to another.
So PREPARING is written first, and what is wanted read after it. Commands do it the other way round:
they write what is wanted, and read the states after it (store/mirrors.py). One of the two sees the
other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from random import Random

from twinlog.kafka.errors import TwinlogError
from twinlog.mirror.placement import MirrorPartition as Name
from twinlog.mirror.states import State
from twinlog.runtime.ownership import STOP_AGAIN_S, OwnedShard, Step, next_step
from twinlog.store.config_records import MirrorTopic, Wanted

log = logging.getLogger(__name__)

Mirrored = tuple[Name, MirrorTopic]
Steps = dict[Step, list[Mirrored]]


class Ways:
    """See the module.

    Args:
        owned: the state partitions that are ours, as they are at each moment.
        wanted: what is wanted of the partitions of each state partition, as far as we know.
        catch_up: returns when `wanted` knows all that was written before it was called.
        disown: stops mirroring all but the given partitions; when it returns, nothing of the
            others is under way.
        run: mirrors these of a state partition.
        changed: what is called when `go` has more to do.
        random: for jitter.
    """

    def __init__(
        self,
        owned: Mapping[int, OwnedShard],
        *,
        wanted: Callable[[], Mapping[int, Sequence[Mirrored]]],
        catch_up: Callable[[], Awaitable[None]],
        disown: Callable[[Collection[Name]], Awaitable[None]],
        run: Callable[[OwnedShard, Sequence[Mirrored]], Awaitable[None]],
        changed: Callable[[], None],
        random: Random,
    ) -> None:
        self._owned = owned
        self._wanted = wanted
        self._catch_up = catch_up
        self._disown = disown
        self._run = run
        self._changed = changed
        self._random = random
        self._to_pause: dict[Name, OwnedShard] = {}  # when they are no longer PREPARING

    async def go(self) -> None:
        """One round.

        Raises:
            TwinlogError: not all could be done; the first reason.
        """
        troubles: list[TwinlogError] = []
        asked = self._owned.keys() & self._wanted().keys()
        opened = await self._each(asked, OwnedShard.open, troubles)
        await self._inform(opened, troubles)
        self._to_pause = {}
        wanted = self._wanted()
        steps = {
            number: self._steps(self._owned[number], wanted.get(number, ()))
            for number in opened
            if self._owned[number].informed
        }
        first = {
            Step.PAUSE: State.PAUSING,
            Step.STOP: State.STOPPING,
            Step.FORGO: State.STOPPED,
        }
        begun = await self._each(steps, partial(_enter, steps, first), troubles)
        await self._disown(
            {
                name
                for number, by_step in steps.items()
                for step, some in by_step.items()
                if step is Step.RUN or number not in begun
                for name, _ in some
            }
        )
        await self._each(begun, partial(_enter, steps, {Step.PAUSE: State.PAUSED}), troubles)
        for number in begun:
            self._stop(self._owned[number], steps[number][Step.STOP])
        await self._each(steps, partial(self._run_all, steps), troubles)
        if troubles:
            raise troubles[0]

    @property
    def pause_is_due(self) -> bool:
        """Whether one that is to be paused is no longer PREPARING."""
        return any(
            owned.state(name) is not State.PREPARING for name, owned in self._to_pause.items()
        )

    async def _inform(self, opened: Collection[int], troubles: list[TwinlogError]) -> None:
        """See to it that what is wanted is known as of the takeover of these."""
        new = [self._owned[number] for number in opened if not self._owned[number].informed]
        if not new:
            return
        try:
            await self._catch_up()
        except TwinlogError as error:
            troubles.append(error)
        else:
            for owned in new:
                owned.informed = True

    async def _each(
        self,
        numbers: Iterable[int],
        action: Callable[[OwnedShard], Awaitable[None]],
        troubles: list[TwinlogError],
    ) -> set[int]:
        """Do something for each of these state partitions, side by side; where it was done."""
        asked = sorted(numbers)
        results = await asyncio.gather(
            *(action(self._owned[number]) for number in asked), return_exceptions=True
        )
        for result in results:
            if isinstance(result, TwinlogError):
                troubles.append(result)
            elif result is not None:
                raise result
        return {number for number, result in zip(asked, results, strict=True) if result is None}

    def _steps(self, owned: OwnedShard, wanted: Iterable[Mirrored]) -> Steps:
        by_step: Steps = {step: [] for step in Step}
        for name, topic in wanted:
            step = next_step(topic.wanted, owned.state(name))
            if owned.unread(name):
                step = Step.REST
            by_step[step].append((name, topic))
            if step is Step.RUN and topic.wanted is Wanted.PAUSED:
                self._to_pause[name] = owned
        return by_step

    async def _run_all(self, steps: Mapping[int, Steps], owned: OwnedShard) -> None:
        some = steps[owned.shard.number][Step.RUN]
        if again := owned.to_begin_again([name for name, _ in some]):
            await owned.begin_again(again)
            await self._catch_up()
            now = self._wanted().get(owned.shard.number, ())
            still = {name for name, topic in now if topic.wanted is not Wanted.STOPPED}
            await owned.begin(still.intersection(again))
            some = [one for one in some if one[0] not in owned.unsure]
        if some:
            await self._run(owned, some)

    def _stop(self, owned: OwnedShard, some: Collection[Mirrored]) -> None:
        """Begin to stop these, unless that is under way, or was refused a short while ago."""
        names = owned.due(name for name, _ in some)
        if not names or (owned.stopping is not None and not owned.stopping.done()):
            return
        topic_ids = {t.topic: known for _, t in some if (known := t.destination_topic_id)}

        async def stop() -> None:
            try:
                await owned.stop(names, topic_ids, jitter=self._random.random())
            except TwinlogError as error:
                log.warning("not all that was removed is STOPPED yet: %s", error)
                await asyncio.sleep(STOP_AGAIN_S * (0.5 + self._random.random()))
            except Exception as error:  # a defect: it is to be seen, and what passes is tried again
                log.exception("a defect keeps partitions STOPPING")
                owned.keep_stopping(names, f"internal error, see the lane's log: {error!r}")
            if (pause := owned.due_in) is not None:
                asyncio.get_running_loop().call_later(pause, self._changed)
            self._changed()

        owned.stopping = asyncio.create_task(stop())


async def _enter(
    steps: Mapping[int, Steps], states: Mapping[Step, State], owned: OwnedShard
) -> None:
    """Write that those of a step are in its state now; some may have come further by themselves."""
    by_step = steps[owned.shard.number]
    await owned.enter(
        {
            name: state
            for step, state in states.items()
            for name, topic in by_step[step]
            if next_step(topic.wanted, owned.state(name)) is step
        }
    )
