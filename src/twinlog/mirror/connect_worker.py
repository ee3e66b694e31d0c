"""The Connect worker of MirrorMaker 2's dedicated mode: where it keeps what it has copied.

MirrorMaker 2 runs a worker for each flow `A->B`. It is a member of a group on B, and it records
the source's offsets in a topic on B (connect_offsets.py). Their names come from the lines of a
file, or else from the pair of aliases there, whatever `source.cluster.alias` is
(`MirrorMakerConfig.workerConfig` of Kafka 4.3):

    name             lines that it reads, the first has precedence      default
    ---------------  -------------------------------------------------  -----------------------
    group            B.group.id                                         A-mm2
    offsets topic    offset.storage.topic, B.offset.storage.topic       mm2-offsets.A.internal
    a second one     A->B.offsets.storage.topic                         none

The second one is Connect's topic of a single connector (KIP-618): what it has of a partition has
precedence, and whatever is recorded is written to both. `group.id` without a prefix, and other
lines of these names, have no effect.

The names are stored with a flow, beside its settings, where a file sets them, or where the flow's
`source.cluster.alias` would give others. So a flow of an earlier version has those of its alias.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

GROUP: Final = "group.id"
OFFSETS: Final = "offset.storage.topic"
OWN_OFFSETS: Final = "offsets.storage.topic"
READ_AT: Final[Mapping[str, str]] = {
    GROUP: f"TARGET.{GROUP}",
    OFFSETS: f"{OFFSETS}, or TARGET.{OFFSETS}",
    OWN_OFFSETS: f"SOURCE->TARGET.{OWN_OFFSETS}",
}
"""By name, how a line is written that MirrorMaker 2 reads."""

_STORED: Final = "connect."
STORED_NAMES: Final = frozenset(f"{_STORED}{name}" for name in READ_AT)
"""What may be stored with a flow, beside its settings."""


class ConnectWorker(NamedTuple):
    """The names of a worker, on the flow's target."""

    group: str
    """The group whose members are the worker's processes."""
    offsets_topic: str
    """Where it records what it has copied."""
    own_offsets_topic: str = ""
    """The topic of the source connector alone; empty: none."""

    @property
    def offsets_topics(self) -> tuple[str, ...]:
        """All topics with offsets; what is in a later one has precedence."""
        return tuple(filter(None, (self.offsets_topic, self.own_offsets_topic)))


def lines_read(source: str, target: str) -> dict[str, tuple[str, ...]]:
    """By name, the keys of the lines that MirrorMaker 2 reads; the first has precedence."""
    return {
        GROUP: (f"{target}.{GROUP}",),
        OFFSETS: (OFFSETS, f"{target}.{OFFSETS}"),
        OWN_OFFSETS: (f"{source}->{target}.{OWN_OFFSETS}",),
    }


def default_worker(source: str) -> ConnectWorker:
    """The worker of flows from a source that is named by this alias in the file."""
    return ConnectWorker(group=f"{source}-mm2", offsets_topic=f"mm2-offsets.{source}.internal")


def stored_names(names: Mapping[str, str]) -> dict[str, str]:
    """What is stored with a flow for names that a file sets, by the names of their lines."""
    return {f"{_STORED}{name}": text for name, text in names.items()}


def stored_worker(worker: ConnectWorker) -> dict[str, str]:
    """What is stored with a flow for these names; an own offsets topic only if there is one."""
    names = zip((GROUP, OFFSETS, OWN_OFFSETS), worker, strict=True)
    return stored_names({name: text for name, text in names if text})


def worker_of(values: Mapping[str, str], source: str) -> ConnectWorker:
    """The worker of a flow.

    Args:
        values: what is stored with the flow, by name.
        source: its `source.cluster.alias`.
    """
    default = default_worker(source)
    return ConnectWorker(
        group=values.get(f"{_STORED}{GROUP}", default.group),
        offsets_topic=values.get(f"{_STORED}{OFFSETS}", default.offsets_topic),
        own_offsets_topic=values.get(f"{_STORED}{OWN_OFFSETS}", default.own_offsets_topic),
    )
