"""A running MirrorMaker 2 is killed, and `twinlog mirror-maker FILE --takeover` goes on behind it.

Ten times at random moments: `make chaos ONLY=takeover` (tests/chaos/test_takeover.py).
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import librdkafka_tools
import pytest
from clients import client, put
from connect_cluster import GROUP as GROUP_OF_CONNECT
from connect_cluster import OFFSETS as OFFSETS_OF_CONNECT
from connect_cluster import connect_worker
from real_mirror_maker import PARTITIONS, Handover
from waiting import SECONDS, until

from twinlog.kafka.types import TopicPartition
from twinlog.local.processes import ProcessGroup
from twinlog.local.stage import Stage
from twinlog.mirror.connect_offsets import CONNECTOR, ConnectOffset, decode, encode
from twinlog.mirror.connect_worker import default_worker
from twinlog.store.topic_reader import read_whole
from twinlog.store.topic_writer import Entry

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

RATE = 1500.0
GROUP, OFFSETS = "mm2-prod", "my-offsets"
"""Of MirrorMaker 2's worker in the second test."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path / "stage") as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


@pytest.mark.long
def test_a_killed_mirror_maker_is_followed_without_gap_and_repeat(
    stage: Stage, tmp_path: Path
) -> None:
    """Goal: what the manual says, step by step: refused, taken over, and the way back.

    On the way back the real MirrorMaker 2 goes on exactly behind what was recorded for it.
    """
    settings = {
        "b.offset.flush.interval.ms": "1000",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
    }
    handover = Handover(tmp_path, "1", stage.source, stage.destination, settings)
    with ProcessGroup() as group, handover.writing(RATE):
        mirror_maker = handover.start_mirror_maker(group)
        recorded = until(lambda: recorded_offsets(handover), SECONDS, "recorded offsets")
        assert "MirrorMaker 2 is running" in handover.refused("--takeover")
        handover.await_copies(500)
        mirror_maker.kill()
        assert "--takeover" in handover.refused()
        librdkafka_tools.commit(handover.source.bootstrap_servers, "early", handover.topic, {0: 20})
        with handover.twinlog("--takeover") as output:
            named = handover.named(output)
            assert all(not partition.twice for partition in named.values())
            assert all((named[index].recorded or -1) >= recorded[index] for index in recorded)
            handover.await_copies(500)
            late = {0: named[0].begin + 30}
            librdkafka_tools.commit(handover.source.bootstrap_servers, "late", handover.topic, late)
            at = {0: named[0].begin}
            librdkafka_tools.commit(
                handover.target.bootstrap_servers, "at", handover.remote, {0: 100}
            )
            librdkafka_tools.commit(handover.source.bootstrap_servers, "at", handover.topic, at)
            _check_groups(handover, named[0].begin)
            assert "expected STOPPED" in handover.refused("--hand-back")
            _remove_topics(stage, handover)
        done = handover.twinlog_ends("--hand-back")
        assert done.count("MirrorMaker 2 goes on at offset") == PARTITIONS
        handover.start_mirror_maker(group)
        handover.await_copies(500)
        tally = handover.prove(named)
    assert tally["twice"] == 0
    assert tally["unrecorded"] > 0


@pytest.mark.long
def test_a_flow_in_transactions_is_handed_back_and_taken_over_again(
    stage: Stage, tmp_path: Path
) -> None:
    """Goal: MirrorMaker 2, twinlog, MirrorMaker 2, twinlog: each record once, though all is killed.

    The flow keeps its name, and its group on the target has its former positions. The file names
    all that has a name by default. At the end the source topic is recreated, and handed back.
    """
    settings = {
        "b.offset.flush.interval.ms": "1000",
        "transaction.producer": "true",
        "source.cluster.alias": "eu",
        "b.group.id": GROUP,
        "offset.storage.topic": OFFSETS,
        "b.offset.storage.topic": "unread",
    }
    handover = Handover(tmp_path, "2", stage.source, stage.destination, settings)
    with ProcessGroup() as group, handover.writing(RATE):
        mirror_maker = handover.start_mirror_maker(group)
        until(lambda: recorded_offsets(handover, OFFSETS), SECONDS, "recorded offsets")
        assert f"its group {GROUP} has the members" in handover.refused("--takeover")
        handover.await_copies(500)
        mirror_maker.kill()
        assert f"MirrorMaker 2 has copied {handover.topic}-" in handover.refused()
        with handover.twinlog("--takeover", kills=True) as output:
            first = handover.named(output)
            handover.await_copies(500)
        with handover.twinlog():
            handover.await_copies(500)
            _remove_topics(stage, handover)
        done = handover.twinlog_ends("--hand-back")
        assert done.count("MirrorMaker 2 goes on at offset") == PARTITIONS
        handed_back = recorded_offsets(handover, OFFSETS)
        assert all(handed_back[index] > first[index].begin for index in first)
        mirror_maker = handover.start_mirror_maker(group)
        until(
            lambda: (
                (now := recorded_offsets(handover, OFFSETS))
                and all(now[at] > handed_back[at] for at in handed_back)
            ),
            SECONDS,
            "offsets that MirrorMaker 2 has recorded since",
        )
        handover.await_copies(500)
        mirror_maker.kill()
        assert "delete the flow, then take over again" in handover.refused("--takeover")
        assert "on since: it has recorded offset" in handover.refused("--hand-back")
        flow = ("--mirror", f"{handover.alias}-to-b")
        deleted = stage.mirrors("--delete", *flow)
        assert deleted.status == 0, deleted
        with handover.twinlog("--takeover") as output:
            second = handover.named(output)
            assert all(second[index].begin > handed_back[index] + 1 for index in second)
            handover.await_copies(500)
            tally = handover.prove(second)
            count = _recreate(handover)
            _remove_topics(stage, handover)
        assert "of which topic the offset is, is not known" in handover.refused("--hand-back")
        done = handover.twinlog_ends("--hand-back", "--own-offsets", "replace")
        assert done.count("MirrorMaker 2 begins as usual") == PARTITIONS
        ends = handover.ends()
        handover.start_mirror_maker(group)
        until(
            lambda: all(now >= end + count for now, end in zip(handover.ends(), ends, strict=True)),
            SECONDS,
            "all records of the new topic",
        )
    assert tally["twice"] == 0


@pytest.mark.long
def test_a_connector_in_a_connect_cluster_is_followed_and_goes_on(
    stage: Stage, tmp_path: Path
) -> None:
    """Goal: as Strimzi runs MirrorMaker 2; each record once, there and back.

    The dedicated mode's connector, in the same topic of offsets, copies elsewhere, and stays.
    """
    connector = "a3->b.MirrorSourceConnector"
    settings = {
        "b.group.id": GROUP_OF_CONNECT,
        "b.offset.storage.topic": OFFSETS_OF_CONNECT,
        "twinlog.takeover.connector": connector,
    }
    handover = Handover(tmp_path, "3", stage.source, stage.destination, settings)

    def recorded() -> dict[int, int]:
        return recorded_offsets(handover, OFFSETS_OF_CONNECT, connector)

    with ProcessGroup() as group, handover.writing(RATE):
        with connect_worker(handover, group, connector) as worker:
            until(recorded, SECONDS, "recorded offsets")
            assert f"its group {GROUP_OF_CONNECT} has the members" in handover.refused("--takeover")
            handover.await_copies(500)
            worker.kill()
        elsewhere = ConnectOffset(CONNECTOR, handover.cluster, TopicPartition(handover.topic, 0), 7)
        asyncio.run(_record(handover, elsewhere))
        assert "--takeover" in handover.refused()
        with handover.twinlog("--takeover") as output:
            named = handover.named(output)
            assert all(not partition.twice for partition in named.values())
            handover.await_copies(500)
            _remove_topics(stage, handover)
        done = handover.twinlog_ends("--hand-back")
        assert done.count("MirrorMaker 2 goes on at offset") == PARTITIONS
        assert done.count(f"not changed: connector {CONNECTOR}") == 1
        assert all(offset >= named[index].begin for index, offset in recorded().items())
        with connect_worker(handover, group, connector):
            handover.await_copies(500)
            tally = handover.prove(named)
    assert tally["twice"] == 0


async def _record(handover: Handover, offset: ConnectOffset) -> None:
    async with client(handover.target) as target:
        entries = [Entry(OFFSETS_OF_CONNECT, 0, *encode(offset))]
        await put(target, entries)


def _recreate(handover: Handover) -> int:
    """Delete and create the source topic; return how many records a partition has then.

    They are more than were copied of the former topic: a position of that one is within them.
    """
    count = handover.written // PARTITIONS + 100
    room = {"queue_buffering_max_messages": count}
    servers, topic = handover.source.bootstrap_servers, handover.topic
    librdkafka_tools.delete_topic(servers, topic)
    librdkafka_tools.make_topic(servers, topic, PARTITIONS)
    for index in range(PARTITIONS):
        librdkafka_tools.write(servers, topic, librdkafka_tools.simple(count, index), **room)
    return count


def _remove_topics(stage: Stage, handover: Handover) -> None:
    flow = ("--mirror", f"{handover.alias}-to-b")
    removed = stage.mirrors("--remove", "--topic", ".*", *flow, "--wait-seconds", "180")
    assert removed.status == 0, removed


def recorded_offsets(
    handover: Handover, offsets: str = "", connector: str = CONNECTOR
) -> dict[int, int]:
    """The offsets that the real MirrorMaker 2 has recorded, as soon as it has of all partitions."""

    async def read() -> dict[int, int]:
        found: dict[int, int] = {}
        async with client(handover.target) as target:
            topic = offsets or default_worker(handover.alias).offsets_topic
            if topic not in (await target.refresh([topic])).topics:
                return found
            for record in await read_whole(target, topic):
                one = decode(record.key, record.value)
                if one is not None and one.offset is not None and one.connector == connector:
                    # Byte for byte, so that Connect finds what is written on the way back.
                    assert encode(one) == (record.key, record.value)
                    place = TopicPartition(handover.topic, one.partition.partition)
                    assert one == ConnectOffset(connector, handover.cluster, place, one.offset)
                    found[place.partition] = one.offset
        return found

    found = asyncio.run(read())
    return found if len(found) == PARTITIONS else {}


def _check_groups(handover: Handover, begin: int) -> None:
    """Groups at the takeover and behind it are translated; one in front of it is not moved."""
    target = handover.target.bootstrap_servers

    def follow() -> bool:
        found = [
            librdkafka_tools.committed(target, group, handover.remote).get(0) for group in groups
        ]
        return found == [
            handover.place((begin + behind) * PARTITIONS) for behind in groups.values()
        ]

    groups = {"at": 0, "late": 30}
    until(follow, SECONDS, "the groups at the takeover and behind it")
    assert librdkafka_tools.committed(target, "early", handover.remote) == {}
