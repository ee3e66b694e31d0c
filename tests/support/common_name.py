"""A replication policy of a user: some topics, whatever their source, are copied to one topic.

It is what an aggregating cluster has: `replication.policy.common.topics` names the topics of all
sources that go to `COMMON`. Other topics are renamed as by Kafka's default policy.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from twinlog import DefaultReplicationPolicy, ReplicationPolicy

COMMON: Final = "common"
POLICY: Final = "com.example.CommonName"
TOPICS: Final = "replication.policy.common.topics"


class CommonName(ReplicationPolicy):
    """See the module. A common topic has no single source, so it names none."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._topics = set(properties[TOPICS].split(","))
        self._others = DefaultReplicationPolicy()

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """The common name, or the alias before the topic's name."""
        if topic in self._topics:
            return COMMON
        return self._others.format_remote_topic(source_cluster_alias, topic)

    def topic_source(self, topic: str) -> str | None:
        """None for the common topic."""
        return self._others.topic_source(topic)

    def upstream_topic(self, topic: str) -> str | None:
        """None for the common topic."""
        return self._others.upstream_topic(topic)


def install(folder: Path) -> None:
    """Write the package, as pip would install it, to a folder for `PYTHONPATH`."""
    metadata = folder / "common_name-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: common-name\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        f"[twinlog.replication_policies]\n{POLICY} = common_name:{CommonName.__name__}\n"
    )
    shutil.copy(__file__, folder)
