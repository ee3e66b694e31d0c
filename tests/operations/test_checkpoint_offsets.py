"""Offsets of groups by checkpoints, put together from these, maps and names; no cluster."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.mm2_records import Checkpoint
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.recorded_map import MapAnswer, RecordedMap
from twinlog.operations import checkpoint_offsets, flows
from twinlog.operations.checkpoint_offsets import offsets_by_checkpoints
from twinlog.operations.flow_results import CheckpointPlace, Direction, Origin, TranslatedOffsets
from twinlog.operations.flows import FlowAdmin
from twinlog.operations.offset_translation import FlowOffsets, TargetLog
from twinlog.operations.serialise import json_data
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, key_of
from twinlog.store.control_topics import ControlTopics
from twinlog.store.snapshot import Snapshot
from twinlog.sync.stored_checkpoints import StoredCheckpoints

NOW_MS = 1_700_000_000_000
SOURCE, REMOTE = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
SECOND, SECOND_REMOTE = TopicPartition("orders", 1), TopicPartition("A.orders", 1)
CLUSTER: Any = object()
DEAD = Retriable("127.0.0.1:1: cannot connect", cluster="source")


def flow(**settings: str) -> Mirror:
    values = {"enabled": "true"} | {name.replace("_", "."): at for name, at in settings.items()}
    return Mirror(
        name="A-to-B",
        source={"bootstrap.servers": "a:1"} | flow_properties(values, "A", "B"),
        source_cluster_id="s",
        replication_factor=None,
    )


def topic(name: str = "orders", remote: str = "A.orders", partitions: int = 1) -> MirrorTopic:
    return MirrorTopic(
        mirror="A-to-B",
        topic=name,
        topic_id=UUID(int=1),
        partitions=partitions,
        destination_topic=remote,
    )


def offset_map() -> RecordedMap:
    """Source offsets 0 to 9 at 50 to 59, and 12 to 19 at 63 to 70; it begins at 40."""
    runs = OffsetRuns(Ends(Offset(0), Offset(40)))
    runs.append(Run(Offset(0), Offset(50), 10))
    runs.append(Run(Offset(12), Offset(63), 8))
    return RecordedMap(runs, Offset(20), pending=False)


def checkpoint(upstream: int, downstream: int, at: TopicPartition = REMOTE) -> Checkpoint:
    return Checkpoint(
        group="g", partition=at, upstream_offset=upstream, downstream_offset=downstream
    )


def stored(*checkpoints: Checkpoint, age_s: float = 30, last_age_s: float = 5) -> StoredCheckpoints:
    """These checkpoints, and the last one of the flow, which is of another group."""
    ages = dict.fromkeys(checkpoints, age_s) | {
        replace(checkpoint(1, 1), group="other"): last_age_s
    }
    written_ms = {(one.group, one.partition): NOW_MS - int(age * 1000) for one, age in ages.items()}
    return StoredCheckpoints(
        list(ages), set(written_ms.values()), (), written_ms, NOW_MS - int(last_age_s * 1000)
    )


def ask(
    monkeypatch: pytest.MonkeyPatch,
    read: StoredCheckpoints,
    *,
    mirror: Mirror | None = None,
    topics: Sequence[MirrorTopic] | None = None,
    known: FlowOffsets | None = None,
    group: str = "g",
    error: Retriable | None = DEAD,
) -> TranslatedOffsets:
    """Ask for a group whose source is dead."""
    fake(monkeypatch, read, known)
    return asyncio.run(
        offsets_by_checkpoints(
            CLUSTER, mirror or flow(), topics or [topic(partitions=2)], group, error
        )
    )


def fake(
    monkeypatch: pytest.MonkeyPatch, read: StoredCheckpoints, known: FlowOffsets | None = None
) -> None:
    """Replace what is read of the target; the order of reading is checked."""
    calls: list[str] = []

    async def checkpoints(cluster: object, name: str) -> StoredCheckpoints:
        assert (cluster, name) == (CLUSTER, "A.checkpoints.internal")
        calls.append("checkpoints")
        return read

    async def maps(_: object, topics: Sequence[MirrorTopic], *__: object) -> FlowOffsets:
        assert calls == ["checkpoints"], "a map that is read before may lack what was copied then"
        names = {n.source: t.on_destination(n) for t in topics for n in t.mirror_partitions}
        return known or FlowOffsets(
            names=names,
            maps={SOURCE: offset_map()},
            bounds=dict.fromkeys(names.values(), TargetLog(0, 100)),
            gone={},
        )

    monkeypatch.setattr(checkpoint_offsets, "read_checkpoints", checkpoints)
    monkeypatch.setattr(checkpoint_offsets, "read_flow_offsets", maps)
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)


def test_a_checkpoint_that_the_map_agrees_with_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the exact place, where it comes from, and how old it is."""
    found = ask(monkeypatch, stored(checkpoint(4, 54)))
    (one,) = found.offsets
    assert (one.source, one.source_offset, one.target, one.target_offset) == (SOURCE, 4, REMOTE, 54)
    assert (one.answer, one.known, one.text) == (MapAnswer.RECORD, True, "")
    assert one.checkpoint == CheckpointPlace(
        source_offset=4, target_offset=54, time_ms=NOW_MS - 30_000, age_ms=30_000
    )
    assert (found.origin, found.group, found.all_known) == (Origin.CHECKPOINTS, "g", True)
    data = json.loads(json.dumps(json_data(found)))
    assert data["origin"] == "checkpoints"
    assert data["checkpoints"] == {
        "topic": "A.checkpoints.internal",
        "source_error": str(DEAD),
        "without_checkpoint": [{"topic": "orders", "partition": 1}],
        "unreadable": [],
    }
    assert data["offsets"][0]["checkpoint"] == {
        "source_offset": 4,
        "target_offset": 54,
        "time_ms": NOW_MS - 30_000,
        "age_ms": 30_000,
    }


def test_the_map_has_the_place_of_what_was_copied_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a group that was ahead of the flow goes on at its next record, not before it."""
    (one,) = ask(monkeypatch, stored(checkpoint(14, 60))).offsets
    assert (one.target_offset, one.answer, one.known) == (65, MapAnswer.RECORD, True)
    assert one.text == "its checkpoint has target offset 60: less was copied then"


def test_a_group_that_is_ahead_of_all_copies_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = ask(monkeypatch, stored(checkpoint(25, 71))).offsets
    assert (one.source_offset, one.target_offset, one.answer) == (25, None, MapAnswer.NOT_COPIED)
    assert one.text.endswith(
        "the map ends at source offset 20; what the map has, up to target offset 71, was read by "
        "the group"
    )


@pytest.mark.parametrize(("upstream", "downstream"), [(4, 55), (14, 62), (14, 66), (4, 40), (4, 4)])
def test_no_place_is_given_if_the_map_disagrees(
    upstream: int, downstream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: neither that of the checkpoint, nor that of the map; the text has both."""
    found = ask(monkeypatch, stored(checkpoint(upstream, downstream)))
    (one,) = found.offsets
    place = offset_map().to_destination(upstream).offset
    assert (one.source_offset, one.target_offset) == (upstream, None)
    assert (one.answer, one.known, found.all_known) == (MapAnswer.UNPROVEN, False, False)
    assert one.text == (
        f"its checkpoint (target offset {downstream}; the map: offset {place}) may be about other "
        "records than the map, such as those of a former topic"
    )


def test_a_former_topic_of_the_same_name_proves_less(monkeypatch: pytest.MonkeyPatch) -> None:
    recreated = replace(topic(), known_before=True)
    (same,) = ask(monkeypatch, stored(checkpoint(4, 54)), topics=[recreated]).offsets
    assert same.target_offset == 54
    (grown,) = ask(monkeypatch, stored(checkpoint(14, 60)), topics=[recreated]).offsets
    assert (grown.target_offset, grown.answer) == (None, MapAnswer.UNPROVEN)


@pytest.mark.parametrize("before_s", [0, 600, 905, 906, 86_400])
def test_a_checkpoint_that_is_not_written_again_proves_no_place(
    before_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the group may have no such offset any more; that all are old is no reason."""
    read = stored(checkpoint(4, 54), age_s=7200 + before_s, last_age_s=7200 + 5)
    (one,) = ask(monkeypatch, read).offsets
    assert one.known == (before_s <= 905)
    if not one.known:
        assert (one.target_offset, one.answer) == (None, MapAnswer.UNPROVEN)
        assert one.text.startswith("its checkpoint (target offset 54; the map: offset 54) was ")
        assert f"{before_s - 5} s before the flow's last one" in one.text


def test_the_answers_of_the_map_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing is translated where copies are lost; the checkpoint's place is named."""
    lost = replace(offset_map(), lost=True)
    known = FlowOffsets(
        names={SOURCE: REMOTE}, maps={SOURCE: lost}, bounds={REMOTE: TargetLog(0, 100)}, gone={}
    )
    (one,) = ask(monkeypatch, stored(checkpoint(4, 54)), known=known).offsets
    assert (one.target_offset, one.answer) == (None, MapAnswer.LOST)
    assert one.text.endswith("; its checkpoint has target offset 54")


def test_a_partition_that_several_are_copied_to_has_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = [topic(), topic("orders-2")]
    (one,) = ask(monkeypatch, stored(checkpoint(4, 54)), topics=topics).offsets
    assert (one.source, one.target, one.target_offset) == (None, REMOTE, None)
    assert one.answer is MapAnswer.UNPROVEN
    assert one.text.startswith("orders-0, orders-2-0 are copied to this partition")


def test_a_checkpoint_of_a_topic_that_is_not_copied_has_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = checkpoint(4, 54, TopicPartition("A.clicks", 0))
    first, second = ask(monkeypatch, stored(checkpoint(4, 54), foreign)).offsets
    assert (first.target, first.answer) == (foreign.partition, MapAnswer.NOT_IN_FLOW)
    assert second.known


def test_a_group_without_checkpoints_is_no_group_without_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError) as refused:
        ask(monkeypatch, stored(checkpoint(4, 54)), group="h")
    assert str(refused.value) == (
        "the source cannot be reached (cluster source: 127.0.0.1:1: cannot connect), and group h "
        "has no checkpoint in A.checkpoints.internal; whether it has committed offsets on the "
        "source is not known; check its name"
    )
    with pytest.raises(UserError, match=r"^group console-consumer-1 has no checkpoint in .*; gro"):
        ask(monkeypatch, StoredCheckpoints(), group="console-consumer-1", error=None)
    with pytest.raises(UserError, match=r"none at all, or .*replication.factor \(3\)"):
        ask(monkeypatch, StoredCheckpoints())
    with pytest.raises(UserError, match="of which cannot be read: the value of a checkpoint"):
        ask(monkeypatch, StoredCheckpoints(unreadable=["the value of a checkpoint is 7"]))


@pytest.mark.parametrize(
    "setting",
    [
        {"emit_checkpoints_enabled": "false"},
        {"emit_checkpoints_interval_seconds": "-1"},
        {"emit_offset-syncs_enabled": "false"},
    ],
)
def test_a_flow_without_checkpoints_says_so(
    setting: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one line that names the setting, also if former checkpoints are there."""
    ((name, value),) = setting.items()
    with pytest.raises(UserError) as refused:
        ask(monkeypatch, stored(checkpoint(4, 54)), mirror=flow(**setting))
    assert f"writes no checkpoints ({name.replace('_', '.')}={value})" in str(refused.value)
    assert "the source cannot be reached" in str(refused.value)


def admin(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> FlowAdmin:
    """Administer a flow whose source raises this, if it is asked."""
    records: list[ConfigRecord] = [flow(), topic()]

    class Store:
        def __init__(self, _: object) -> None:
            pass

        async def snapshot(self) -> Snapshot:
            return Snapshot({key_of(record): record for record in records})

    def source(*_: object) -> Any:
        assert error is not None, "the source is not to be asked"
        raise error

    class Config:
        grants = None

    class Cluster:
        config = Config

    monkeypatch.setattr(flows, "MirrorStore", Store)
    monkeypatch.setattr(flows, "connected_source", source)
    monkeypatch.setattr(f"{__name__}.CLUSTER", Cluster)
    describe: Any = None
    return FlowAdmin(CLUSTER, ControlTopics(), describe)


def test_a_source_that_does_not_answer_is_replaced_by_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow_admin = admin(monkeypatch, DEAD)
    fake(monkeypatch, stored(checkpoint(4, 54)))
    found = asyncio.run(flow_admin.translate_group("A-to-B", "g"))
    assert found.checkpoints is not None
    assert found.checkpoints.source_error == str(DEAD)
    assert [one.target_offset for one in found.offsets] == [54]


def test_the_source_is_not_asked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    flow_admin = admin(monkeypatch, None)
    fake(monkeypatch, stored(checkpoint(4, 54)))
    found = asyncio.run(
        flow_admin.translate_group("A-to-B", "g", Direction.TO_TARGET, from_checkpoints=True)
    )
    assert found.checkpoints is not None
    assert found.checkpoints.source_error is None
    with pytest.raises(UserError, match="expected direction TO_TARGET"):
        asyncio.run(
            flow_admin.translate_group("A-to-B", "g", Direction.TO_SOURCE, from_checkpoints=True)
        )


def test_a_source_that_refuses_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a missing right, or another cluster at the address, is for the user to see."""
    flow_admin = admin(monkeypatch, UserError("the source is another cluster"))
    fake(monkeypatch, stored(checkpoint(4, 54)))
    with pytest.raises(UserError, match="another cluster"):
        asyncio.run(flow_admin.translate_group("A-to-B", "g"))
