"""Whole partitions, as librdkafka reads them."""

import secrets
import time
from collections.abc import Collection
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_TRIES: Final = 3
"""Of readers, each with a new client: one may keep a leader that is none any more."""
_QUIET_S: Final = 60.0
"""A partition that says nothing for so long, not even its end, is read anew."""
_METADATA_S: Final = 120.0
_PAUSE_S: Final = 1.0


def read_whole_log(
    servers: str, topic: str, partitions: Collection[int], isolation: str = "read_committed"
) -> dict[int, list[Any]] | None:
    """All records of partitions up to their ends, as `Message`; None: there is no such topic.

    By its types each field of a `Message` may be None, which none of a record without an error is
    that these tests read. An answer that is cut off by an error, or by silence, is no answer.

    Raises:
        TimeoutError: there was none in several tries.
    """
    last: object = None
    for _ in range(_TRIES):
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": secrets.token_hex(4),
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                # Tests cut the end of `__consumer_offsets`, where commits of readers would be.
                "enable.auto.commit": False,
                "log_level": 2,
            }
        )
        try:
            if topic not in consumer.list_topics(timeout=_METADATA_S).topics:
                return None
            return _read(consumer, topic, partitions)
        except (KafkaException, TimeoutError) as error:
            last = error
        finally:
            consumer.close()
        time.sleep(_PAUSE_S)
    raise TimeoutError(f"{topic} has not been read to its end in {_TRIES} tries: {last!r}")


def _read(consumer: Consumer, topic: str, partitions: Collection[int]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {index: [] for index in partitions}
    # A log that is written to all the time has no end that a reader reaches.
    ends = {index: _end(consumer, TopicPartition(topic, index)) for index in partitions}
    consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
    ended: set[int] = set()
    while ended < found.keys():
        message = consumer.poll(_QUIET_S)
        if message is None:
            left = sorted(found.keys() - ended)
            raise TimeoutError(f"nothing was heard of partitions {left} for {_QUIET_S:g} s")
        index, error = message.partition(), message.error()
        assert index is not None
        if error is None:
            offset = message.offset()
            assert offset is not None
            if offset < ends[index]:
                found[index].append(message)
            if offset >= ends[index] - 1:
                ended.add(index)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(index)
        else:
            raise KafkaException(error)
    return found


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """The high watermark of a partition."""
    bounds = consumer.get_watermark_offsets(partition, timeout=_METADATA_S)
    if bounds is None:
        raise TimeoutError(f"the end of {partition} is not known")
    return int(bounds[1])
