"""Which partitions are handed back to MirrorMaker 2, with records of the stores in memory.

The way back itself is in tests/end_to_end/test_mirror_maker_takeover.py.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from batch_builders import COMMIT, batch, marker, record
from remote_logs import RemoteLog

from twinlog.engines.base import NOTHING_COPIED
from twinlog.engines.transactional import settled
from twinlog.engines.transactional.positions import (
    PositionLost,
    SettledPosition,
    position_metadata,
)
from twinlog.engines.transactional.remote_tails import TailProblem, tail_of_batch
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.batch import TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.requests.partitions import ListedOffset, OffsetSpec
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.kafka.types import EpochEnd, LeaderEpoch, Offset, Sequence, TopicPartition
from twinlog.lifecycle import flow_handback, worker_offsets
from twinlog.lifecycle.flow_handback import HandedBack, hand_back
from twinlog.lifecycle.worker_offsets import (
    OwnOffsets,
    RecordedOffsets,
    read_recorded,
    write_offsets,
)
from twinlog.mirror.connect_offsets import CONNECTOR, ConnectOffset, encode
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime.steps import FORGONE
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted, encode_key, key_of
from twinlog.store.control_topics import States
from twinlog.store.offset_records import Route
from twinlog.store.snapshot import Snapshot
from twinlog.store.state_records import LastMirrored, PartitionState
from twinlog.store.topic_reader import ControlRecord
from twinlog.store.topic_writer import Entry

MIRROR = Mirror(
    name="a-to-b",
    source=flow_properties({"enabled": "true"}, "a", "b"),
    source_cluster_id="source",
)
TOPIC = MirrorTopic(
    mirror="a-to-b",
    topic="orders",
    topic_id=UUID(int=1),
    partitions=2,
    wanted=Wanted.STOPPED,
    destination_topic="a.orders",
    destination_topic_id=UUID(int=2),
    begins=(60,),
    offsets_topic_id=UUID(int=7),
)
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROUTE = Route(UUID(int=1), "a.orders", UUID(int=2))
TAIL = tail_of_batch(50, 3, (7, 4), Sequence(10))
"""The batch of the offsets 50 to 52."""


EPOCH = LeaderEpoch(3)
"""Of the source, of the last record that was copied."""


def name(source: TopicPartition) -> MirrorPartition:
    return MirrorPartition("a-to-b", *source)


def position(offset: int, metadata: str = "") -> SettledPosition:
    """Of the first partition, or whichever one `in_transactions` makes it."""
    return SettledPosition(Committed(offset, metadata, EPOCH), TopicPartition("a.orders", 0))


def in_transactions(
    monkeypatch: pytest.MonkeyPatch, positions: Mapping[TopicPartition, SettledPosition]
) -> None:
    """Have the flow write in transactions, with these positions."""
    properties = flow_properties({"enabled": "true", "transaction.producer": "true"}, "a", "b")
    monkeypatch.setattr(Stored, "mirror", replace(MIRROR, source=properties))

    async def settled_positions(
        _: object, group: str, topics: object
    ) -> Mapping[MirrorPartition, SettledPosition]:
        assert (group, topics) == ("twinlog.flow.a-to-b", [TOPIC])
        return {
            name(source): one._replace(remote=TopicPartition("a.orders", source.partition))
            for source, one in positions.items()
        }

    monkeypatch.setattr(flow_handback, "settled_positions", settled_positions)


class Stored:
    """`MirrorStore` with the flow; its partitions are STOPPED, some with a reason."""

    reasons: Mapping[int, str]
    mirror = MIRROR
    topic = TOPIC

    def __init__(self, _: KafkaCluster) -> None:
        pass

    async def snapshot(self) -> Snapshot:
        return Snapshot({key_of(record): record for record in (self.mirror, self.topic)})

    async def states(self) -> States:
        names = [MirrorPartition("a-to-b", "orders", index) for index in range(2)]
        states = {
            name: PartitionState(name, State.STOPPED, self.reasons.get(name.partition))
            for name in names
        }
        return States(states, {})


@pytest.fixture
def back(monkeypatch: pytest.MonkeyPatch) -> "Back":
    return Back(monkeypatch)


class Back:
    """Hands the flow back; what is written is in `written`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: dict[TopicPartition, int] = {}
        self.properties: Mapping[str, str] | None = None
        self.topics: list[str] = []
        self.alias = "a"
        self.connector = CONNECTOR
        self.group = "a-mm2"
        self.own = OwnOffsets.REFUSE
        self.partitions = 2
        """Of the topic on the source."""
        self.log_end: ListedOffset | Refusal = ListedOffset(100_000, -1, -1)
        """The high watermark of each partition of the source."""
        self.log_start = 0
        """And the log start."""
        self.epoch_end: EpochEnd | Refusal | None = None
        """Of each epoch there; None: it is the last one."""
        self.recorded: dict[str, list[ControlRecord]] = {}
        """The records of the topics of Connect; the others do not exist."""
        self.source: list[dict[str, SimpleNamespace]] = []
        """What each broker of the source knows; the first one answers first."""
        self.source_has(1)
        self._patch = monkeypatch
        monkeypatch.setattr(flow_handback, "MirrorStore", Stored)
        monkeypatch.setattr(flow_handback, "list_offsets", self.list_offsets)
        monkeypatch.setattr(flow_handback, "offset_for_leader_epoch", self.epoch_ends)

    def source_has(self, *topic_ids: int | None, error: int = 0) -> None:
        """The topic on the source, as its brokers know it; None: there is none."""
        self.source = [
            {}
            if topic_id is None
            else {"orders": SimpleNamespace(topic_id=UUID(int=topic_id), error=error)}
            for topic_id in topic_ids
        ]

    async def list_offsets(
        self, _: object, keys: list[TopicPartition], which: OffsetSpec
    ) -> object:
        if which is OffsetSpec.EARLIEST:
            return dict.fromkeys(keys, ListedOffset(self.log_start, -1, -1))
        return dict.fromkeys(keys, self.log_end)

    async def epoch_ends(self, _: object, epochs: Mapping[TopicPartition, int]) -> object:
        return {
            key: EpochEnd(epoch, 100_000) if self.epoch_end is None else self.epoch_end
            for key, epoch in epochs.items()
        }

    def __call__(
        self,
        ends: Mapping[TopicPartition, int],
        reasons: Mapping[int, str],
        remote: int | None = 2,
        recorded_in: int | None = 7,
    ) -> list[HandedBack]:
        there = {} if remote is None else {"a.orders": SimpleNamespace(topic_id=UUID(int=remote))}

        async def existing(*_: object) -> object:
            return there

        async def refresh(names: list[str]) -> object:
            assert names == ["orders"]
            return SimpleNamespace(topics=self.source[0])

        async def known_topics(_: object, names: list[str]) -> object:
            assert names == ["orders"]
            ids = [broker["orders"].topic_id for broker in self.source if broker]
            known = KnownTopic(
                frozenset(ids), self.partitions, internal=False, everywhere=all(self.source)
            )
            return {"orders": known} if ids else {}

        @asynccontextmanager
        async def source(mirror: Mirror, _: object) -> AsyncIterator[object]:
            assert mirror.name == "a-to-b"
            yield SimpleNamespace(refresh=refresh)

        async def read(_: object, topics: list[MirrorTopic]) -> object:
            copied = {source: LastMirrored(EPOCH, Offset(end)) for source, end in ends.items()}
            return copied if topics else {}

        async def offsets_id(*_: object) -> UUID | None:
            return None if recorded_in is None else UUID(int=recorded_in)

        async def members(_: object, group: str) -> list[str]:
            assert group == self.group
            return []

        async def partition_count(_: object, topic: str) -> int | None:
            return 25 if topic in self.recorded else None

        async def absent(_: object, topic: str) -> None:
            assert topic not in self.recorded

        async def read_whole(_: object, topic: str) -> list[ControlRecord]:
            return self.recorded[topic]

        async def write(
            _: object,
            connector: str,
            alias: str,
            recorded: RecordedOffsets,
            upto: Mapping[TopicPartition, int],
        ) -> None:
            assert (connector, alias) == (self.connector, self.alias)
            self.topics.append(recorded.topic)
            self.written.update(upto)

        self._patch.setattr(Stored, "reasons", reasons, raising=False)
        self._patch.setattr(flow_handback, "connected_source", source)
        self._patch.setattr(flow_handback, "known_topics", known_topics)
        self._patch.setattr(flow_handback, "existing_topics", existing)
        self._patch.setattr(flow_handback, "offsets_topic_id", offsets_id)
        self._patch.setattr(flow_handback, "read_last_copied", read)
        self._patch.setattr(flow_handback, "member_clients", members)
        self._patch.setattr(worker_offsets, "partition_count", partition_count)
        self._patch.setattr(worker_offsets, "confirm_absent", absent)
        self._patch.setattr(worker_offsets, "read_whole", read_whole)
        self._patch.setattr(flow_handback, "write_offsets", write)
        properties = self.properties or Stored.mirror.source
        return asyncio.run(hand_back(cast("KafkaCluster", None), "a-to-b", properties, self.own))


def test_what_was_copied_is_handed_back(back: Back) -> None:
    assert back({FIRST: 80, SECOND: 7}, {}) == [HandedBack(FIRST, 79), HandedBack(SECOND, 6)]
    assert back.written == {FIRST: 80, SECOND: 7}
    assert back.topics == ["mm2-offsets.a.internal"]


def test_a_topic_with_an_unreadable_record_is_not_left_out(
    back: Back, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: MirrorMaker 2 does not copy again what was copied of a topic that is not known."""
    key = encode_key(("topic", "a-to-b", "invoices"))

    async def snapshot(self: Stored) -> Snapshot:
        records = {key_of(record): record for record in (self.mirror, self.topic)}
        return Snapshot(records, unreadable={(0, key): "of a newer version"})

    monkeypatch.setattr(Stored, "snapshot", snapshot)
    with pytest.raises(UserError, match="how far invoices was copied: its record cannot be read"):
        back({FIRST: 80, SECOND: 7}, {})
    assert back.written == {}


def test_it_is_handed_back_by_the_names_that_mirror_maker_reads(back: Back) -> None:
    """Goal: those of its file, whatever is stored; not to another remote topic."""
    values = {
        "enabled": "true",
        "connect.group.id": "mm2-prod",
        "connect.offset.storage.topic": "offsets",
        "connect.offsets.storage.topic": "own",
    }
    back.properties, back.group = flow_properties(values, "a", "b"), "mm2-prod"
    back({FIRST: 80, SECOND: 7}, {})
    assert back.topics == ["offsets", "own"]
    other = {**values, "source.cluster.alias": "eu"}
    back.properties = flow_properties(other, "a", "b")
    with pytest.raises(UserError, match=r"copies orders to eu\.orders, and flow a-to-b has copied"):
        back({FIRST: 80, SECOND: 7}, {})
    identity = {**other, "replication.policy.class": "IdentityReplicationPolicy"}
    back.properties, back.alias = flow_properties(identity, "a", "b"), "eu"
    with pytest.raises(UserError, match="copies orders to orders, and flow"):
        back({FIRST: 80, SECOND: 7}, {})
    assert back.topics == ["offsets", "own"]


def test_a_topic_that_the_settings_have_removed_has_to_be_removed_for_good(
    back: Back, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a later start of the flow does not copy what MirrorMaker 2 has copied since."""
    monkeypatch.setattr(Stored, "topic", replace(Stored.topic, not_selected=True))
    with pytest.raises(UserError, match="orders-0 of flow a-to-b is STOPPED, not selected, exp"):
        back({FIRST: 80, SECOND: 7}, {})
    assert back.written == {}


def test_a_partition_of_which_it_is_not_known_what_has_landed_is_refused(back: Back) -> None:
    """Goal: MirrorMaker 2 does not go on at an offset that is only the last one recorded."""
    with pytest.raises(UserError, match=r"not known what of orders-1 was copied: it lost records"):
        back({FIRST: 80, SECOND: 7}, {1: "it lost records"})
    with pytest.raises(UserError, match="not known what of orders-1 was copied: it has no stored"):
        back({FIRST: 80, SECOND: 7}, {1: FORGONE})  # what was copied was not fenced
    assert back.written == {}


@pytest.mark.parametrize("reason", [NOTHING_COPIED, FORGONE])
def test_a_partition_that_the_flow_has_not_begun_is_handed_back_where_it_began(
    back: Back, reason: str
) -> None:
    """Goal: that nothing was copied is known, although it has a reason.

    It may have been removed before a lane started it.
    """
    reasons = dict.fromkeys((0, 1), reason)
    assert back({}, reasons) == [HandedBack(FIRST, 59)]
    assert back.written == {FIRST: 60, SECOND: 0}


@pytest.mark.parametrize("ends", [{FIRST: 80}, {}])
@pytest.mark.parametrize(
    "reason",
    [
        "nothing of a former owner is stored, and the log is not empty: what was copied is unknown",
        "the remote topic a.orders was deleted on the destination",
    ],
)
def test_a_partition_without_a_record_that_may_have_had_one_is_refused(
    back: Back, ends: dict[TopicPartition, int], reason: str
) -> None:
    """Goal: the offset that MirrorMaker 2 has is not removed as if nothing were copied."""
    with pytest.raises(UserError, match=f"not known what of orders-1 was copied: {reason}"):
        back(ends, {1: reason})
    assert back.written == {}


@pytest.mark.parametrize("ends", [{FIRST: 80}, {}])
@pytest.mark.parametrize("transactions", ["false", "true"])
def test_what_was_recorded_in_a_topic_that_was_recreated_is_not_nothing(
    back: Back, monkeypatch: pytest.MonkeyPatch, ends: dict[TopicPartition, int], transactions: str
) -> None:
    """Goal: MirrorMaker 2 does not copy again what the flow has copied; an unknown id is none."""
    ends = dict(ends)
    settings = {"enabled": "true", "transaction.producer": transactions}
    properties = flow_properties(settings, "a", "b")
    monkeypatch.setattr(Stored, "mirror", replace(MIRROR, source=properties))

    async def settled_positions(*_: object) -> Mapping[MirrorPartition, SettledPosition]:
        return {name(source): position(end) for source, end in ends.items()}

    monkeypatch.setattr(flow_handback, "settled_positions", settled_positions)
    with pytest.raises(
        UserError, match=r"not known what of orders-\d was copied: __mirror_offsets"
    ):
        back(ends, {}, recorded_in=8)
    assert back.written == {}
    both = {FIRST: 80, SECOND: 7}
    ends.update(both)
    assert back(both, {}, recorded_in=8) == [HandedBack(FIRST, 79), HandedBack(SECOND, 6)]
    assert back({FIRST: 80, SECOND: 7}, {}, recorded_in=None)


@pytest.mark.parametrize("ends", [{FIRST: 80}, {}])
@pytest.mark.parametrize(("remote", "text"), [(3, "was recreated"), (None, "is gone")])
def test_a_remote_topic_without_the_copies_is_refused(
    back: Back, ends: dict[TopicPartition, int], remote: int | None, text: str
) -> None:
    """Goal: what is not in the remote topic any more is not recorded as copied."""
    with pytest.raises(UserError, match=text):
        back(ends, {}, remote)
    assert back.written == {}


def test_a_flow_in_transactions_is_handed_back_at_its_positions(
    back: Back, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a position is known whatever was the matter with its partition; a lost one is not."""
    in_transactions(monkeypatch, {FIRST: position(80), SECOND: position(7)})
    reasons = {0: "the record at offset 80 cannot be transformed"}
    assert back({}, reasons) == [HandedBack(FIRST, 79), HandedBack(SECOND, 6)]
    # An operator has set it back, in front of where MirrorMaker 2 had copied to (60).
    in_transactions(monkeypatch, {FIRST: position(40), SECOND: position(7)})
    # What that has recorded is still there.
    back.recorded = {WORKER: stored(FIRST, 59)}
    assert back({}, {})[0].last == 39
    assert back.written[FIRST] == 40
    back.recorded = {WORKER: stored(FIRST, 60)}
    with pytest.raises(UserError, match="MirrorMaker 2 has copied orders-0 on since"):
        back({}, {})
    back.recorded = {}

    async def lost(*_: object) -> Mapping[MirrorPartition, SettledPosition]:
        raise PositionLost("the position is lost: group g has no offset")

    monkeypatch.setattr(flow_handback, "settled_positions", lost)
    with pytest.raises(UserError, match="not known what flow a-to-b has copied: the position is"):
        back({}, {})


def own(*, epoch: int = 4) -> bytes:
    """The batch of `TAIL`, and the marker of its transaction."""
    built = build([record(at) for at in range(50, 53)], Codec.NONE)
    batch = whole(built, producer_id=7, epoch=epoch, sequence=10)
    return (50).to_bytes(8, "big") + batch[8:] + marker(53, 7, COMMIT)


LATER = batch([record(54), record(55)], attributes=TRANSACTIONAL, producer_id=7)


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (RemoteLog(b"", 45), "has lost records: a.orders-0 ends at 45, and records were copied"),
        (RemoteLog(own(epoch=5), 54), "has lost records, and others were written in their place"),
        (RemoteLog(own() + LATER + marker(56, 7, COMMIT), 57), "older than the copy"),
    ],
)
def test_a_position_that_the_target_s_log_contradicts_is_not_handed_back(
    back: Back, monkeypatch: pytest.MonkeyPatch, log: RemoteLog, text: str
) -> None:
    """Goal: MirrorMaker 2 neither leaves out what the target has lost, nor copies it again.

    The seal of such a partition compares nothing, so it is STOPPED without a reason.
    """
    metadata = position_metadata(ROUTE, None, TAIL)
    at = position(80, metadata)._replace(own_ids=(7,))
    in_transactions(monkeypatch, {FIRST: at, SECOND: position(7)})
    monkeypatch.setattr(settled, "KafkaDestination", lambda *_: log)
    with pytest.raises(UserError, match=text) as error:
        back({}, {})
    assert "orders-0: the " in str(error.value)
    assert (
        "position 80 of group twinlog.flow.a-to-b; commit the source's offset to go on at; "
        "then hand it back"
    ) in str(error.value)
    assert back.written == {}
    # The operator decides: what is committed then has no tail.
    in_transactions(monkeypatch, {FIRST: position(70), SECOND: position(7)})
    assert back({}, {}) == [HandedBack(FIRST, 69), HandedBack(SECOND, 6)]


def test_what_cannot_be_compared_now_is_not_handed_back(
    back: Back, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: silence of the target proves nothing, and hides no loss of another partition."""
    at = position(80, position_metadata(ROUTE, None, TAIL))
    in_transactions(monkeypatch, {FIRST: at, SECOND: position(7)})
    unread = RemoteLog(own(), 54, error=ErrorCode.LEADER_NOT_AVAILABLE)
    monkeypatch.setattr(settled, "KafkaDestination", lambda *_: unread)
    with pytest.raises(Retriable, match=r"cannot read the log end of a\.orders-0"):
        back({}, {})
    problems: Mapping[MirrorPartition, TailProblem] = {
        name(FIRST): Retriable("not now"),
        name(SECOND): LostEnd("records are lost"),
    }

    async def compared(*_: object) -> Mapping[MirrorPartition, TailProblem]:
        return problems

    monkeypatch.setattr(flow_handback, "compare_settled", compared)
    with pytest.raises(UserError, match="orders-1: records are lost; position 7 of"):
        back({}, {})
    assert back.written == {}
    monkeypatch.setattr(flow_handback, "compare_settled", settled.compare_settled)
    monkeypatch.setattr(settled, "KafkaDestination", lambda *_: RemoteLog(own(), 54))
    assert back({}, {}) == [HandedBack(FIRST, 79), HandedBack(SECOND, 6)]


def test_a_remote_topic_that_is_gone_is_no_log_to_wait_for(
    back: Back, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the line says what has happened, and not that a log cannot be read now."""
    at = position(80, position_metadata(ROUTE, None, TAIL))
    in_transactions(monkeypatch, {FIRST: at})
    unread = RemoteLog(b"", 0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    monkeypatch.setattr(settled, "KafkaDestination", lambda *_: unread)
    with pytest.raises(UserError, match=r"the remote topic a\.orders is gone"):
        back({}, {}, remote=None)


BOTH = {FIRST: 80, SECOND: 7}


@pytest.mark.parametrize("transactions", [False, True])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ((79, None), "up to offset 80; on the source, the log ends at 79"),
        ((200, EpochEnd(3, 79)), "of leader epoch 3; on the source, epoch 3 ends at offset 79"),
        ((200, EpochEnd(2, 60)), "of leader epoch 3; on the source, epoch 2 ends at offset 60"),
        ((200, EpochEnd(2, 90)), "of leader epoch 3; on the source, epoch 2 ends at offset 90"),
    ],
)
def test_what_the_source_has_lost_is_not_handed_back(
    back: Back,
    monkeypatch: pytest.MonkeyPatch,
    transactions: bool,
    source: tuple[int, EpochEnd | None],
    text: str,
) -> None:
    """Goal: MirrorMaker 2 does not skip what producers have written in the place of lost records.

    Nor does it begin by auto.offset.reset, since its offset is behind the end of the log.
    """
    hint = "delete flow a-to-b without --hand-back"
    if transactions:
        in_transactions(monkeypatch, {one: position(end) for one, end in BOTH.items()})
        hint = "commit the source's offset to go on at for group twinlog.flow.a-to-b"
    back.log_end, back.epoch_end = ListedOffset(source[0], -1, -1), source[1]
    with pytest.raises(UserError) as error:
        back(BOTH, {})
    lost = "the source has lost records that were copied: orders-0 was copied up to offset 80"
    assert lost in str(error.value)
    assert text in str(error.value)
    assert hint in error.value.hint
    assert back.written == {}


def test_where_another_program_has_copied_to_is_in_the_source_s_log(back: Back) -> None:
    """Goal: also of a partition of which the flow has copied nothing."""
    back.log_end = ListedOffset(59, -1, -1)
    with pytest.raises(UserError, match=r"orders-0 was copied up to offset 60; .* ends at 59"):
        back({SECOND: 7}, {})
    back.log_end = ListedOffset(60, -1, -1)
    assert back({SECOND: 7}, {}) == [HandedBack(FIRST, 59), HandedBack(SECOND, 6)]


@pytest.mark.parametrize("epoch_end", [EpochEnd(3, 80), EpochEnd(3, 150)])
def test_a_source_that_ends_where_the_copy_does_has_lost_nothing(
    back: Back, monkeypatch: pytest.MonkeyPatch, epoch_end: EpochEnd
) -> None:
    """Goal: an election is no loss; without an epoch of the last record, only ends are compared."""
    back.log_end, back.epoch_end = ListedOffset(80, -1, -1), epoch_end
    assert back(BOTH, {}) == [HandedBack(FIRST, 79), HandedBack(SECOND, 6)]
    back.epoch_end = EpochEnd(2, 10)
    unknown = SettledPosition(Committed(80), TopicPartition("a.orders", 0))
    in_transactions(monkeypatch, {FIRST: unknown, SECOND: unknown})
    assert back({}, {}) == [HandedBack(FIRST, 79), HandedBack(SECOND, 79)]


def test_a_source_that_does_not_answer_decides_nothing(back: Back) -> None:
    """Goal: neither a broker's refusal nor an epoch that it does not know counts as equal."""
    answered = back.log_end
    back.log_end = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(Retriable, match="cannot read the source's log end"):
        back(BOTH, {})
    back.log_end, back.epoch_end = answered, Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH)
    with pytest.raises(Retriable, match="cannot read the end of a leader epoch"):
        back(BOTH, {})
    back.epoch_end = EpochEnd(-1, -1)
    with pytest.raises(UserError, match="leader epoch 3, which its leader on the source"):
        back(BOTH, {})
    assert back.written == {}


@pytest.mark.parametrize("topic_id", [9, None])
@pytest.mark.parametrize("reasons", [{}, {0: "it lost records"}])
def test_what_was_copied_of_a_former_source_topic_is_not_handed_back(
    back: Back, topic_id: int | None, reasons: dict[int, str]
) -> None:
    """Goal: MirrorMaker 2 does not skip records of a topic that was recreated, or will be."""
    back.source_has(topic_id)
    found = back({FIRST: 52_020, SECOND: 7}, reasons, remote=None, recorded_in=8)
    assert found == [HandedBack(one, None, former=True) for one in (FIRST, SECOND)]
    assert "orders-0: MirrorMaker 2 begins as usual" in str(found[0])
    assert back.written == {FIRST: 0, SECOND: 0}, "nothing is recorded"


def test_an_offset_of_a_source_topic_that_was_recreated_is_removed_on_the_operator_s_word(
    back: Back,
) -> None:
    """Goal: a hand-back that is repeated does not have all of the new topic copied again.

    After the first one MirrorMaker 2 has copied it, and recorded that. An offset of the former
    topic looks alike. What a file has for a takeover, or another connector, decides nothing.
    """
    back.source_has(9)
    back.recorded = {WORKER: stored(FIRST, 4999, None, 70) + stored(SECOND, 8, connector="x")}
    for takeover in ("compare", "recorded", "ignore"):
        in_file(back, twinlog_takeover=takeover)
        with pytest.raises(UserError, match=r"offset 70 of orders-0, and .* was recreated"):
            back({FIRST: 80, SECOND: 7}, {})
    assert back.topics == []
    first, second = HandedBack(FIRST, None, former=True), HandedBack(SECOND, None, former=True)
    second = second._replace(others=("x",))
    back.own = OwnOffsets.KEEP
    assert back({FIRST: 80, SECOND: 7}, {}) == [first._replace(last=70, own=70), second]
    assert back.written == {SECOND: 0}
    back.own = OwnOffsets.REPLACE
    removed = back({FIRST: 80, SECOND: 7}, {})
    assert removed == [first._replace(own=70), second]
    recreated = "the source topic was deleted or recreated after the flow had copied it"
    assert list(map(str, [first._replace(last=70, own=70), *removed])) == [
        f"orders-0: MirrorMaker 2 goes on at offset 71, as it has recorded itself; {recreated}",
        f"orders-0: MirrorMaker 2 begins as usual; {recreated}; it had recorded offset 70 itself",
        f"orders-1: MirrorMaker 2 begins as usual; {recreated}; not changed: connector x",
    ]
    assert back.written == {FIRST: 0, SECOND: 0}


def test_an_offset_of_a_deleted_source_topic_is_removed_in_any_case(back: Back) -> None:
    """Goal: it is of no topic, and MirrorMaker 2 would skip records of the next one."""
    back.source_has(None)
    back.recorded = {WORKER: stored(FIRST, 70)}
    for own in OwnOffsets:
        back.own = own
        back.written.clear()
        assert len(back({FIRST: 80, SECOND: 7}, {})) == 2
        assert back.written == {FIRST: 0, SECOND: 0}


def test_an_offset_of_a_partition_that_was_not_recreated_is_removed_in_any_case(
    back: Back,
) -> None:
    """Goal: one that the present topic lacks, or whose log ends before it, refuses nothing."""
    back.source_has(9)
    back.partitions = 1
    back.recorded = {WORKER: stored(FIRST, 70) + stored(SECOND, 70)}
    back.own = OwnOffsets.KEEP
    assert [one.last for one in back({}, {})] == [70, None]
    assert back.written == {SECOND: 0}
    back.log_end = ListedOffset(70, -1, -1)
    for own in OwnOffsets:
        back.own = own
        back.written.clear()
        first, second = back({}, {})
        assert (first.last, first.own, second.last, second.own) == (None, 70, None, 70)
        assert back.written == {FIRST: 0, SECOND: 0}


def test_an_offset_that_is_kept_is_in_the_source_s_log(back: Back) -> None:
    """Goal: MirrorMaker 2 does not skip what is written up to an offset of a former log."""
    back.own = OwnOffsets.KEEP
    back.recorded = {WORKER: stored(FIRST, 4999)}
    back.log_end = ListedOffset(4999, -1, -1)
    with pytest.raises(UserError, match=r"offset 4999 of orders-0, .* which ends at 4999"):
        back({FIRST: 80}, {})
    for topic_id in (1, 9):
        back.source_has(topic_id)
        back.log_end = Refusal(ErrorCode.LEADER_NOT_AVAILABLE)
        with pytest.raises(TwinlogError, match="read the source's log end"):
            back({}, {})
    back.source_has(1)
    assert back.topics == []
    back.log_end = ListedOffset(5000, -1, -1)
    kept, *_ = back({FIRST: 80}, {})
    assert kept.last == 4999


@pytest.mark.parametrize(("log_start", "upto"), [(79, 80), (80, 80), (81, 81), (5000, 5000)])
def test_what_the_source_has_is_not_skipped_where_it_has_deleted_more(
    back: Back, log_start: int, upto: int
) -> None:
    """Goal: in front of the log MirrorMaker 2 would begin at its end, with `latest`."""
    in_file(back, consumer_auto_offset_reset="latest")
    back.log_start = log_start
    first, *_ = back({FIRST: 80, SECOND: 90_000}, {})
    assert back.written == {FIRST: upto, SECOND: 90_000}
    deleted = f"; the source has deleted offsets 80 to {upto - 1} before they were copied"
    assert str(first) == f"orders-0: MirrorMaker 2 goes on at offset {upto}" + (
        deleted if upto > 80 else ""
    )


def test_an_offset_that_is_kept_is_not_in_front_of_the_source_s_log(back: Back) -> None:
    """Goal: the same for an offset of MirrorMaker 2 itself."""
    back.recorded = {WORKER: stored(FIRST, 4999)}
    back.own, back.log_start = OwnOffsets.KEEP, 5001
    for topic_id in (9, 1):  # a recreated topic, too
        back.source_has(topic_id)
        with pytest.raises(UserError, match=r"offset 4999 of orders-0, .* which begins at 5001"):
            back({FIRST: 80}, {})
    assert back.topics == []
    back.log_start = 5000
    kept, *_ = back({FIRST: 80}, {})
    assert (kept.last, kept.deleted_from) == (4999, None)
    back.own, back.log_start = OwnOffsets.REPLACE, 5001
    replaced, *_ = back({FIRST: 80}, {})
    assert (replaced.last, replaced.own, replaced.deleted_from) == (5000, 4999, 80)


@pytest.mark.parametrize("topic_id", [1, 9])
def test_partitions_that_begin_at_their_end_are_named(back: Back, topic_id: int) -> None:
    """Goal: Connect cannot record that nothing was copied; what is skipped is not silent."""
    in_file(back, consumer_auto_offset_reset="latest")
    back.source_has(topic_id)
    found = {one.source: one for one in back({FIRST: 80}, {})}
    assert "orders-1: MirrorMaker 2 begins at the end of the log" in str(found[SECOND])
    assert found[FIRST].at_end == (topic_id == 9)


@pytest.mark.parametrize("topic_id", [1, 9])
def test_partitions_that_the_flow_never_got_are_named_where_they_begin_at_their_end(
    back: Back, topic_id: int
) -> None:
    """Goal: what the source has got since the topics were removed is not skipped in silence."""
    back.source_has(topic_id)
    back.partitions = 4
    third, fourth = TopicPartition("orders", 2), TopicPartition("orders", 3)
    assert {one.source for one in back({FIRST: 80, SECOND: 7}, {})} == {FIRST, SECOND}
    in_file(back, consumer_auto_offset_reset="latest")
    back.recorded = {WORKER: stored(third, 5, connector="x")}
    found = back({FIRST: 80, SECOND: 7}, {})
    assert [one.source for one in found] == [FIRST, SECOND, third, fourth]
    is_former = topic_id == 9
    assert found[2:] == [
        HandedBack(third, None, former=is_former, at_end=True, others=("x",)),
        HandedBack(fourth, None, former=is_former, at_end=True),
    ]
    assert "orders-3: MirrorMaker 2 begins at the end of the log" in str(found[3])
    assert back.written.keys() == {FIRST, SECOND}
    # MirrorMaker 2 goes on where it has recorded an offset itself, and skips nothing.
    back.recorded = {WORKER: stored(third, 5)}
    assert [one.source for one in back({FIRST: 80, SECOND: 7}, {})] == [FIRST, SECOND, fourth]


def test_a_deleted_source_topic_has_no_further_partitions(back: Back) -> None:
    """Goal: only partitions that a broker shows are named beside those of the flow."""
    in_file(back, consumer_auto_offset_reset="latest")
    back.source_has(None)
    assert [one.source for one in back({FIRST: 80, SECOND: 7}, {})] == [FIRST, SECOND]


def test_a_source_that_does_not_tell_the_topic_decides_nothing(
    back: Back, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: both are proved: that it is the same topic, and that there is none any more.

    Topics of a source that has no ids (before Kafka 2.8) count as the same.
    """
    back.source_has(0)
    with pytest.raises(Retriable, match="does not know its id"):
        back({FIRST: 80, SECOND: 7}, {})
    back.source_has(1, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(UserError, match="describe the source topic"):
        back({FIRST: 80, SECOND: 7}, {})
    for behind, text in ((None, "does not know the topic"), (9, "report several ids")):
        for brokers in ((1, behind), (behind, 1)):
            back.source_has(*brokers)
            with pytest.raises(Retriable, match=text):
                back({FIRST: 80, SECOND: 7}, {})
    assert back.written == {}
    monkeypatch.setattr(Stored, "topic", replace(TOPIC, topic_id=UUID(int=0)))
    back.source_has(0)
    assert back({FIRST: 80, SECOND: 7}, {}) == [HandedBack(FIRST, 79), HandedBack(SECOND, 6)]


@pytest.mark.parametrize(
    ("flow", "ends", "expected"),
    [
        (("latest", ()), {}, 1000),
        (("latest", ()), {FIRST: 1200}, 1200),
        (("latest", ()), {FIRST: 950}, 950),
        (("latest", (60,)), {FIRST: 50}, 60),
        (("latest", (60,)), {}, 60),
        (("latest", (0,)), {}, 0),
        (("earliest", ()), {}, 0),
    ],
)
def test_a_partition_that_was_never_located_is_handed_back_where_the_flow_follows_it_from(
    back: Back,
    monkeypatch: pytest.MonkeyPatch,
    flow: tuple[str, tuple[int, ...]],
    ends: dict[TopicPartition, int],
    expected: int,
) -> None:
    """Goal: what was written since it was added to a flow with `latest` is not skipped.

    What another program has copied goes before, also if all is to be copied again. One that was
    located has begun before it, if the source has lost its end since: what it has copied counts.
    """
    reset, begins = flow
    settings = {"enabled": "true", "consumer.auto.offset.reset": reset}
    properties = flow_properties(settings, "a", "b")
    monkeypatch.setattr(Stored, "mirror", replace(MIRROR, source=properties))
    topic = replace(TOPIC, begins=begins, followed_from=(1000, -1))
    monkeypatch.setattr(Stored, "topic", topic)
    back(ends, {})
    assert back.written == {FIRST: expected, SECOND: 0}


@pytest.mark.parametrize("begins", [(), (60, 0)])
def test_a_recreated_remote_topic_is_not_handed_back_before_the_flow_goes_on_there(
    back: Back, monkeypatch: pytest.MonkeyPatch, begins: tuple[int, ...]
) -> None:
    """Goal: what was copied before is gone with the former topic; it is not taken for copied."""
    topic = replace(TOPIC, begins=begins, lost_topic_ids=(UUID(int=99),))
    monkeypatch.setattr(Stored, "topic", replace(topic, followed_from=(1000, -1)))
    with pytest.raises(UserError, match="was recreated, and the flow has not gone on"):
        back({}, {})
    assert back.written == {}
    back({FIRST: 1200}, {})
    assert back.written == {FIRST: 1200, SECOND: 0}


WORKER, OWN = "mm2-offsets.a.internal", "own"
"""Topics of Connect."""


def stored(
    partition: TopicPartition, *offsets: int | None, connector: str = CONNECTOR, place: int = 3
) -> list[ControlRecord]:
    """What a connector has recorded, one after the other; None: a tombstone."""
    return [
        ControlRecord(place, at, 0, *encode(ConnectOffset(connector, "a", partition, offset)))
        for at, offset in enumerate(offsets)
    ]


def in_file(back: Back, **settings: str) -> None:
    """Set lines of the file; `_` is written for `.`."""
    values = {key.replace("_", "."): value for key, value in settings.items()}
    back.properties = flow_properties({"enabled": "true", **values}, "a", "b")


@pytest.mark.parametrize("topics", [[WORKER], [OWN], [WORKER, OWN]])
@pytest.mark.parametrize("ends", [{FIRST: 1000, SECOND: 7}, {FIRST: 4999}, {}])
def test_what_mirror_maker_has_copied_since_is_not_copied_again(
    back: Back, topics: list[str], ends: dict[TopicPartition, int]
) -> None:
    """Goal: a hand-back that is repeated, after MirrorMaker 2 has run, changes nothing.

    Nor does one of a topic that was removed from the flow long ago, or never begun by it.
    """
    in_file(back, connect_offsets_storage_topic=OWN)
    back.recorded = {name: stored(FIRST, 999, 4999) for name in topics}
    end = ends.get(FIRST, 60)
    with pytest.raises(UserError) as error:
        back(ends, {})
    assert (
        "MirrorMaker 2 has copied orders-0 on since: it has recorded offset 4999, and the flow has "
        f"copied up to {end}"
    ) in str(error.value)
    assert "delete flow a-to-b without --hand-back" in error.value.hint
    assert back.topics == []


def test_nothing_that_the_flow_has_not_begun_is_removed(back: Back) -> None:
    """Goal: MirrorMaker 2's own offset stays where the flow has none."""
    back.recorded = {WORKER: stored(SECOND, 0)}
    with pytest.raises(UserError, match=r"orders-1 on since: .* offset 0, .* copied up to 0"):
        back({FIRST: 80}, {})
    assert back.topics == []


def test_each_offset_that_would_be_replaced_is_compared(back: Back) -> None:
    """Goal: another topic's lower offset hides no higher one; other connectors are no matter."""
    in_file(back, connect_offsets_storage_topic=OWN)
    back.recorded = {WORKER: stored(FIRST, 4999, place=5), OWN: stored(FIRST, 10)}
    with pytest.raises(UserError, match="it has recorded offset 4999"):
        back({FIRST: 80}, {})
    assert back.topics == []
    back.recorded = {WORKER: stored(FIRST, 10) + stored(FIRST, 4999, connector="another")}
    assert back({FIRST: 80}, {}) == [HandedBack(FIRST, 79, others=("another",))]


def test_what_was_recorded_before_is_replaced(back: Back) -> None:
    """Goal: a hand-back that is repeated is not ahead, nor what MirrorMaker 2 had copied first.

    Nor is what was removed, or is of another source.
    """
    back.recorded = {
        WORKER: [
            *stored(FIRST, 4999, 79),
            *stored(SECOND, 4999, None),
            ControlRecord(0, 9, 0, *encode(ConnectOffset(CONNECTOR, "c", FIRST, 4999))),
        ]
    }
    assert back({FIRST: 80, SECOND: 7}, {}) == [HandedBack(FIRST, 79), HandedBack(SECOND, 6)]
    assert back.written == {FIRST: 80, SECOND: 7}


def test_the_operator_says_what_becomes_of_an_offset_that_is_ahead(back: Back) -> None:
    """Goal: what MirrorMaker 2 had recorded before the flow began holds up nobody; it is named."""
    back.recorded = {WORKER: stored(FIRST, 4999) + stored(SECOND, 20)}
    back.own = OwnOffsets.KEEP
    kept = back({FIRST: 1000, SECOND: 70}, {})
    assert kept == [HandedBack(FIRST, 4999, 4999), HandedBack(SECOND, 69)]
    assert str(kept[0]).endswith("goes on at offset 5000, as it has recorded itself")
    assert back.written == {SECOND: 70}
    back.own = OwnOffsets.REPLACE
    replaced = back({FIRST: 1000}, {})
    assert replaced == [HandedBack(FIRST, 999, 4999), HandedBack(SECOND, None, 20)]
    assert list(map(str, replaced)) == [
        "orders-0: MirrorMaker 2 goes on at offset 1000; it had recorded offset 4999 itself",
        "orders-1: MirrorMaker 2 begins as usual; it had recorded offset 20 itself",
    ]
    assert back.written == {FIRST: 1000, SECOND: 0}


def test_an_offset_is_kept_only_if_no_other_one_would_be_used(back: Back) -> None:
    """Goal: one in a topic without precedence decides nothing, nor does another connector's."""
    in_file(back, connect_offsets_storage_topic=OWN)
    back.own = OwnOffsets.KEEP
    back.recorded = {WORKER: stored(FIRST, 500), OWN: stored(FIRST, 300)}
    with pytest.raises(UserError, match=r"offsets 300 and 500 of orders-0.* is not known"):
        back({FIRST: 400}, {})
    assert back.topics == []
    back.recorded = {WORKER: stored(FIRST, 600) + stored(FIRST, 300, connector="x")}
    back.recorded[OWN] = stored(FIRST, 500)
    assert back({FIRST: 400}, {}) == [HandedBack(FIRST, 500, 500, others=("x",))]
    assert back.written == {SECOND: 0}


def test_only_mirror_maker_s_own_connector_is_handed_back(back: Back) -> None:
    """Goal: a connector that may copy to another remote topic skips no record; it is named."""
    back.recorded = {WORKER: stored(FIRST, 5, connector="x") + stored(FIRST, 5, connector="a")}
    [found] = back({FIRST: 80}, {})
    assert str(found) == (
        "orders-0: MirrorMaker 2 goes on at offset 80; not changed: connector a, x"
    )


def test_the_connector_of_a_connect_cluster_is_handed_back_by_its_name(back: Back) -> None:
    """Goal: as Strimzi's is; what the dedicated mode has recorded before is no matter."""
    in_file(back, twinlog_takeover_connector="a->b.MirrorSourceConnector")
    back.connector = "a->b.MirrorSourceConnector"
    back.recorded = {
        WORKER: stored(FIRST, 4999) + stored(SECOND, 20, connector=back.connector),
    }
    with pytest.raises(UserError, match=r"has copied orders-1 on since: .* offset 20"):
        back({FIRST: 80}, {})
    assert back({FIRST: 80, SECOND: 21}, {}) == [
        HandedBack(FIRST, 79, others=(CONNECTOR,)),
        HandedBack(SECOND, 20),
    ]


def test_an_offset_is_written_to_the_partition_that_has_its_key(
    back: Back, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: Connect finds one record of a key, whoever has written it; no former one remains."""
    entries: list[Entry] = []

    async def append(_: object, new: list[Entry], **__: object) -> dict[TopicPartition, object]:
        entries.extend(new)
        return {}

    async def written(ends: Mapping[TopicPartition, int]) -> list[Entry]:
        cluster = cast("KafkaCluster", None)
        recorded = await read_recorded(cluster, WORKER, "a")
        await write_offsets(cluster, CONNECTOR, "a", recorded, ends)
        new = list(entries)
        entries.clear()
        return new

    monkeypatch.setattr(worker_offsets, "append", append)
    back.recorded = {WORKER: stored(FIRST, 70, place=3) + stored(FIRST, 5, connector="x", place=4)}
    back({FIRST: 80}, {})
    first, second = asyncio.run(written({FIRST: 80, SECOND: 7, TopicPartition("gone", 0): 0}))
    assert first == Entry(WORKER, 3, *encode(ConnectOffset(CONNECTOR, "a", FIRST, 79)))
    assert (second.key, second.value) == encode(ConnectOffset(CONNECTOR, "a", SECOND, 6))
    assert [one.value for one in asyncio.run(written({FIRST: 0}))] == [None]
    # Where only another connector has recorded an offset, MirrorMaker 2's own goes on as well.
    back.recorded = {WORKER: stored(FIRST, 5, connector="x", place=4)}
    [own] = asyncio.run(written({FIRST: 80}))
    assert (own.key, own.value) == encode(ConnectOffset(CONNECTOR, "a", FIRST, 79))
    assert asyncio.run(written({FIRST: 0})) == []
