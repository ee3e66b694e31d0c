"""A node's answers to probes, such as those of Kubernetes: whether it is healthy, and why not.

    /health/ready, /health   503 while it cannot do its work: the destination does not answer, lanes
                             are missing, or partitions that are MIRRORING have no fresh status
    /health/live             503 when a restart would help: the destination answers, and for
                             `DEAD_S` none of the node's lanes has been alive

FAILED partitions are counted, but do not make a node unhealthy: another node could do no better,
and the other partitions go on. A node whose event loop hangs does not answer.
"""

import json
from collections import Counter
from typing import Final, NamedTuple

from twinlog.mirror.states import State
from twinlog.node.observation import OLD_S, Observed

DEAD_S: Final = 120.0
"""Spark needs up to a minute to start its first lane on a slow machine."""


class Health(NamedTuple):
    """An answer to a probe: the reasons why the node is unhealthy (none if healthy), and JSON."""

    reasons: tuple[str, ...]
    body: bytes

    @property
    def status(self) -> int:
        """The HTTP status."""
        return 503 if self.reasons else 200


def ready(observed: Observed) -> Health:
    """Whether the node does its work."""
    reasons = []
    if observed.silent_s > OLD_S:
        reasons.append(f"the destination has not responded for {observed.silent_s:.0f} s")
    absent_lanes = sorted(observed.ours - observed.alive)
    if absent_lanes:
        reasons.append(
            f"{len(absent_lanes)} lanes are not members of the group: {', '.join(absent_lanes)}"
        )
    mirroring = [p for p in observed.partitions() if p.state is State.MIRRORING]
    silent = sum(partition.row is None for partition in mirroring)
    if silent:
        reasons.append(f"{silent} partitions that are MIRRORING have no fresh status")
    return _health(observed, reasons)


def live(observed: Observed) -> Health:
    """Whether a restart of the node would not help."""
    reasons = []
    if observed.dead_s > DEAD_S and observed.silent_s < OLD_S:
        reasons.append(f"no lane has been alive for {observed.dead_s:.0f} s")
    return _health(observed, reasons)


def _health(observed: Observed, reasons: list[str]) -> Health:
    counts = Counter(partition.state for partition in observed.partitions())
    status = {
        "status": "unhealthy" if reasons else "healthy",
        "reasons": reasons,
        "lanes": {"started": len(observed.ours), "alive": len(observed.alive)},
        "partitions": {state.name: counts[state] for state in State},
    }
    return Health(tuple(reasons), json.dumps(status).encode() + b"\n")
