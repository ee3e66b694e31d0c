"""How long the hot-path codecs take for one request of 100 partitions, in microseconds.

.venv/bin/python bench/hot_codecs.py
"""

import timeit
from collections.abc import Callable
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchResponse
from kafka.protocol.producer.produce import ProduceResponse

from twinlog.kafka.protocol import fetch, produce
from twinlog.kafka.types import FetchPosition, TopicPartition

PARTITIONS = 100
TOPICS = 10
RECORDS = bytes(16 * 1024)
ROUNDS = 2000


def main() -> None:
    """Measure and print the figures."""
    ids = {f"topic-{index}": UUID(int=index) for index in range(TOPICS)}
    keys = {name: topic_id.bytes for name, topic_id in ids.items()}
    names = {key: name for name, key in keys.items()}
    wanted = {
        TopicPartition(topic, index): FetchPosition(10**6, 5, 6)
        for topic in ids
        for index in range(PARTITIONS // TOPICS)
    }
    batches = [(partition, bytes(61), memoryview(RECORDS)) for partition in wanted]
    fetched = memoryview(fetch_response(ids))
    produced = memoryview(produce_response(ids))
    report("encode a Fetch", lambda: encode_fetch(keys, wanted))
    report("decode a Fetch", lambda: fetch.decode_fetch(17, names, fetched))
    report("  kafka-python", lambda: FetchResponse.decode(fetched, version=17))
    report("encode a Produce", lambda: produce.encode_produce(keys, batches, timeout_ms=1))
    report("decode a Produce", lambda: produce.decode_produce(13, names, produced))
    report("  kafka-python", lambda: ProduceResponse.decode(produced, version=13))


def report(what: str, action: Callable[[], object]) -> None:
    """Print the best of five rounds."""
    rounds = ROUNDS // 20 if what.startswith(" ") else ROUNDS
    best = min(timeit.repeat(action, number=rounds, repeat=5)) / rounds
    print(f"{what:<40}{best * 1e6:8.1f} us")


def encode_fetch(keys: dict[str, bytes], wanted: dict[TopicPartition, FetchPosition]) -> bytes:
    """Encode a full request."""
    return fetch.encode_fetch(
        17,
        keys,
        wanted,
        session_id=0,
        session_epoch=0,
        isolation=fetch.READ_COMMITTED,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 26,
        partition_max_bytes=1 << 20,
    )


def fetch_response(ids: dict[str, UUID]) -> bytes:
    """Return an answer with records for each partition."""
    topic_class = FetchResponse.FetchableTopicResponse
    topics = [
        topic_class(
            topic_id=topic_id,
            partitions=[
                topic_class.PartitionData(
                    partition_index=index,
                    error_code=0,
                    high_watermark=10**6,
                    last_stable_offset=10**6,
                    log_start_offset=0,
                    aborted_transactions=None,
                    records=RECORDS,
                )
                for index in range(PARTITIONS // TOPICS)
            ],
        )
        for topic_id in ids.values()
    ]
    response = FetchResponse(throttle_time_ms=0, error_code=0, session_id=7, responses=topics)
    return bytes(response.encode(version=17))


def produce_response(ids: dict[str, UUID]) -> bytes:
    """Return an answer with the base offset of each partition's batch."""
    topic_class = ProduceResponse.TopicProduceResponse
    topics = [
        topic_class(
            topic_id=topic_id,
            partition_responses=[
                topic_class.PartitionProduceResponse(
                    index=index,
                    error_code=0,
                    base_offset=10**6,
                    log_append_time_ms=-1,
                    log_start_offset=0,
                    record_errors=[],
                    error_message=None,
                )
                for index in range(PARTITIONS // TOPICS)
            ],
        )
        for topic_id in ids.values()
    ]
    return bytes(ProduceResponse(responses=topics, throttle_time_ms=0).encode(version=13))


if __name__ == "__main__":
    main()
