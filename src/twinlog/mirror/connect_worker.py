"""The Connect worker of MirrorMaker 2's dedicated mode: where it keeps what it has copied.

MirrorMaker 2 runs a worker for each flow `A->B`. It is a member of a group on B, and it records
the source's offsets in a topic on B (connect_offsets.py). Their names come from the pair of
aliases in the file, whatever `source.cluster.alias` is (`MirrorMakerConfig.workerConfig` of Kafka
4.3):

    group            A-mm2
    offsets topic    mm2-offsets.A.internal

They are stored with a flow, beside its settings, where they are not those of its
`source.cluster.alias`. So a flow of an earlier version has the names of its alias.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

STORED_GROUP: Final = "connect.group.id"
STORED_OFFSETS: Final = "connect.offset.storage.topic"
STORED_NAMES: Final = frozenset({STORED_GROUP, STORED_OFFSETS})
"""What may be stored with a flow, beside its settings."""


class ConnectWorker(NamedTuple):
    """The names of a worker, on the flow's target."""

    group: str
    """The group whose members are the worker's processes."""
    offsets_topic: str
    """Where it records what it has copied."""


def default_worker(source: str) -> ConnectWorker:
    """The worker of flows from a source that is named by this alias in the file."""
    return ConnectWorker(group=f"{source}-mm2", offsets_topic=f"mm2-offsets.{source}.internal")


def stored_worker(worker: ConnectWorker) -> dict[str, str]:
    """What is stored with a flow for these names."""
    return {STORED_GROUP: worker.group, STORED_OFFSETS: worker.offsets_topic}


def worker_of(values: Mapping[str, str], source: str) -> ConnectWorker:
    """The worker of a flow.

    Args:
        values: what is stored with the flow, by name.
        source: its `source.cluster.alias`.
    """
    default = default_worker(source)
    return ConnectWorker(
        group=values.get(STORED_GROUP, default.group),
        offsets_topic=values.get(STORED_OFFSETS, default.offsets_topic),
    )
