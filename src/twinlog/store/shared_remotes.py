"""Two source topics of a flow that would be copied to one remote topic.

A policy of one's own may give two topics one name. A flow that writes in transactions keeps one
committed position for each remote partition, so two source partitions would overwrite each other's.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.mirror.settings import TRANSACTIONAL
from twinlog.store.config_records import MirrorTopic


class SharedRemote(NamedTuple):
    """Two source topics, and the remote topic of both."""

    first: str
    second: str
    remote: str


def shared_remotes(topics: Collection[MirrorTopic], names: Mapping[str, str]) -> list[SharedRemote]:
    """Which of these source topics have the remote topic of another one.

    Args:
        topics: those that the flow has.
        names: the remote names of those that are added, by the source's.
    """
    taken = {topic.destination_name: topic.topic for topic in topics}
    return [
        SharedRemote(taken[remote], name, remote)
        for name, remote in names.items()
        if taken.setdefault(remote, name) != name
    ]


def check_positions(kind: str, topics: Collection[MirrorTopic], names: Mapping[str, str]) -> None:
    """Refuse topics that would share a position.

    Args:
        kind: of the flow's mirror.
        topics: those that the flow has.
        names: the remote names of those that are added, by the source's.

    Raises:
        UserError: the flow writes in transactions, and two topics have one remote topic.
    """
    if kind != TRANSACTIONAL:
        return
    for first, second, remote in shared_remotes(topics, names):
        raise UserError(
            f"{first} and {second} would both be copied to {remote}, and a flow with transforms or "
            "transaction.producer keeps one position for each remote topic",
            hint="exclude one of them, or give them different names",
        )
