"""librdkafka on the clusters of a stage: the actions of a user's applications and tools."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from waiting import until

from twinlog.local import commands
from twinlog.local.check import ConsumerView
from twinlog.local.commands import Done
from twinlog.local.stage import Stage

SECONDS = 180.0
_PATIENT = {"request_timeout": SECONDS, "operation_timeout": SECONDS}
"""Of changes: default 60 s, and a busy broker is only slow."""
T = TypeVar("T")
_NO_COORDINATOR = {
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_BEGAN_MS = int(time.time() * 1000)
"""The start of this process: brokers delete records with timestamps years ago."""


def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


def make_topic(
    servers: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    client = admin(servers)
    new = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
    client.create_topics([new], **_PATIENT)[name].result(SECONDS)
    _await_partitions(client, name, partitions)


def grow_topic(servers: str, name: str, partitions: int) -> None:
    client = admin(servers)
    client.create_partitions([NewPartitions(name, partitions)], **_PATIENT)[name].result(SECONDS)
    _await_partitions(client, name, partitions)


def _await_partitions(client: AdminClient, name: str, partitions: int) -> None:
    """Wait until brokers' metadata has the partitions, which is after the controller's answer."""

    def there() -> bool:
        found = client.list_topics(timeout=SECONDS).topics.get(name)
        return found is not None and len(found.partitions) == partitions

    until(there, what=f"all partitions of {name}")


def delete_topic(servers: str, name: str, *, returns: bool = False) -> None:
    """Delete a topic; unless another client may create it again, wait until it is gone."""
    client = admin(servers)
    client.delete_topics([name], **_PATIENT)[name].result(SECONDS)
    if not returns:
        until(lambda: name not in client.list_topics(timeout=SECONDS).topics, what=f"no {name}")


def configs(servers: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = admin(servers)
    asked = client.describe_configs([resource], request_timeout=SECONDS)
    found = asked[resource].result(SECONDS)
    return {name: entry.value for name, entry in found.items()}


def write(servers: str, topic: str, records: Iterable[Sequence[Any]], **settings: Any) -> None:
    """Write (partition, key, value, headers)s and wait for all acknowledgements."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(f"{error.name()}: {error}")  # type: ignore[attr-defined]

    for partition, key, value, headers in records:
        producer.produce(
            topic, partition=partition, key=key, value=value, headers=headers, on_delivery=delivered
        )
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failures, failures[0]


def write_same(servers: str, topic: str, partition: int, start: int, end: int) -> None:
    """Write records that are equal in each cluster, timestamps too, from a single producer."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for at in range(start, end):
        value = f"v{at}"
        producer.produce(topic, partition=partition, value=value, timestamp=_BEGAN_MS + at)
    assert producer.flush(SECONDS) == 0


def until_written(topic: str, client: Mapping[str, Any]) -> None:
    """Wait until the client may write; this writes one record."""

    def written() -> bool:
        try:
            write("", topic, simple(1), **client)
        except AssertionError:
            return False
        return True

    until(written, SECONDS, "a write")


def simple(count: int, partition: int = 0, text: str = "v") -> list[Sequence[Any]]:
    return [(partition, f"k{at}", f"{text}{at}", None) for at in range(count)]


@contextmanager
def consumer(servers: str, group: str, protocol: str = "classic") -> Iterator[Consumer]:
    client = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        yield client
    finally:
        client.close()


def commit(servers: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets without being a member of the group."""
    places = [TopicPartition(topic, index, offset) for index, offset in offsets.items()]
    with consumer(servers, group) as client:
        commit_as(client, places)


def commit_as(client: Consumer, places: list[TopicPartition]) -> None:
    """Commit offsets with a client, once its group has a coordinator."""
    of_coordinator(lambda: client.commit(offsets=places, asynchronous=False))


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    places = [TopicPartition(topic, index) for index in (0, 1)]
    with consumer(servers, group) as client:
        found = of_coordinator(lambda: client.committed(places, timeout=SECONDS))
    return {part.partition: part.offset for part in found if part.offset >= 0}


def of_coordinator(ask: Callable[[], T]) -> T:
    """Ask until the group has a coordinator: a new cluster elects its first one."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except KafkaException as error:
            if error.args[0].code() not in _NO_COORDINATOR:
                raise
            return False
        return True

    until(answered, what="a coordinator that answers")
    return answers[0]


def twinlog(*arguments: str, seconds: float = 300.0) -> Done:
    """Run `twinlog`."""
    return commands.run(commands.TWINLOG, *arguments, seconds=seconds)


def alter(stage: Stage, *lines: str) -> None:
    """Change properties of the mirror `everything`."""
    file = stage.directory / "altered.properties"
    file.write_text("\n".join(lines) + "\n")
    arguments = ("--alter", "--mirror", "everything", "--mirror-config", str(file))
    done = stage.mirrors(*arguments)
    assert done.status == 0, done.errors


def all_described(stage: Stage) -> list[dict[str, Any]]:
    """Return the rows of `kafka-mirrors --describe` for all partitions."""
    done = until(  # a cluster that does not answer in time ends the command
        lambda: stage.mirrors("--describe", "--json"), good=lambda one: one.status == 0
    )
    rows: list[dict[str, Any]] = json.loads(done.output)
    return rows


def await_all_mirroring(stage: Stage, seconds: float) -> None:
    """Wait until there are partitions, and all of them are MIRRORING."""

    def there() -> bool:
        rows = all_described(stage)
        return bool(rows) and all(row["state"] == "MIRRORING" for row in rows)

    until(there, seconds, "all partitions MIRRORING")


def described(stage: Stage, topic: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a topic's partitions."""
    return {row["partition"]: row for row in all_described(stage) if row["topic"] == topic}


def await_state(
    stage: Stage, topic: str, partition: int, state: str, seconds: float = 300.0
) -> dict[str, Any]:
    """Wait until a partition has a state; return its row."""
    return until(
        lambda: described(stage, topic).get(partition, {}),
        seconds,
        f"{topic}-{partition} {state}",
        good=lambda row: row.get("state") == state,
    )


def await_shares(stage: Stage, count: int) -> None:
    """Wait until the lanes' group has `count` members, and each of them has partitions."""
    client = admin(stage.destination.bootstrap_servers)

    def shared() -> bool:
        try:
            group = client.describe_consumer_groups(["twinlog"])["twinlog"].result(SECONDS)
        except KafkaException:
            return False  # its coordinator is being found, or loads the group
        shares = [len(member.assignment.topic_partitions) for member in group.members]
        return len(shares) == count and all(shares)

    until(shared, 300, f"state partitions at each of {count} lanes")


def transactions(where: str, topic: str, count: int) -> None:
    """Write `count` transactions of one record each."""
    producer = Producer({"bootstrap.servers": where, "transactional.id": f"{topic}-lone"})
    producer.init_transactions(SECONDS)
    for at in range(count):
        producer.begin_transaction()
        producer.produce(topic, partition=0, value=f"lone-{at}")
        producer.commit_transaction(SECONDS)


def transaction(where: str, topic: str, name: str, *, commit: bool) -> None:
    """Write ten records in one transaction, and wait for its marker.

    It is written after the answer to the commit; until then readers do not see the records.
    """
    producer = Producer({"bootstrap.servers": where, "transactional.id": f"{topic}-{name}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for at in range(10):
        producer.produce(topic, partition=0, value=f"{name}-{at}")
    producer.flush(SECONDS)
    if commit:
        producer.commit_transaction(SECONDS)
    else:
        producer.abort_transaction(SECONDS)
    view, place = ConsumerView(where), [(topic, 0)]
    until(lambda: view.stable(place) == view.ends(place), what=f"the marker of {name} in {topic}")
