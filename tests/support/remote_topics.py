"""What a flow has written to a topic, as librdkafka reads it.

A flow's fences are control records in these logs, so ends and offsets alone do not count records.
"""

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from twinlog.local.cluster import LocalCluster


def raw_records(
    cluster: LocalCluster, topic: str, partition: int = 0
) -> list[tuple[int, bytes | None]]:
    """Offset and value of each committed record; none while a leader is elected."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "remote-topics",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    found: list[tuple[int, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(60)
            if message is None:
                return []
            error = message.error()
            if error is None:
                offset, value = message.offset(), message.value()
                assert offset is not None
                found.append((offset, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                return []
    except KafkaException:
        return []
    finally:
        consumer.close()


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
