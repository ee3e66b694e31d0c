"""Whether the target still has what was copied up to the positions of partitions that are STOPPED.

The seal of a partition ends its transactions, and compares nothing. Who goes on at its position
outside the flow, as MirrorMaker 2 does, compares nothing either: records that the target has lost
would never be copied again. So the logs are compared with each position's tails once more, as when
a partition is located (remote_tails.py, routed_tails.py).

Unlike there, nothing is left open. A log that cannot be compared now is a problem, too: whoever
takes the position does not compare it later.
"""

from collections.abc import Mapping

from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.engines.transactional.positions import SettledPosition, routed_of, tail_of
from twinlog.engines.transactional.remote_tails import TailProblem, compare_tails
from twinlog.engines.transactional.routed_tails import (
    RoutedTails,
    compare_routed,
    in_doubt,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.mirror.placement import MirrorPartition


async def compare_settled(
    destination: KafkaCluster, positions: Mapping[MirrorPartition, SettledPosition]
) -> Mapping[MirrorPartition, TailProblem]:
    """Compare the target's logs with settled positions.

    Args:
        destination: the target.
        positions: see `settled_positions`.

    Returns:
        Those of which the target has lost records, those that are older than the copy, and those
        of which a log cannot be compared now. A topic that records were routed to is a loss if
        every broker reports that it does not exist.

    Raises:
        Retriable: the target is unreachable.
    """
    port = KafkaDestination(destination, lambda: False)
    tails = {
        one.remote: tail
        for one in positions.values()
        if (tail := tail_of(one.committed)) is not None
    }
    own_ids = {one.remote: one.own_ids for one in positions.values()}
    problems = await compare_tails(port, tails, own_ids)
    routed = await compare_routed(
        port,
        {name: routed_of(one.committed) for name, one in positions.items()},
        deletion_is_loss=True,
    )
    found = {
        name: problems.get(one.remote) or _routed_problem(routed[name])
        for name, one in positions.items()
    }
    return {name: problem for name, problem in found.items() if problem is not None}


def _routed_problem(routed: RoutedTails | TailProblem) -> TailProblem | None:
    """What was found of routed tails; what is not known of one is a problem."""
    if isinstance(routed, Exception):
        return routed
    doubt = in_doubt(routed, [one.log for one in routed])
    return None if doubt is None else Retriable(doubt.reason)
