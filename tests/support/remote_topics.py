"""What a flow has written to a topic, as librdkafka reads it.

A flow's fences are control records in these logs, so ends and offsets alone do not count records.
"""

from whole_logs import read_whole_log

from twinlog.local.cluster import LocalCluster


def raw_records(cluster: LocalCluster, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    """Offset and value of each committed record; none while the topic does not exist."""
    found = read_whole_log(cluster.bootstrap_servers, topic, [partition]) or {partition: []}
    return [(message.offset(), message.value()) for message in found[partition]]


def records(cluster: LocalCluster, topic: str, partition: int = 0) -> list[tuple[int, str]]:
    """The same, with values as text."""
    return [(offset, text_of(value)) for offset, value in raw_records(cluster, topic, partition)]


def text_of(value: bytes | None) -> str:
    """The text of a value, which is there."""
    assert value is not None
    return value.decode()


def counts(cluster: LocalCluster, topic: str, partitions: int) -> list[int]:
    """The number of records of each partition."""
    return [len(records(cluster, topic, index)) for index in range(partitions)]


def values(cluster: LocalCluster, topic: str) -> list[str]:
    """The records of the first partition, in order."""
    return [value for _, value in records(cluster, topic)]


def places(cluster: LocalCluster, topic: str) -> list[int]:
    """Where the records of the first partition are, in order."""
    return [offset for offset, _ in records(cluster, topic)]
