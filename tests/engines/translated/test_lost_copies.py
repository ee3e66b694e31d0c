"""A flow whose target loses copies, and gets records of others in their place: one broker."""

import asyncio
from pathlib import Path

import pytest
from clients import client, patient
from confluent_kafka import TopicPartition as Place
from lane_processes import lanes
from librdkafka_tools import commit, consumer
from lost_logs import copied, copy_four, failed, lose, write
from stored_flows import losses
from transformed_flows import new_flow
from waiting import SECONDS, until
from whole_logs import read_whole_log

from conftest import Pair
from twinlog import MirrorAdmin
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.recorded_map import MapAnswer
from twinlog.operations.flow_results import Direction, TranslatedOffset
from twinlog.operations.offset_translation import read_flow_offsets
from twinlog.store.mirrors import MirrorStore

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]


@pytest.mark.long
def test_records_in_place_of_lost_copies_are_not_named_as_copies(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path
) -> None:
    """Goal: the log is longer than the map again, so its end does not show the loss."""
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {})
    remote = TopicPartition(f"a.{topic}", 0)

    def are(answer: MapAnswer) -> bool:
        answers = [translated(pair, mirror, topic, direction, 2)[0] for direction in Direction]
        return [one.answer for one in answers] == [answer, answer]

    with lanes(fragile.bootstrap_servers, tmp_path) as nodes:
        nodes.start("first")
        write(kafka.bootstrap_servers, topic, "0", "1", "2")
        copied(pair, topic, 0, "0", "1", "2")
        until(lambda: are(MapAnswer.RECORD), SECONDS, "the map")
        nodes.kill("first")
        lose(fragile, remote, 2)
        write(fragile.bootstrap_servers, remote.topic, "x", "y", "z")
        nodes.start("second")
        failed(pair, mirror, "lost records")
        until(lambda: are(MapAnswer.LOST), SECONDS, "the loss")
        until(lambda: losses(pair, mirror)[0].times == 1, SECONDS, "the count")
        nodes.end()
        nodes.start("third")
        failed(pair, mirror, "lost records")
        until(lambda: losses(pair, mirror)[0].times == 1, SECONDS, "the third owner's count")


def offsets_of(pair: Pair, remote: str) -> dict[bytes, int]:
    """Where each value is in a remote partition."""
    messages = (read_whole_log(pair.destination.bootstrap_servers, remote, [0]) or {0: []})[0]
    found = {one.value(): one.offset() for one in messages}
    assert len(found) == len(messages), "one is there twice"
    return found


def translated(
    pair: Pair, mirror: str, topic: str, direction: Direction, *offsets: int
) -> list[TranslatedOffset]:
    async def read() -> list[TranslatedOffset]:
        async with client(pair.destination) as target:
            snapshot = await MirrorStore(target).snapshot()
            topics, properties = snapshot.topics_of(mirror), snapshot.mirrors[mirror].source
            known = await read_flow_offsets(target, topics, properties, direction)
        if direction is Direction.TO_TARGET:
            return [known.to_target(TopicPartition(topic, 0), at) for at in offsets]
        return [known.to_source(TopicPartition(f"a.{topic}", 0), at)[0] for at in offsets]

    return asyncio.run(read())


@pytest.mark.parametrize(
    "running", [pytest.param(True, marks=pytest.mark.long), False], ids=["running", "killed"]
)
@pytest.mark.parametrize(
    "foreign",
    [(), pytest.param(("x", "y", "z"), marks=pytest.mark.long)],
    ids=["shorter", "refilled"],
)
def test_a_flow_that_passes_losses_goes_on(
    fragile: LocalCluster,
    kafka: LocalCluster,
    tmp_path: Path,
    running: bool,
    foreign: tuple[str, ...],
) -> None:
    """Goal: with `continue` nothing is missing or twice besides what the target has lost.

    Offsets before the loss are translated as before. Those of lost copies are translated to the
    next copied record, and no place of a lost copy is translated back. Another owner goes on, too.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {"twinlog.data.loss": "continue"})
    source, remote = kafka.bootstrap_servers, f"a.{topic}"

    def places(*values: str) -> list[int | None]:
        return [offsets_of(pair, remote).get(value.encode()) for value in values]

    def targets(*offsets: int) -> list[int | None]:
        return [
            one.target_offset
            for one in translated(pair, mirror, topic, Direction.TO_TARGET, *offsets)
        ]

    with lanes(fragile.bootstrap_servers, tmp_path) as nodes:
        nodes.start("first")
        for number in range(4):  # a batch for each
            write(source, topic, str(number))
            copied(pair, topic, 0, *map(str, range(number + 1)))
        before = places("0", "1", "2", "3")
        recorded = [*before, (before[3] or 0) + 1]  # the last copy, too: it is not the map's end
        until(lambda: targets(0, 1, 2, 3, 4) == recorded, SECONDS, "the map")
        if not running:
            nodes.kill("first")
        lose(fragile, TopicPartition(remote, 0), 2)
        if foreign:
            write(fragile.bootstrap_servers, remote, *foreign)
        if not running:
            nodes.start("second")
        counted = until(
            lambda: losses(pair, mirror)[0], SECONDS, "the count", good=lambda one: one.times == 1
        )
        write(source, topic, "4", "5")
        copied(pair, topic, 0, "0", "1", *foreign, "4", "5")
        after = places("0", "1", "4", "5")
        assert after[:2] == before[:2]
        # The last copy, too: until it is recorded, its place is the map's end.
        behind = [*after[:2], *[after[2]] * 2, *after[2:], (after[3] or 0) + 1]
        until(
            lambda: targets(0, 1, 2, 3, 4, 5, 6) == behind,
            SECONDS,
            "offsets before, in, and behind the loss",
        )
        back = translated(
            pair, mirror, topic, Direction.TO_SOURCE, *[at for at in before + after if at]
        )
        answers = {one.target_offset: (one.answer, one.source_offset) for one in back}
        assert {one for one in answers.values() if one[0] is MapAnswer.RECORD} == {
            (MapAnswer.RECORD, at) for at in (0, 1, 4, 5) if at or before[0]
        }
        for lost in set(before[2:]) - set(after):
            assert answers[lost] == (MapAnswer.LOST, None)
        assert f"{remote}-0, offsets [{before[2]}, " in str(counted.last)
        assert losses(pair, mirror)[0].times <= 1, "counted twice"  # 0: of an owner since then
        nodes.end()
        nodes.start("last")
        write(source, topic, "6")
        copied(pair, topic, 0, "0", "1", *foreign, "4", "5", "6")
        # The former owner's status stays until this one has written its own.
        until(lambda: losses(pair, mirror)[0].times == 0, SECONDS, "another owner's count")
    lines = "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert "going on at source offset 4 without the copies of [2, 4)" in lines


def places_back(pair: Pair, flow: str, *groups: str) -> list[tuple[MapAnswer, int | None]]:
    """Where `twinlog flows translate --to-source` has the only offset of each group."""

    async def ask() -> list[tuple[MapAnswer, int | None]]:
        async with MirrorAdmin(patient(pair.destination.bootstrap_servers)) as admin:
            results = [
                await admin.flows.translate_group(flow, group, Direction.TO_SOURCE)
                for group in groups
            ]
        return [(one.answer, one.source_offset) for result in results for one in result.offsets]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        pytest.param({}, (MapAnswer.RECORD, 1), marks=pytest.mark.long),
        # The map begins anew behind the loss.
        (
            {"transaction.producer": "true", "twinlog.offset.map": "true"},
            (MapAnswer.BEFORE_START, None),
        ),
    ],
    ids=["plans", "transactions"],
)
def test_what_a_group_has_committed_before_a_loss_is_not_translated_back(
    fragile: LocalCluster,
    kafka: LocalCluster,
    tmp_path: Path,
    settings: dict[str, str],
    kept: tuple[MapAnswer, int | None],
) -> None:
    """Goal: a group that goes back to the source skips nothing that it has not read.

    The copies of later records are at its offset by then, also at the one behind all copies.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {"twinlog.data.loss": "continue", **settings})
    servers, remote = fragile.bootstrap_servers, f"a.{topic}"
    with lanes(servers, tmp_path) as nodes:
        nodes.start("node")
        copy_four(pair, topic)
        before = offsets_of(pair, remote)
        with consumer(servers, topic) as reader:
            _, end = reader.get_watermark_offsets(Place(remote, 0), timeout=SECONDS)
        groups = [f"{topic}-{name}" for name in ("kept", "lost", "behind")]
        for group, offset in zip(groups, (before[b"1"], before[b"3"], end), strict=True):
            commit(servers, group, remote, {0: offset})
        exact = [(MapAnswer.RECORD, 1), (MapAnswer.RECORD, 3), (MapAnswer.END, 4)]
        until(lambda: places_back(pair, mirror, *groups) == exact, SECONDS, "the map")
        lose(fragile, TopicPartition(remote, 0), 2)
        later = [str(number) for number in range(4, 16)]
        write(kafka.bootstrap_servers, topic, *later)
        copied(pair, topic, 0, "0", "1", *later)
        after = offsets_of(pair, remote)
        assert after[b"4"] <= end < after[b"15"]
        last = f"{topic}-last"
        commit(servers, last, remote, {0: after[b"15"]})
        lost = (MapAnswer.LOST, None)
        until(
            lambda: places_back(pair, mirror, *groups, last),
            SECONDS,
            "answers behind the loss",
            good=lambda found: found == [kept, lost, lost, (MapAnswer.RECORD, 15)],
        )
