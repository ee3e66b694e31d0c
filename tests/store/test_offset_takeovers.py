"""Takeovers of `__mirror_offsets` on the model of brokers."""

import asyncio
import random
from uuid import UUID

from model.cluster import Cluster
from model.coordinator import LAST_EPOCH
from model.loop import VirtualLoop, run
from model.network import Faults, Network
from model.offset_topic import ModelOffsetLog
from model.ports import ModelDestination
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import SequencePlan
from twinlog.store.offset_log import OFFSETS_TOPIC
from twinlog.store.offset_records import Route, StoredPlan

NAME = MirrorPartition("flow", "orders", 0)
LEASE_S = 6.0


def _plan(sequence: int) -> StoredPlan:
    recorded = Ends(Offset(10), Offset(50))
    plan = SequencePlan(ProducerId(7), ProducerEpoch(2), Sequence(sequence), (), recorded)
    return StoredPlan(NAME, plan, Route(UUID(int=1), "a.orders", None))


def test_a_plan_under_a_former_producer_id_is_waited_for() -> None:
    """Goal: it would land behind what the new owner has read, and hide what that stores.

    The epochs of the transactional id have ended, so the new owner has another producer id, which
    does not fence the former owner's write.
    """

    async def main(loop: VirtualLoop) -> None:
        rng = random.Random(1)
        cluster = Cluster(loop, rng, nodes=(1,))
        cluster.coordinator.first_epoch = LAST_EPOCH
        cluster.create_topic(OFFSETS_TOPIC, 1, compact=True, delete=False)

        def owner(name: str) -> ModelOffsetLog:
            port = ModelDestination(cluster, Network(loop, rng, Faults()), name)
            return ModelOffsetLog(port, 0, "twinlog", lease_s=LEASE_S, may_write=lambda: True)

        former = owner("former")
        await former.take_over()
        await former.write([_plan(1)])
        taking_over = asyncio.create_task(owner("next").take_over())
        await asyncio.sleep(LEASE_S / 2)
        await former.write([_plan(2)])
        assert (await taking_over).plans == {NAME: _plan(2)}
        # The one after it has the same producer id: there is nothing to wait for.
        began = loop.time()
        assert (await owner("last").take_over()).plans == {NAME: _plan(2)}
        assert loop.time() < began + LEASE_S / 2

    run(main)
