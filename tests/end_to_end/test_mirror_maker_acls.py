"""ACLs of remote topics, by `twinlog mirror-maker` on brokers that have an authorizer (KIP-382)."""

import asyncio
from pathlib import Path

import librdkafka_tools
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from mirror_maker_process import mirror_maker
from remote_topics import text_of, values
from secured_clusters import PASSWORDS, Secured, sasl
from waiting import SECONDS, until

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

DENY, CLUSTER = Permission.DENY, ResourceType.CLUSTER
FILE = """\
clusters = a, b
{a}
b.bootstrap.servers = {b}
a->b.enabled = true
a->b.topics = {topic}.*
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
emit.checkpoints.enabled = false
heartbeats.replication.enabled = false
refresh.topics.interval.seconds = 1
sync.topic.acls.interval.seconds = 1
"""


def acl(
    name: str,
    operation: Operation,
    permission: Permission = Permission.ALLOW,
    *,
    principal: str = "User:alice",
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceType = ResourceType.TOPIC,
) -> Acl:
    return Acl(kind, name, pattern, principal, "*", operation, permission)


def alice(cluster: Secured) -> dict[str, object]:
    """Return alice's properties for a consumer."""
    return {k: value for k, value in cluster.as_alice().items() if k != "enable.idempotence"}


def read_as_alice(cluster: Secured, topic: str) -> list[str]:
    """Return the records that alice reads; a refusal is an error."""
    settings = {"group.id": f"readers-{topic}", "enable.partition.eof": True}
    consumer = Consumer({**alice(cluster), **settings, "auto.offset.reset": "earliest"})
    values: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(120)
            assert message is not None, f"no answer for {topic}"
            error = message.error()
            if error is None:
                values.append(text_of(message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


@pytest.mark.long
def test_who_reads_a_topic_reads_its_remote_topic_and_nobody_writes_to_it(
    secured_pair: tuple[Secured, Secured], topic: str, tmp_path: Path
) -> None:
    """Goal: rights on the target are those of the source, without writing, and follow them.

    The flow's principal has only the rights on the source that a flow needs. An administrator's
    ACL on the target stays, although the source had the same.
    """
    source, destination = secured_pair
    remote = f"a.{topic}"
    servers = source.local.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(3))
    needed = [
        acl(topic, Operation.READ, principal="User:mirror", pattern=PatternType.PREFIXED),
        acl(topic, Operation.DESCRIBE_CONFIGS, principal="User:mirror"),
        acl("kafka-cluster", Operation.DESCRIBE, principal="User:mirror", kind=CLUSTER),
    ]
    every, other = acl(topic, Operation.ALL), acl(topic, Operation.DESCRIBE, principal="User:o")
    denial = acl(
        topic[:9], Operation.READ, DENY, principal="User:bob", pattern=PatternType.PREFIXED
    )
    bob = acl(topic, Operation.READ, principal="User:bob")
    written = acl(topic, Operation.WRITE, principal="User:writer")
    asyncio.run(source.give([*needed, every, other, denial, bob, written]))
    own = other._replace(resource_name=remote)
    group = acl(f"readers-{remote}", Operation.READ, kind=ResourceType.GROUP)
    asyncio.run(destination.give([own, group]))
    client = source.properties("WORD", sasl("PLAIN", "mirror", PASSWORDS["mirror"]))
    lines = "\n".join(f"a.{name} = {text}" for name, text in client.items())
    file = FILE.format(a=lines, b=destination.local.bootstrap_servers, topic=topic)
    copies = {
        "ALLOW User:alice READ on TOPIC " + remote,
        "ALLOW User:mirror DESCRIBE_CONFIGS on TOPIC " + remote,
        "ALLOW User:bob READ on TOPIC " + remote,
        "DENY User:bob READ on TOPIC " + remote,
        str(own),
    }
    with mirror_maker(tmp_path, file, "--lanes", "1"):
        until(lambda: destination.acls(remote) == copies, SECONDS, "the copied ACLs")
        until(lambda: len(values(destination.local, remote)) == 3, SECONDS, "the records")
        assert read_as_alice(destination, remote) == ["v0", "v1", "v2"]
        with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
            librdkafka_tools.write("", remote, librdkafka_tools.simple(1), **writer(destination))
        asyncio.run(source.take([every, other, denial, bob]))
        left = {"ALLOW User:mirror DESCRIBE_CONFIGS on TOPIC " + remote, str(own)}
        until(lambda: destination.acls(remote) == left, SECONDS, "the removal of the copies")
        consumer = Consumer({**alice(destination), "group.id": f"readers-{remote}"})
        error = consumer.list_topics(remote, timeout=120).topics[remote].error
        consumer.close()
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def writer(cluster: Secured) -> dict[str, object]:
    """Return alice's properties, named as `librdkafka_tools.write` takes them."""
    return {name.replace(".", "_"): value for name, value in cluster.as_alice().items()}
