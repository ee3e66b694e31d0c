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
from twinlog.operations.flow_results import CheckpointPlace, Direction, TranslatedOffsets
from twinlog.operations.flows import FlowAdmin
from twinlog.operations.offset_translation import FlowOffsets, TargetLog
from twinlog.operations.serialise import json_data
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, encode_key, key_of
from twinlog.store.control_topics import ControlTopics
from twinlog.store.snapshot import Place, Snapshot
from twinlog.sync.stored_checkpoints import StoredCheckpoints, UnreadableCheckpoint

NOW_MS = 1_700_000_000_000
YEAR_S = 365 * 86_400.0
SOURCE, REMOTE = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
SECOND, SECOND_REMOTE = TopicPartition("orders", 1), TopicPartition("A.orders", 1)
CLUSTER: Any = object()


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
    return StoredCheckpoints(list(ages), set(written_ms.values()), (), written_ms)


def stored_flow(
    mirror: Mirror,
    topics: Sequence[MirrorTopic],
    flow_age_s: float | None = YEAR_S,
    topic_age_s: float | None = YEAR_S,
) -> Snapshot:
    """A flow and its topics, whose records were written so long ago; None: it is not known."""
    ages = {key_of(mirror): flow_age_s} | {key_of(one): topic_age_s for one in topics}
    records: list[ConfigRecord] = [mirror, *topics]
    return Snapshot(
        {key_of(one): one for one in records},
        places={
            encode_key(key): Place(NOW_MS - int(age * 1000), 0)
            for key, age in ages.items()
            if age is not None
        },
    )


def ask(
    monkeypatch: pytest.MonkeyPatch,
    read: StoredCheckpoints,
    *,
    mirror: Mirror | None = None,
    topics: Sequence[MirrorTopic] | None = None,
    known: FlowOffsets | None = None,
    group: str = "g",
    flow_age_s: float | None = YEAR_S,
    topic_age_s: float | None = YEAR_S,
) -> TranslatedOffsets:
    """Ask for a group by its checkpoints."""
    fake(monkeypatch, read, known)
    snapshot = stored_flow(
        mirror or flow(), topics or [topic(partitions=2)], flow_age_s, topic_age_s
    )
    return asyncio.run(offsets_by_checkpoints(CLUSTER, snapshot, "A-to-B", group))


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
    assert (found.group, found.all_known) == ("g", True)
    data = json.loads(json.dumps(json_data(found)))
    assert data["checkpoints"] == {
        "topic": "A.checkpoints.internal",
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


@pytest.mark.parametrize(
    "former",
    [
        {"known_before": True},
        {"whole": True},
        {"lost_topic_ids": (UUID(int=7),)},
    ],
)
@pytest.mark.parametrize(("upstream", "downstream"), [(4, 54), (14, 60), (25, 71)])
def test_no_place_is_given_where_a_former_topic_was_known(
    upstream: int,
    downstream: int,
    former: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: its map may have had the same places, if both topics were recreated."""
    recreated = replace(topic(), **former)
    read = stored(checkpoint(upstream, downstream))
    (one,) = ask(monkeypatch, read, topics=[recreated]).offsets
    assert (one.target_offset, one.answer, one.known) == (None, MapAnswer.UNPROVEN, False)
    assert "may be about " in one.text


@pytest.mark.parametrize(
    ("flow_age_s", "topic_age_s", "known"),
    [
        (30, 30, True),
        (29, 30, True),  # the flow was altered since
        (30, 29, True),  # the topic was added, paused or removed since, in the same flow
        (29, 29, False),  # the flow was created since, or switched off
        (29, None, False),
        (None, None, False),
        (30, None, True),
    ],
)
def test_a_checkpoint_that_is_older_than_the_flow_proves_no_place(
    flow_age_s: float | None,
    topic_age_s: float | None,
    known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a flow that was deleted leaves checkpoints, of topics that are gone."""
    read = stored(checkpoint(4, 54), age_s=30)
    (one,) = ask(monkeypatch, read, flow_age_s=flow_age_s, topic_age_s=topic_age_s).offsets
    assert one.known == known
    if not known:
        assert (one.target_offset, one.answer) == (None, MapAnswer.UNPROVEN)
        assert one.text.startswith("its checkpoint (target offset 54; the map: offset 54) was not ")


@pytest.mark.parametrize("before_s", [0, 600, 900, 901, 86_400])
def test_a_checkpoint_that_is_not_written_again_proves_no_place(
    before_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the group may have no such offset any more."""
    read = stored(checkpoint(4, 54), age_s=before_s, last_age_s=0)
    (one,) = ask(monkeypatch, read).offsets
    assert one.known == (before_s <= 900)
    if not one.known:
        assert (one.target_offset, one.answer) == (None, MapAnswer.UNPROVEN)
        assert one.text.startswith("its checkpoint (target offset 54; the map: offset 54) was ")
        assert f"{before_s} s before the flow's last one" in one.text


def test_the_newest_checkpoint_counts_and_not_the_last_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = stored(checkpoint(4, 54), age_s=2000, last_age_s=1900)
    newest = read._replace(times_ms={*read.times_ms, NOW_MS - 1000})
    (one,) = ask(monkeypatch, newest).offsets
    assert (one.target_offset, one.answer) == (None, MapAnswer.UNPROVEN)


@pytest.mark.parametrize(("age_s", "stale"), [(900, False), (901, True), (30 * 86_400, True)])
@pytest.mark.parametrize(
    ("written", "place"),
    [(checkpoint(4, 54), 54), (checkpoint(14, 60), 65), (checkpoint(20, 71), 71)],
)
def test_an_old_checkpoint_is_not_certain(
    written: Checkpoint, place: int, age_s: int, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: also if no other one is newer. The flow may have gone on, and the group as well."""
    read = stored(written, age_s=age_s, last_age_s=age_s)
    found = ask(monkeypatch, read)
    (one,) = found.offsets
    assert (one.target_offset, one.known, found.all_known) == (place, not stale, not stale)
    assert (one.answer is MapAnswer.STALE) == stale
    if stale:
        assert (
            f"its checkpoint is {age_s} s old, and a flow at work writes all again every 600 s"
            in (one.text)
        )
        assert "what the group has committed since" in one.text


def test_a_checkpoint_of_unknown_age_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    read = stored(checkpoint(4, 54), age_s=-3600, last_age_s=-3600)
    (one,) = ask(monkeypatch, read).offsets
    assert (one.target_offset, one.answer, one.known) == (54, MapAnswer.STALE, False)
    assert one.text.startswith("its checkpoint is dated ahead of this machine's clock: ")


def test_an_old_checkpoint_ahead_of_all_copies_has_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    read = stored(checkpoint(25, 71), age_s=1000, last_age_s=1000)
    (one,) = ask(monkeypatch, read).offsets
    assert (one.target_offset, one.answer) == (None, MapAnswer.NOT_COPIED)
    assert "its checkpoint is 1000 s old" in one.text


@pytest.mark.parametrize(("owner", "all_known"), [("g", False), (None, False), ("h", True)])
def test_an_unreadable_checkpoint_of_the_group_is_not_certain(
    owner: str | None, all_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the exit status has it; that of another group does not matter."""
    unreadable = [UnreadableCheckpoint(owner, "the value of a checkpoint has version 7")]
    read = stored(checkpoint(4, 54))._replace(unreadable=unreadable)
    found = ask(monkeypatch, read)
    assert found.checkpoints is not None
    assert [one.known for one in found.offsets] == [True]
    assert found.all_known == all_known
    assert bool(found.checkpoints.unreadable) == (not all_known)


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
        "group h has no checkpoint in A.checkpoints.internal; whether it has committed offsets on "
        "the source is not known; check its name"
    )
    with pytest.raises(UserError, match=r"^group console-consumer-1 has no checkpoint in .*; gro"):
        ask(monkeypatch, StoredCheckpoints(), group="console-consumer-1")
    with pytest.raises(UserError, match=r"none at all, or .*replication.factor \(3\)"):
        ask(monkeypatch, StoredCheckpoints())
    unreadable = [UnreadableCheckpoint("g", "the value of a checkpoint is 7")]
    with pytest.raises(UserError, match="of which cannot be read: the value of a checkpoint"):
        ask(monkeypatch, StoredCheckpoints(unreadable=unreadable))


SWITCHES = [
    {"enabled": "false"},
    {"emit_checkpoints_enabled": "false"},
    {"emit_checkpoints_interval_seconds": "-1"},
    {"emit_offset-syncs_enabled": "false"},
]


@pytest.mark.parametrize("setting", SWITCHES)
def test_a_flow_without_checkpoints_says_so(
    setting: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one line that names the setting."""
    ((name, value),) = setting.items()
    with pytest.raises(UserError) as refused:
        ask(monkeypatch, StoredCheckpoints(), mirror=flow(**setting))
    switch = f"{name.replace('_', '.')}={value}"
    assert f"in A.checkpoints.internal, and the flow writes none ({switch}); " in str(refused.value)


@pytest.mark.parametrize("setting", SWITCHES)
def test_stored_checkpoints_of_a_flow_that_writes_none_any_more_count(
    setting: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: flows are switched off when their source is dead."""
    found = ask(monkeypatch, stored(checkpoint(4, 54)), mirror=flow(**setting), flow_age_s=1)
    assert [one.target_offset for one in found.offsets] == [54]


def admin(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> FlowAdmin:
    """Administer a flow whose source raises this, if it is asked."""

    class Store:
        def __init__(self, _: object) -> None:
            pass

        async def snapshot(self) -> Snapshot:
            return stored_flow(flow(), [topic()])

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


@pytest.mark.parametrize(("hint", "shown"), [("", "; "), ("check it", "; check it; ")])
def test_a_source_that_does_not_answer_is_an_error_that_names_the_flag(
    hint: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a slow or throttled source is not taken for dead; the user decides."""
    error = Retriable("127.0.0.1:1: cannot connect", cluster="source", hint=hint)
    flow_admin = admin(monkeypatch, error)
    fake(monkeypatch, stored(checkpoint(4, 54)))
    with pytest.raises(Retriable) as refused:
        asyncio.run(flow_admin.translate_group("A-to-B", "g"))
    assert str(refused.value) == (
        f"cluster source: 127.0.0.1:1: cannot connect{shown}if the source is dead, "
        "--from-checkpoints needs the target alone"
    )


def test_the_source_is_not_asked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    flow_admin = admin(monkeypatch, None)
    fake(monkeypatch, stored(checkpoint(4, 54)))
    found = asyncio.run(
        flow_admin.translate_group("A-to-B", "g", Direction.TO_TARGET, from_checkpoints=True)
    )
    assert [one.target_offset for one in found.offsets] == [54]
    with pytest.raises(UserError, match="expected direction TO_TARGET"):
        asyncio.run(
            flow_admin.translate_group("A-to-B", "g", Direction.TO_SOURCE, from_checkpoints=True)
        )
