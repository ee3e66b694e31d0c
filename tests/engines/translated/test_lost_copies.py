"""A flow whose target loses copies, and gets records of others in their place: one broker."""

import asyncio
import secrets
from pathlib import Path

import pytest
from clients import client
from lane_processes import lanes
from lost_logs import SECONDS, copied, failed, lose, write
from transformed_flows import made
from waiting import until

from conftest import Pair
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.recorded_map import MapAnswer
from twinlog.operations.flow_results import Direction, TranslatedOffset
from twinlog.operations.offset_translation import read_flow_offsets
from twinlog.store.mirrors import MirrorStore

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def test_records_in_place_of_lost_copies_are_not_named_as_copies(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path
) -> None:
    """Goal: the log is longer than the map again, so its end does not show the loss."""
    pair = Pair(kafka, fragile)
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    asyncio.run(made(pair, mirror, topic, {}))
    source, remote = TopicPartition(topic, 0), TopicPartition(f"a.{topic}", 0)

    async def translated(direction: Direction) -> TranslatedOffset:
        async with client(fragile) as target:
            topics = (await MirrorStore(target).snapshot()).topics_of(mirror)
            known = await read_flow_offsets(target, topics, direction)
            if direction is Direction.TO_TARGET:
                return known.to_target(source, 2)
            return known.to_source(remote, 2)[0]

    def are(answer: MapAnswer) -> bool:
        answers = [asyncio.run(translated(direction)) for direction in Direction]
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
