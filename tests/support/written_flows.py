"""A flow's partition whose two logs are written down in tests, and their comparison."""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from written_logs import WrittenLog

from twinlog.kafka.types import TopicPartition
from twinlog.verify.flow_job import FlowComparison
from twinlog.verify.flow_task import FlowClaim, FlowCompared, FlowPair, FlowTask
from twinlog.verify.job import Sides


@dataclass(frozen=True)
class KnownFacts:
    """`LogFacts` that a test decides."""

    compacted: bool | None = True
    moves: bool = True

    async def is_compacted(self) -> bool | None:
        return self.compacted

    async def moves_on(self, _last_stable: int) -> bool:
        return self.moves


FACTS = KnownFacts()
PAIR = FlowPair("a-to-b", TopicPartition("t", 0), TopicPartition("a.t", 0))


def compare_logs(
    source: WrittenLog,
    remote: WrittenLog,
    claim: FlowClaim,
    *,
    open_offsets: int = 0,
    in_transactions: bool = False,
    facts: KnownFacts = FACTS,
) -> FlowCompared:
    """Compare two logs.

    Args:
        source: the source's.
        remote: its copy.
        claim: what the flow has recorded.
        open_offsets: behind the copy, those of an open transaction.
        in_transactions: whether the flow writes in transactions.
        facts: what the clusters say of these logs.
    """
    bounds = remote.bounds
    task = FlowTask(
        source={},
        destination={},
        cluster_ids=Sides("s", "d"),
        topic_ids=Sides(UUID(int=1), UUID(int=2)),
        pair=PAIR,
        bounds=Sides(source.bounds, bounds._replace(high_watermark=remote.end + open_offsets)),
        claim=claim,
        in_transactions=in_transactions,
    )
    return asyncio.run(FlowComparison(task, lambda: Sides(source, remote), facts).run())
