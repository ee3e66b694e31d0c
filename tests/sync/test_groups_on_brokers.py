"""Group offsets follow, and readiness reports groups, on real brokers, without lanes."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client, commit, write_state
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from streams_group import make_streams_group
from waiting import until, until_async

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.kafka.groups.offsets import (
    NO_EPOCH,
    Committed,
    commit_offsets,
    committed_offsets,
    in_parts,
    list_groups,
)
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.states import State
from twinlog.mirror.translation import Translation
from twinlog.operations.readiness.facts import MirrorFacts
from twinlog.operations.readiness.reasons import Reason
from twinlog.operations.readiness.subject import subject_of
from twinlog.operations.readiness.survey import survey
from twinlog.operations.readiness.verdict import judge
from twinlog.store.group_log import read_groups
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.group_selection import named_groups
from twinlog.sync.repeated_commits import MAX_REPEAT_S

pytestmark = pytest.mark.broker


async def topic_id(cluster: KafkaCluster, topic: str) -> UUID:
    return (await cluster.refresh([topic])).topics[topic].topic_id


def findings_by_reason(facts: MirrorFacts) -> dict[Reason, list[str]]:
    """Return the findings, by reason."""
    texts: dict[Reason, list[str]] = {}
    for one in judge(facts).all_findings():
        texts.setdefault(one.reason, []).append(one.text)
    return texts


def test_offsets_follow_a_rewound_group(
    pair: Pair, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Another node follows it, too, while the destination's offset is the mirror's own.

    A clamped offset has no metadata: it would refer to the original offset.
    """
    group, mirror = fresh_name("group"), fresh_name("mirror")
    partition = TopicPartition(topic, 0)
    for cluster, count in ((pair.source, 10), (pair.destination, 5)):
        librdkafka_tools.make_topic(cluster.bootstrap_servers, topic)
        librdkafka_tools.write(cluster.bootstrap_servers, topic, librdkafka_tools.simple(count))

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            partitions = {partition: await topic_id(source, topic)}
            include = named_groups([re.compile(re.escape(group))])

            async def follow(offset: int, node: GroupSync | None = None) -> Committed:
                """Set the source's offset, run a check, and return the destination's offset."""
                await commit(source, group, {partition: Committed(offset, f"of {offset}")})
                sync = node or GroupSync(destination)
                assert await sync.sync(source, mirror, include, partitions) == 0
                return (await committed_offsets(destination, group))[partition]

            node = GroupSync(destination)
            assert await follow(8, node) == Committed(5)
            assert await follow(4, node) == Committed(4, "of 4")
            assert await follow(2) == Committed(2, "of 2"), "by another node"
            with librdkafka_tools.consumer(pair.destination.bootstrap_servers, group) as member:
                member.subscribe([topic])
                # A commit needs a record that was read, and that needs an assignment.
                until(lambda: member.poll(0.2), what="a record")
                assert await follow(1, node) == Committed(2, "of 2"), "it has a member"
                member.commit(asynchronous=False)
            own = (await committed_offsets(destination, group))[partition]
            assert own.offset >= 2
            assert await follow(1, node) == own, "the group has committed it itself"
            assert await follow(1) == own
            remembered = (await read_groups(destination, mirror)).groups[group]
            assert remembered.partitions[partition].source == 1
            assert remembered.partitions[partition].other == own.offset

    asyncio.run(run())


@pytest.mark.parametrize("same_name", [True, False], ids=["identity", "renamed"])
def test_a_group_that_reads_records_of_others_in_a_remote_topic_keeps_its_offset(
    pair: Pair, topic: str, fresh_name: Callable[[str], str], same_name: bool
) -> None:
    """Goal: after a failover to a flow's target, the group is never set back to what was copied.

    It reads records that only the target has, commits without a leader epoch, and stops for longer
    than a node waits, and than a commit is repeated. Then it is rewound on the source, too. A group
    that has read nothing on the target follows.
    """
    reader, idle, mirror = fresh_name("reader"), fresh_name("idle"), fresh_name("mirror")
    remote = topic if same_name else f"a.{topic}"
    partition, place = TopicPartition(topic, 0), TopicPartition(remote, 0)
    target = pair.destination.bootstrap_servers
    for servers, name in ((pair.source.bootstrap_servers, topic), (target, remote)):
        librdkafka_tools.make_topic(servers, name)
        librdkafka_tools.write(servers, name, librdkafka_tools.simple(10))
    offsets = OffsetRuns(Ends(Offset(0), Offset(0)))
    offsets.append(Run(Offset(0), Offset(0), 10))
    translation = Translation({partition: place}, {partition: offsets})
    now = 1_000_000.0

    async def run() -> None:
        nonlocal now
        async with client(pair.source) as source, client(pair.destination) as destination:
            partitions = {partition: await topic_id(source, topic)}
            include = named_groups([re.compile(f"{re.escape(reader)}|{re.escape(idle)}")])
            node = GroupSync(destination, clock=lambda: now)

            async def check(after_s: float) -> None:
                nonlocal now
                now += after_s
                failed = await node.sync(
                    source, mirror, include, partitions, quiet_s=60, translation=translation
                )
                assert failed == 0

            async def both() -> list[Committed]:
                return [(await committed_offsets(destination, g))[place] for g in (reader, idle)]

            for group in (reader, idle):
                await commit(source, group, {partition: Committed(10)})
            await check(0)
            assert await both() == [Committed(10)] * 2
            librdkafka_tools.write(target, remote, librdkafka_tools.simple(15, text="other"))
            values = read_to(target, reader, place, 25)
            assert values == [b"other%d" % at for at in range(15)]
            assert (await both())[0] == Committed(25, "", NO_EPOCH), "as old clients commit"
            for after_s in (30.0, 90.0, 2 * MAX_REPEAT_S):
                await check(after_s)
                assert await both() == [Committed(25), Committed(10)]
            node = GroupSync(destination, clock=lambda: now)
            for group in (reader, idle):
                await commit(source, group, {partition: Committed(3)})
            await check(90)
            assert await both() == [Committed(25), Committed(3)]

    asyncio.run(run())


def read_to(servers: str, group: str, place: TopicPartition, end: int) -> list[bytes | None]:
    """Read up to an offset as a member of a group, commit that alone, and leave."""
    values: list[bytes | None] = []
    with librdkafka_tools.consumer(servers, group) as member:
        member.subscribe([place.topic])

        def at_end() -> bool:
            message = member.poll(0.5)
            if message is None:
                return False
            assert message.error() is None, message.error()
            values.append(message.value())
            return message.offset() == end - 1

        until(at_end, what=f"offset {end} of {place}")
        member.commit(offsets=[Place(place.topic, place.partition, end)], asynchronous=False)
    return values


@pytest.mark.long
def test_a_group_with_thousands_of_partitions_is_copied(
    pair: Pair, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """They exceed one batch of __consumer_offsets: in one request all of them are refused."""
    group, mirror, count = fresh_name("group"), fresh_name("mirror"), 1500
    places = [TopicPartition(topic, index) for index in range(count)]
    for cluster in (pair.source, pair.destination):
        librdkafka_tools.make_topic(cluster.bootstrap_servers, topic, count)
    offsets = dict.fromkeys(places, Committed(0, "m" * 900))

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:

            async def refused() -> bool:
                """Return whether brokers are busy with the new partitions, as for a while."""
                try:
                    answers = await commit_offsets(source, group, offsets)
                except Retriable:
                    return False
                return all(answers.values())

            await until_async(refused, 120, what="the commit of all in one request is refused")
            for part in in_parts(group, offsets):
                await commit(source, group, part)
            partitions = dict.fromkeys(places, await topic_id(source, topic))
            sync = GroupSync(destination)
            include = named_groups([re.compile(re.escape(group))])

            async def complete() -> bool:
                """Return whether all is copied; the destination must lead all partitions first."""
                return await sync.sync(source, mirror, include, partitions) == 0

            await until_async(complete, what="a complete check")
            assert await committed_offsets(destination, group) == offsets
            size = len((await read_groups(destination, mirror)).groups[group].partitions)
            assert size == count

    asyncio.run(run())
    for cluster in (pair.source, pair.destination):
        librdkafka_tools.delete_topic(cluster.bootstrap_servers, topic)


def test_readiness_reports_groups_that_would_repeat_or_skip_records(
    pair: Pair, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Every group that would read records again or skip some is found, copied or not.

    With a dead source, the offsets of the last check are used, with their age.
    """
    mirror = fresh_name("mirror")
    names = {
        name: f"{mirror}-{name}"
        for name in ("behind", "rewound", "own", "streams", "outside", "ok", "deleted")
    }
    partition = TopicPartition(topic, 0)
    librdkafka_tools.make_topic(pair.source.bootstrap_servers, topic)
    librdkafka_tools.write(pair.source.bootstrap_servers, topic, librdkafka_tools.simple(10))

    async def prepare() -> None:
        async with client(pair.destination) as destination:
            properties = {
                "bootstrap.servers": pair.source.bootstrap_servers,
                "mirror.groups.include": f"(?!.*outside){re.escape(mirror)}.*",
            }
            await create_mirror(destination, mirror, properties)
            await add_topics(destination, mirror, topic)
            [one] = [
                t for t in (await MirrorStore(destination).snapshot()).topics if t.topic == topic
            ]
            await write_state(destination, one, State.MIRRORING)

    asyncio.run(prepare())
    librdkafka_tools.write(pair.destination.bootstrap_servers, topic, librdkafka_tools.simple(10))
    make_streams_group(pair.source, names["streams"], {partition: 5})

    async def facts(destination: KafkaCluster, servers: str = "") -> MirrorFacts:
        subject = await subject_of(destination, mirror, [topic])
        if servers:
            dead = replace(subject.mirror, source={"bootstrap.servers": servers})
            subject = replace(subject, mirror=dead)
        return await survey(destination, subject)

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            assert (await list_groups(source))[names["streams"]].kind == "streams"
            unknown = findings_by_reason(await facts(destination, "127.0.0.1:1"))
            assert "no complete check" in "".join(unknown[Reason.GROUP_UNREADABLE])
            for name, offset in (
                ("behind", 3),
                ("rewound", 9),
                ("own", 2),
                ("outside", 4),
                ("ok", 6),
                ("deleted", 5),
            ):
                await commit(source, names[name], {partition: Committed(offset)})
            await commit(destination, names["own"], {partition: Committed(7)})
            node, ids = GroupSync(destination), {partition: await topic_id(source, topic)}
            settings = (await subject_of(destination, mirror, [topic])).settings
            include = named_groups(settings.groups_include)
            assert await node.sync(source, mirror, include, ids) == 0
            await commit(source, names["behind"], {partition: Committed(8)})
            await commit(source, names["rewound"], {partition: Committed(1)})
            admin = AdminClient({"bootstrap.servers": pair.source.bootstrap_servers})
            admin.delete_consumer_groups([names["deleted"]])[names["deleted"]].result(120)

            live = findings_by_reason(await facts(destination))
            assert Reason.GROUP_UNREADABLE not in live, "without an authorizer all are listed"
            [behind] = live[Reason.GROUP_BEHIND]
            assert names["behind"] in behind
            assert "5 offsets again" in behind
            [rewound] = live[Reason.GROUP_REWOUND]
            assert f"{names['rewound']} was rewound" in rewound
            assert f"{partition} (source 1, destination 9)" in rewound
            [skips] = live[Reason.GROUP_SKIPS]
            assert f"group {names['own']} would skip" in skips
            assert f"{partition} (source 2, destination 7)" in skips
            [deleted] = live[Reason.GROUP_DELETED]
            assert f"group {names['deleted']} no longer has offsets" in deleted
            assert f"{partition} (5)" in deleted
            aside = "\n".join(sorted(live[Reason.GROUP_NOT_COPIED]))
            assert len(live[Reason.GROUP_NOT_COPIED]) == 2
            assert re.search(rf"{names['outside']}.*read 4 offsets again", aside)
            assert re.search(rf"{names['streams']}.*streams groups.*read 5 offsets again", aside)
            assert names["ok"] not in str(live)

            dead = findings_by_reason(await facts(destination, "127.0.0.1:1"))
            [age] = dead[Reason.GROUP_UNREADABLE]
            assert re.search(r"5 were last checked on the source \d+ s ago", age)
            assert Reason.GROUP_BEHIND not in dead, "as the last check saw it"
            assert Reason.GROUP_DELETED not in dead, "it was there at the last check"
            assert names["own"] in "".join(dead[Reason.GROUP_SKIPS])

            assert await node.sync(source, mirror, include, ids) == 0
            after = findings_by_reason(await facts(destination))
            assert not {Reason.GROUP_BEHIND, Reason.GROUP_REWOUND} & after.keys()
            assert (await committed_offsets(destination, names["rewound"]))[partition].offset == 1
            assert after[Reason.GROUP_DELETED] == [deleted], "the check deletes nothing"
            dead = findings_by_reason(await facts(destination, "127.0.0.1:1"))
            assert dead[Reason.GROUP_DELETED] == [deleted], "the check has seen that it is gone"

    asyncio.run(run())
