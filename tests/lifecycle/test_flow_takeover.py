"""Where flows begin in remote topics that MirrorMaker 2 has filled, on real brokers.

MirrorMaker 2 is played by the test, so that it is known what it has copied and recorded. The real
one is killed in tests/end_to_end/test_mirror_maker_takeover.py.
"""

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence

import librdkafka_tools
import pytest
from clients import client, put
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Assigned
from secured_clusters import Secured, sasl
from waiting import until

from conftest import Pair
from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.log.records import Record
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle import flow_takeover, worker_records
from twinlog.lifecycle.flow_takeover import FlowTakeover
from twinlog.lifecycle.taken_over import TakenOver
from twinlog.local.cluster import LocalCluster
from twinlog.local.load import delete_before
from twinlog.mirror import connect_offsets, mm2_records
from twinlog.mirror.connect_offsets import CONNECTOR, ConnectOffset
from twinlog.mirror.connect_worker import default_worker
from twinlog.mirror.flow import (
    connect_worker_of,
    flow_of,
    flow_properties,
    may_route,
    splits_topics,
)
from twinlog.mirror.mm2_records import OffsetSync
from twinlog.store.topic_writer import Entry

pytestmark = pytest.mark.broker

SECONDS = 120.0


class Played:
    """A topic of the source, its remote topic, and what MirrorMaker 2 has recorded."""

    def __init__(
        self,
        pair: Pair,
        topic: str,
        config: Mapping[str, str] | None = None,
        remote_config: Mapping[str, str] | None = None,
    ) -> None:
        self.pair = pair
        self.topic = topic
        self.alias = f"a{uuid.uuid4().hex[:8]}"
        self.remote = f"{self.alias}.{topic}"
        self.source = pair.source.bootstrap_servers
        self.target = pair.destination.bootstrap_servers
        librdkafka_tools.make_topic(self.source, topic, 1, config)
        librdkafka_tools.make_topic(self.target, self.remote, 1, remote_config)

    def fill(self, count: int, copied: int) -> None:
        """Write records to the source, and copy the first of them."""
        self.fill_source(count)
        self.copy(0, copied)

    def fill_source(self, count: int) -> None:
        librdkafka_tools.write_same(self.source, self.topic, 0, 0, count)

    def copy(self, start: int, end: int, acks: str = "all") -> None:
        """Copy records of the source, as MirrorMaker 2 does: aborted ones, too."""
        producer = Producer(
            {
                "bootstrap.servers": self.target,
                "acks": acks,
                "enable.idempotence": acks == "all",
            }
        )
        reader = Consumer(
            {
                "bootstrap.servers": self.source,
                "group.id": "played",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
            }
        )
        try:
            reader.assign([Assigned(self.topic, 0, start)])
            while (message := reader.poll(SECONDS)) is not None:
                error, offset = message.error(), message.offset()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF
                    break
                assert offset is not None
                if offset >= end:
                    break
                producer.produce(
                    self.remote,
                    partition=0,
                    key=message.key(),
                    value=message.value(),
                    timestamp=message.timestamp()[1],
                    headers=message.headers(),
                )
        finally:
            reader.close()
        assert producer.flush(SECONDS) == 0

    def foreign(self) -> None:
        """Write a record of another program to the remote topic."""
        librdkafka_tools.write(self.target, self.remote, [(0, "foreign", "record", None)])

    def record(self, offset: int | None = None, name: str = "", connector: str = CONNECTOR) -> None:
        """Record an offset, as Connect does; None: only its topic is created."""
        name = name or default_worker(self.alias).offsets_topic
        librdkafka_tools.make_topic(self.target, name, 3, {"cleanup.policy": "compact"})
        partition = TopicPartition(self.topic, 0)
        if offset is not None:
            found = ConnectOffset(connector, self.alias, partition, offset)
            asyncio.run(self._append(self.pair.destination, name, [connect_offsets.encode(found)]))

    def sync(self, upstream: int, downstream: int) -> None:
        """Write an offset sync."""
        name = f"mm2-offset-syncs.{self.alias}-target.internal"
        librdkafka_tools.make_topic(self.source, name, 1, {"cleanup.policy": "compact"})
        sync = OffsetSync(
            partition=TopicPartition(self.topic, 0),
            upstream_offset=upstream,
            downstream_offset=downstream,
        )
        asyncio.run(self._append(self.pair.source, name, [mm2_records.encode(sync)]))

    async def _append(
        self, cluster: LocalCluster, name: str, pairs: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        async with client(cluster) as kafka:
            entries = [Entry(name, 0, key, value) for key, value in pairs]
            await put(kafka, entries)

    def begins(self, takeover: str = "compare", **settings: str) -> list[TakenOver]:
        """Where a flow begins."""
        return asyncio.run(self.begins_as(client(self.pair.destination), takeover, settings))

    async def begins_as(
        self, target: KafkaCluster, takeover: str, settings: Mapping[str, str]
    ) -> list[TakenOver]:
        """Where a flow begins, with this client of the target."""
        values = {"enabled": "true", "twinlog.takeover": takeover, **settings}
        properties = flow_properties(values, self.alias, f"{self.alias}-target")
        flow, worker = flow_of(properties), connect_worker_of(properties)

        async with client(self.pair.source) as source, target:
            topics = (await source.refresh([self.topic])).topics
            remote = (await target.refresh([self.remote])).topics
            flow_takeover = FlowTakeover(
                *(target, source, flow, worker),
                routes=may_route(properties),
                splits=splits_topics(properties),
            )
            return await flow_takeover.begins(topics[self.topic], remote.get(self.remote))

    def begin(self, takeover: str = "compare", **settings: str) -> tuple[int, int | None, object]:
        """Begin, recorded offset and what may be copied twice, of the only partition."""
        [found] = self.begins(takeover, **settings)
        assert found.source == TopicPartition(self.topic, 0)
        return found.begin, found.recorded, found.repeated


@pytest.fixture
def played(pair: Pair, topic: str) -> Played:
    """Create the topics."""
    return Played(pair, topic)


def test_it_begins_behind_the_last_copy(played: Played) -> None:
    """Goal: what was copied and not recorded is not copied again."""
    played.fill(100, 60)
    played.record(40)
    assert played.begin() == (60, 40, None)
    assert str(played.begins()[0]).endswith("no record is copied twice")


def test_nothing_was_copied_behind_the_recorded_offset(played: Played) -> None:
    played.fill(100, 41)
    played.record(40)
    assert played.begin() == (41, 40, None)


def test_everything_was_copied(played: Played) -> None:
    played.fill(100, 100)
    played.record(99)
    assert played.begin() == (100, 99, None)


def test_the_recorded_offset_alone(played: Played) -> None:
    """Goal: without a comparison, what may be copied twice is named."""
    played.fill(100, 60)
    played.record(40)
    assert played.begin("recorded") == (41, 40, (41, 100))
    assert "up to 59 records, [41, 100), may be copied twice" in str(played.begins("recorded")[0])


def test_equal_records_are_rather_copied_twice(played: Played) -> None:
    """Goal: of several records with the content of the last copy, the first one counts."""
    played.fill(60, 60)
    librdkafka_tools.write_same(played.source, played.topic, 0, 55, 60)  # offsets 60 to 64
    played.record(40)
    assert played.begin() == (60, 40, (60, 65))


def test_a_mirror_maker_that_was_restarted_before(played: Played) -> None:
    """Goal: what a former run has copied further in front is named, as it is copied again."""
    played.fill(100, 60)
    played.copy(41, 50)
    played.record(40)
    assert played.begin() == (50, 40, (50, 60))
    played.copy(50, 60)
    assert played.begin() == (60, 40, None)
    played.copy(60, 70)
    assert played.begin() == (70, 40, None)


def test_a_restarted_mirror_maker_that_has_recorded_again(played: Played) -> None:
    played.fill(100, 60)
    played.copy(41, 50)
    played.record(45)
    assert played.begin() == (50, 45, (50, 60))


def test_too_many_records_to_look_for_repeated_ones(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_takeover, "_HELD", 5)
    played.fill(100, 60)
    played.copy(41, 50)
    played.record(40)
    assert played.begin() == (50, 40, (50, 100))


def test_a_foreign_record_in_between(played: Played) -> None:
    """Goal: if the copies are not the last records one by one, the recorded offset counts."""
    played.fill(100, 50)
    played.foreign()
    played.copy(50, 60)
    played.record(40)
    assert played.begin() == (41, 40, (41, 60))


def test_the_copy_behind_the_recorded_offset_is_missing(played: Played) -> None:
    """Goal: where the comparison fails, what was copied up to the last copy is named.

    MirrorMaker 2 skips a record that is too large for the target with `errors.tolerance=all`
    (KIP-779).
    """
    played.fill(100, 41)
    played.copy(42, 80)
    played.record(40)
    assert played.begin() == (41, 40, (41, 80))
    assert "up to 39 records, [41, 80), may be copied twice" in str(played.begins()[0])


def test_a_foreign_record_at_the_end(played: Played) -> None:
    """Goal: a log that contradicts what was recorded is refused; the error says how to go on."""
    played.fill(100, 60)
    played.foreign()
    played.record(40)
    with pytest.raises(UserError, match="is no copy of a record") as caught:
        played.begins()
    assert "twinlog.takeover=recorded begins at 41" in caught.value.hint
    assert played.begin("recorded") == (41, 40, (41, 100))


@pytest.mark.parametrize(
    ("most", "text"), [(20, "no copy of a record"), (5, "no copy of any of 5 records")]
)
def test_a_long_remote_topic_whose_source_was_recreated(
    played: Played, monkeypatch: pytest.MonkeyPatch, most: int, text: str
) -> None:
    """Goal: a partition with more offsets than are looked at proves nothing either.

    The flow would begin behind the recorded offset of a former topic, and miss what is below.
    """
    monkeypatch.setattr(flow_takeover, "_MOST", most)
    played.fill(30, 30)
    played.foreign()
    played.record(20)
    with pytest.raises(UserError, match=text) as caught:
        played.begins()
    assert "twinlog.takeover=recorded begins at 21" in caught.value.hint
    assert "select it again with twinlog.takeover=ignore" in caught.value.hint
    assert played.begin("recorded") == (21, 20, (21, 30))


def test_a_source_topic_that_was_recreated(played: Played) -> None:
    """Goal: an offset that the source does not have is not believed."""
    played.fill(100, 60)
    played.record(100)
    for takeover in ("compare", "recorded"):
        with pytest.raises(UserError, match="the topic was recreated, or lost records"):
            played.begins(takeover)


def test_an_offset_sync_instead_of_a_recorded_offset(played: Played) -> None:
    """Goal: MirrorMaker 2 that is killed in its first minute has recorded nothing else."""
    played.fill(100, 60)
    played.record(None)
    played.sync(30, 30)
    assert played.begin() == (60, 30, None)
    assert played.begin("recorded") == (31, 30, (31, 100))


def test_an_offset_sync_goes_before_the_offset_of_another_connector(played: Played) -> None:
    """Goal: one that copies elsewhere does not decide where MirrorMaker 2 has stopped."""
    played.fill(100, 60)
    played.record(90, connector="x")
    with pytest.raises(UserError, match=r"is no copy of a record of .* from offset 90 on") as why:
        played.begin()
    assert "offset 90, which only other connectors have recorded" in why.value.message
    assert "set twinlog.takeover.connector to its name" in why.value.hint
    with pytest.raises(UserError, match=r"only other connectors have recorded an offset \(90\)"):
        played.begin("recorded")
    played.sync(20, 20)
    assert played.begin() == (60, 20, None)
    assert played.begin("recorded") == (21, 20, (21, 100))


def test_an_offset_sync_that_is_not_true_is_not_used(played: Played) -> None:
    played.fill(100, 60)
    played.record(None)
    played.sync(30, 31)
    assert played.begin() == (60, None, None)
    assert played.begin("recorded") == (0, None, (0, 100))


def test_nothing_was_recorded(played: Played) -> None:
    """Goal: what was copied is found all the same, if the source has all of its records."""
    played.fill(100, 60)
    played.record(None)
    assert played.begin() == (60, None, None)
    delete_before(played.source, [(played.topic, 0, 10)])
    assert played.begin() == (10, None, (10, 100))


def test_records_that_the_source_has_deleted_are_missed(played: Played) -> None:
    """Goal: the flow begins at deleted records, so that their loss is reported."""
    played.fill(100, 60)
    played.record(40)
    delete_before(played.source, [(played.topic, 0, 50)])
    assert played.begin() == (41, 40, (41, 100))
    # Without the record that was copied last, it is not known whether it is the same topic.
    delete_before(played.source, [(played.topic, 0, 80)])
    with pytest.raises(UserError, match=r"from offset 80 on; nothing proves that offset 40"):
        played.begins()
    assert played.begin("recorded") == (41, 40, (41, 100))


def test_a_remote_topic_without_records(played: Played) -> None:
    """Goal: retention of the remote topic hides what was copied, and from which topic."""
    played.fill(100, 60)
    played.record(40)
    delete_before(played.target, [(played.remote, 0, 60)])
    with pytest.raises(UserError, match="has no records any more; nothing proves"):
        played.begins()
    assert played.begin("recorded") == (41, 40, (41, 100))


def test_a_remote_topic_without_records_of_which_nothing_is_recorded(played: Played) -> None:
    """Goal: the source's beginning needs no proof, as nothing is missed."""
    played.fill(100, 60)
    played.record(None)
    delete_before(played.target, [(played.remote, 0, 60)])
    assert played.begin() == (0, None, (0, 100))


def test_a_compacted_topic(pair: Pair, topic: str) -> None:
    played = Played(pair, topic, {"cleanup.policy": "compact"})
    librdkafka_tools.write(played.source, played.topic, librdkafka_tools.simple(100))
    played.copy(0, 60)
    played.record(40)
    assert played.begin() == (41, 40, (41, 100))
    played.foreign()
    with pytest.raises(UserError, match="nothing proves that offset 40"):
        played.begins()
    assert played.begin("recorded") == (41, 40, (41, 100))


def test_a_remote_topic_that_is_empty(played: Played) -> None:
    """Goal: where nothing is, all is copied, and named; `recorded` goes on behind the offset."""
    played.fill(100, 0)
    assert [played.begins(mode) for mode in ("refuse", "compare", "recorded", "ignore")] == [[]] * 4
    played.record(40)
    for mode in ("refuse", "compare"):
        assert played.begin(mode) == (0, 40, (0, 41))
    assert played.begin("recorded") == (41, 40, None)
    assert "[0, 41) of the source is not copied to it" in str(played.begins("recorded")[0])
    assert played.begins("ignore") == []


def test_an_empty_remote_topic_of_a_flow_that_begins_at_the_end(played: Played) -> None:
    """Goal: records behind what MirrorMaker 2 has recorded are not passed over.

    Its remote topic may have been recreated, so all of the source is copied to it.
    """
    latest = {"consumer.auto.offset.reset": "latest"}
    played.fill(100, 0)
    assert [played.begins(mode, **latest) for mode in ("refuse", "compare")] == [[], []]
    played.record(40)
    for mode in ("refuse", "compare"):
        assert played.begin(mode, **latest) == (0, 40, (0, 41))
    assert played.begin("recorded", **latest) == (41, 40, None)
    assert played.begins("ignore", **latest) == []
    delete_before(played.source, [(played.topic, 0, 10)])
    assert played.begin(**latest) == (10, 40, (10, 41))


@pytest.mark.parametrize(
    "transform",
    [
        {
            "transforms": "route",
            "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
            "transforms.route.regex": r"[^.]*\.(.*)",
            "transforms.route.replacement": "$1",
        },
        {"twinlog.transform.sql": "SELECT record, 'gold' AS topic FROM records"},
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_remote_topic_whose_records_were_routed(
    played: Played, transform: Mapping[str, str], exists: bool
) -> None:
    """Goal: copies that are in other topics are not made again silently.

    MirrorMaker 2 creates the remote topic, and its transforms write elsewhere.
    """
    if not exists:
        librdkafka_tools.delete_topic(played.target, played.remote)
    played.fill_source(100)
    assert [played.begins(mode, **transform) for mode in ("refuse", "compare")] == [[], []]
    played.record(40)
    for mode in ("refuse", "compare"):
        with pytest.raises(UserError, match="up to offset 40, and its remote topic is") as caught:
            played.begins(mode, **transform)
        assert "twinlog.takeover=recorded begins behind" in caught.value.hint
    assert played.begin("recorded", **transform) == (41, 40, (41, 100))
    assert played.begins("ignore", **transform) == []


ROUTER = {
    "transforms": "route",
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.regex": ".*",
    "transforms.route.replacement": "gone",
}
OF_TOMBSTONES = {
    "transforms.route.predicate": "dead",
    "predicates": "dead",
    "predicates.dead.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
}


def test_some_records_were_routed(played: Played) -> None:
    """Goal: copies in other topics are named: how far those reach is unknown."""
    played.fill(100, 60)
    played.record(40)
    router = {**ROUTER, **OF_TOMBSTONES}
    assert played.begin(**router) == (41, 40, (41, 100))
    assert "transforms may have routed records" in str(played.begins(**router)[0])
    # One that goes by the topic's name, and leaves this one, has routed nothing.
    by_name = {**ROUTER, "transforms.route.regex": "nothing"}
    assert played.begin(**by_name) == (60, 40, None)


def test_all_behind_the_last_copy_was_routed(played: Played) -> None:
    played.fill(100, 60)
    played.record(80)
    with pytest.raises(UserError) as caught:
        played.begins(**ROUTER, **OF_TOMBSTONES)
    assert "or transforms have routed later ones elsewhere" in f"{caught.value}{caught.value.hint}"


def test_it_is_refused_without_a_decision(played: Played) -> None:
    """Goal: a flow does not copy all again because nobody has said otherwise."""
    played.fill(100, 60)
    played.record(40)
    with pytest.raises(UserError, match="up to offset 40") as caught:
        played.begins("refuse")
    assert "--takeover" in caught.value.hint
    assert played.begins("ignore") == []


def test_offsets_in_a_topic_of_another_name(played: Played) -> None:
    """Goal: a file that names it is not run as if MirrorMaker 2 had never copied."""
    played.fill(100, 60)
    name, own = f"{played.alias}-offsets", f"{played.alias}-own"
    played.record(40, name)
    assert played.begins("refuse") == [], "the file does not name it"
    settings = {"connect.offset.storage.topic": name}
    with pytest.raises(UserError, match="up to offset 40"):
        played.begins("refuse", **settings)
    assert played.begin("compare", **settings) == (60, 40, None)
    settings["connect.offsets.storage.topic"] = own
    assert played.begin("compare", **settings) == (60, 40, None)
    played.record(50, own)
    assert played.begin("compare", **settings) == (60, 50, None), "the own one has precedence"


def test_records_of_other_programs_are_no_reason_to_refuse(played: Played) -> None:
    """Goal: several flows may share a remote topic."""
    played.fill(10, 10)
    assert played.begins("refuse") == []
    played.record(None)
    assert played.begins("refuse") == []


@pytest.mark.parametrize(
    ("copied", "settings"), [(60, {}), (0, {"consumer.auto.offset.reset": "latest"})]
)
def test_what_was_recorded_may_not_be_read(
    pair: Pair,
    secured_pair: tuple[Secured, Secured],
    topic: str,
    copied: int,
    settings: Mapping[str, str],
) -> None:
    """Goal: a missing right does not switch `refuse` off."""
    secured, (user, mechanism) = secured_pair[0], (topic[-40:], "SCRAM-SHA-256")
    played = Played(Pair(pair.source, secured.local), topic)
    played.fill(100, copied)
    played.record(40)
    offsets = default_worker(played.alias).offsets_topic
    kind, allow, literal = ResourceType.TOPIC, Permission.ALLOW, PatternType.LITERAL

    def right(name: str, operation: Operation) -> Acl:
        return Acl(kind, name, literal, f"User:{user}", "*", operation, allow)

    async def body() -> None:
        await secured.set_password(user, "secret", [mechanism])

        def begins(takeover: str) -> Coroutine[object, object, list[TakenOver]]:
            target = secured.cluster("WORD", sasl(mechanism, user, "secret"))
            return played.begins_as(target, takeover, settings)

        await secured.give([right(played.remote, Operation.READ)])
        for rights in ([], [right(offsets, Operation.DESCRIBE)]):
            if rights:
                await secured.give(rights)
            with pytest.raises(UserError, match=f"has copied {topic} is not known: ") as caught:
                await begins("refuse")
            assert "twinlog.takeover=ignore" in caught.value.hint
            assert caught.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await begins("ignore") == []
        await secured.give([right(offsets, Operation.READ)])
        if copied:
            with pytest.raises(UserError, match="up to offset 40"):
                await begins("refuse")
        else:
            assert [one.begin for one in await begins("refuse")] == [0]

    asyncio.run(body())


def test_a_right_to_read_what_a_new_topic_cannot_have(
    pair: Pair, secured_pair: tuple[Secured, Secured], topic: str
) -> None:
    """Goal: without a remote topic, who never had MirrorMaker 2 needs no right to its topics."""
    secured, (user, mechanism) = secured_pair[0], (topic[-40:], "SCRAM-SHA-256")
    played = Played(Pair(pair.source, secured.local), topic)
    librdkafka_tools.delete_topic(played.target, played.remote)
    settings = {"consumer.auto.offset.reset": "latest"}

    async def body() -> list[TakenOver]:
        await secured.set_password(user, "secret", [mechanism])
        everything = Acl(
            ResourceType.TOPIC,
            played.remote,
            PatternType.LITERAL,
            f"User:{user}",
            "*",
            Operation.ALL,
            Permission.ALLOW,
        )
        await secured.give([everything])
        target = secured.cluster("WORD", sasl(mechanism, user, "secret"))
        return await played.begins_as(target, "refuse", settings)

    assert asyncio.run(body()) == []


def test_a_cluster_that_never_had_mirror_maker(played: Played) -> None:
    played.fill(10, 10)
    with pytest.raises(UserError, match="the target has no topic mm2-offsets"):
        played.begins()


def test_mirror_maker_is_running(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it would copy on beside the flow."""
    monkeypatch.setattr(worker_records, "_GROUP_S", 0.5)
    played.fill(10, 10)
    played.record(5)
    group = default_worker(played.alias).group
    with librdkafka_tools.consumer(played.target, group) as member:
        member.subscribe([played.remote])
        until(lambda: member.poll(0.1), SECONDS, "the member's records")
        with pytest.raises(UserError, match="MirrorMaker 2 is running: its group"):
            played.begins()
        assert played.begin("compare", **{"connect.group.id": "other"}) == (10, 5, None)
    monkeypatch.setattr(worker_records, "_GROUP_S", SECONDS)  # its request to leave may be lost
    assert played.begin() == (10, 5, None)
    monkeypatch.setattr(worker_records, "_GROUP_S", 0.5)
    with librdkafka_tools.consumer(played.target, f"{played.alias}-prod") as member:
        member.subscribe([played.remote])
        until(lambda: member.poll(0.1), SECONDS, "the member's records")
        with pytest.raises(UserError, match=r"MirrorMaker 2 is running: its group .*-prod"):
            played.begins("compare", **{"connect.group.id": f"{played.alias}-prod"})


def test_a_remote_topic_that_grows(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a MirrorMaker 2 in another Connect cluster has members of an unknown group."""
    played.fill(100, 60)
    played.record(40)
    last_record = FlowTakeover._last_record

    async def growing(self: FlowTakeover, place: flow_takeover._Subject) -> Record | None:
        await asyncio.to_thread(played.copy, 60, 61)
        return await last_record(self, place)

    monkeypatch.setattr(FlowTakeover, "_last_record", growing)
    with pytest.raises(UserError, match="has grown from 60 to 61"):
        played.begins()


def test_copies_that_are_not_replicated_yet(pair: Pair, trio: LocalCluster, topic: str) -> None:
    """Goal: copies above the high watermark are not made again; the error has their offsets.

    With fewer than min.insync.replicas the leader keeps what it has appended, and readers do not
    see it until the replica is back: MirrorMaker 2 got NOT_ENOUGH_REPLICAS_AFTER_APPEND, and died.
    """
    played = Played(Pair(pair.source, trio), topic, remote_config={"min.insync.replicas": "3"})
    played.fill(100, 60)
    played.record(40)
    names = librdkafka_tools.admin(played.target).list_topics(played.remote, timeout=SECONDS)
    remote = names.topics[played.remote].partitions[0]
    killed = next(node for node in remote.replicas if node != remote.leader)
    trio.kill(killed)
    try:
        played.copy(60, 70, acks="1")
        for takeover in ("compare", "recorded"):
            with pytest.raises(Retriable, match=r"records \[60, 70\) are not replicated yet"):
                played.begins(takeover)
    finally:
        trio.start_broker(killed)

    def begun() -> object:
        try:
            return played.begin()
        except Retriable:  # the replica is not in sync yet
            return None

    assert until(begun, SECONDS, "the replica") == (70, 40, None)


def test_aborted_records_are_copied_by_mirror_maker(played: Played) -> None:
    """Goal: it reads uncommitted records by default, so they are compared, too."""
    librdkafka_tools.transaction(played.source, played.topic, "aborted", commit=False)
    librdkafka_tools.transaction(played.source, played.topic, "committed", commit=True)
    # Offsets: 0 to 9, a marker, 11 to 20, a marker.
    played.copy(0, 15)
    played.record(4)
    assert played.begin() == (15, 4, None)


def test_only_committed_records_were_copied(played: Played) -> None:
    """Goal: with read_committed in the file, aborted records are not looked for."""
    librdkafka_tools.transaction(played.source, played.topic, "aborted", commit=False)
    librdkafka_tools.transaction(played.source, played.topic, "committed", commit=True)
    played.copy(11, 15)
    played.record(12)
    assert played.begin(**{"consumer.isolation.level": "read_committed"}) == (15, 12, None)


def test_an_open_transaction_in_the_remote_topic(played: Played) -> None:
    """Goal: what follows a transaction that is open cannot be read yet (KIP-618)."""
    played.fill(100, 60)
    played.record(40)
    producer = Producer(
        {
            "bootstrap.servers": played.target,
            "transactional.id": played.remote,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(played.remote, partition=0, value="open")
    assert producer.flush(SECONDS) == 0
    with pytest.raises(Retriable, match="a transaction is open"):
        played.begins()
    producer.abort_transaction(SECONDS)

    def begun() -> object:
        try:
            return played.begin()
        except Retriable:  # its marker is not written yet
            return None

    assert until(begun, SECONDS, "the end of the transaction") == (60, 40, None)


def test_more_records_than_one_answer_holds(played: Played) -> None:
    """Goal: both logs are read to their end, whatever an answer holds."""
    count = 30_000
    large = [(0, f"k{at}", f"{at:0>300}", None) for at in range(count)]
    librdkafka_tools.write(played.source, played.topic, large)
    played.copy(0, count - 5)
    played.record(7)
    assert played.begin() == (count - 5, 7, None)
