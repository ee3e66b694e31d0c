"""Twin of twinlog.engines.transactional.position_maps."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from twinlog.engines.transactional import position_maps
from twinlog.engines.transactional.position_maps import (
    NO_MAP,
    KnownMap,
    MapChange,
    breach,
    changed_maps,
    dropped_map,
    grown_map,
    known_maps,
    lost_map,
    new_map,
    record_batches,
)
from twinlog.engines.transactional.remote_tails import LandedBatches, tail_of_batch
from twinlog.engines.transactional.routed_tails import RoutedLoss
from twinlog.engines.transactional.source_position import Copies, SourcePosition
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.log.records import decode as decode_record
from twinlog.kafka.log.records import raw_records
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, LogBounds, Offset, TopicPartition
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror import offset_runs
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.store import offset_log, offset_records
from twinlog.store.map_chunks import PART_RUNS, EncodedChunk
from twinlog.store.offset_log import fold_offsets, whole_map
from twinlog.store.offset_records import (
    DroppedHead,
    DroppedPart,
    MapHead,
    MapPart,
    OffsetRecord,
    Route,
    encode,
)
from twinlog.store.topic_reader import ControlRecord

NAME, OTHER = MirrorPartition("m", "t", 0), MirrorPartition("m", "u", 0)
REMOTE = TopicPartition("A.t", 0)
ROUTE = Route(UUID(int=1), REMOTE.topic, UUID(int=2))
TAIL = tail_of_batch(50, 3, (7, 4), SequenceNumber(10))
EPOCH = LeaderEpoch(UNKNOWN_EPOCH)


def position(offset: int, copies: Copies | None = None) -> SourcePosition:
    return SourcePosition(REMOTE, ROUTE, Offset(offset), EPOCH, None, 1, TAIL, copies=copies)


def copies(start: int, *sources: tuple[int, int], first: int = 0, batches: int = 1) -> Copies:
    runs = [(Offset(at), Offset(end)) for at, end in sources]
    return Copies(Offset(start), runs, first, batches)


def landed(*batches: tuple[int, int]) -> LandedBatches:
    places = tuple((Offset(base), count) for base, count in batches)
    return LandedBatches(places[0][0], TAIL, places)


class Log:
    """A partition of `__mirror_offsets`, with all that was written."""

    def __init__(self) -> None:
        self.records: list[ControlRecord] = []

    def write(self, change: MapChange) -> KnownMap:
        """Write records as a transaction does; what is known then is what a new owner reads."""
        self.add(change)
        assert self.read() == change.known
        return change.known

    def add(self, change: MapChange) -> None:
        for record in change.records:
            self._append(*encode(record))

    def _append(self, key: bytes, value: bytes | None) -> None:
        self.records.append(ControlRecord(0, len(self.records), 0, key, value))

    def read(self) -> KnownMap:
        return known_maps(fold_offsets(self.records)).get(NAME, NO_MAP)

    def runs(self) -> list[Run]:
        return whole_map(fold_offsets(self.records).headed[NAME].whole().parts).runs()

    def spoil(self, record: OffsetRecord) -> None:
        """Make what is stored under the key of a record unreadable."""
        self._append(encode(record)[0], b"{")


def begun(log: Log, at: int = 0, place: int = 0, *, lacks_start: bool = False) -> KnownMap:
    start = Ends(Offset(at), Offset(place))
    return log.write(
        new_map(NAME, log.read(), position(at), start, lacks_start=lacks_start, is_anew=False)
    )


def test_a_map_grows_with_its_transactions() -> None:
    """Goal: each record is where its batch has landed; dropped ones and markers leave gaps."""
    log = Log()
    known = begun(log)
    behind = position(12, copies(0, (0, 4), (6, 9), first=1, batches=2))
    known = log.write(grown_map(NAME, known, behind, landed((3, 9), (12, 5), (17, 2))))
    assert log.runs() == [Run(Offset(0), Offset(12), 4), Run(Offset(6), Offset(16), 3)]
    assert breach(known, position(12)) is None
    known = log.write(grown_map(NAME, known, position(20, copies(12, batches=0)), None))
    assert breach(known, position(20)) is None
    assert breach(known, position(12)) == "it reaches source offset 20"
    assert len(log.runs()) == 2


def test_a_map_takes_the_topic_ids_that_are_known_later() -> None:
    """Goal: a head without them would be that of a recreated topic, too."""
    log, at = Log(), position(0)
    known = begun(log)
    assert known.head is not None
    without = replace(known, head=replace(known.head, route=at.route._replace(topic_id=None)))
    assert breach(without, at) is None
    behind = position(12, copies(0, (0, 4)))
    grown = grown_map(NAME, without, behind, landed((3, 4)))
    assert grown.known.head is not None
    assert grown.known.head.route == at.route


def test_an_older_part_is_not_that_of_a_newer_head() -> None:
    """Goal: no map has a hole where `__mirror_offsets` has lost its end, and a head follows."""
    log = Log()
    known = log.write(grown_map(NAME, begun(log), position(10, copies(0, (0, 9))), landed((0, 9))))
    kept = list(log.records)
    known = log.write(grown_map(NAME, known, position(20, copies(10, (10, 19))), landed((10, 9))))
    # An unclean election takes the part and the head. The owner lives, and records are dropped.
    change = grown_map(NAME, known, position(25, copies(20, batches=0)), None)
    assert len(change.records) == 1
    log.records = kept
    for record in change.records:
        log._append(*encode(record))
    assert log.read().head is None
    assert "older" in str(breach(log.read(), position(25)))
    assert not log.runs()
    # Its next copy writes the part whole, and nothing is missing.
    log.write(grown_map(NAME, change.known, position(30, copies(25, (25, 30))), landed((20, 5))))
    assert [run.source for run in log.runs()] == [0, 10, 25]


FULL = 250


@pytest.fixture
def full_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are full with fewer runs, so that a test has many of them."""
    monkeypatch.setattr(position_maps, "CHUNK_RUNS", FULL)


def grown(log: Log, runs: int, *, each: int = 1) -> tuple[KnownMap, int]:
    """A map of this many runs, each of one record, and the position behind them.

    Run `n` is source offset `2 * n` at remote offset `6 * n`.
    """
    known, at = begun(log), 0
    while at < 2 * runs:
        ends = range(at, at + 2 * each, 2)
        behind = position(ends.stop, copies(at, *((one, one + 1) for one in ends), batches=each))
        change = grown_map(NAME, known, behind, landed(*((3 * one, 1) for one in ends)))
        written = [one.chunk for one in change.records if isinstance(one, MapPart)]
        assert len(written) == 1 or len(change.known.last.runs) == 0  # type: ignore[union-attr]
        log.add(change)
        known, at = change.known, ends.stop
    assert log.read() == known
    return known, at


def in_full(runs: int) -> list[Run]:
    return [Run(Offset(2 * one), Offset(6 * one), 1) for one in range(runs)]


@pytest.mark.usefixtures("full_parts")
def test_full_parts_are_not_written_again() -> None:
    """Goal: the cost of a transaction does not grow with the map, and a map has few parts."""
    log = Log()
    count = 2 * FULL + 110
    known, _ = grown(log, count)
    assert log.runs() == in_full(count)
    assert known.head is not None
    stored = fold_offsets(log.records).headed[NAME].whole()
    assert [len(one.decoded().runs) for one in stored.parts[:2]] == [FULL] * 2
    assert (known.head.first, known.head.last) == (0, 3)
    parts = [record for record in log.records if record.key == encode(MapPart(known.last))[0]]  # type: ignore[arg-type]
    assert max(len(record.value or b"") for record in parts) < 1000


@pytest.mark.usefixtures("full_parts")
@pytest.mark.parametrize("each", [60, 150, 450, 1100])
def test_a_map_of_large_transactions_has_all_runs(each: int) -> None:
    """Goal: whatever a transaction has, the parts follow each other, and none is too long."""
    log = Log()
    known, at = grown(log, 1200, each=each)
    assert log.runs() == in_full(at // 2)
    stored = fold_offsets(log.records).headed[NAME].whole()
    assert stored.head is not None
    assert not stored.head.lacks_start
    assert max(len(one.decoded().runs) for one in stored.parts) <= FULL
    assert known.last is not None
    assert len(known.last.runs) <= PART_RUNS


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"offset": Offset(11)}, "it reaches source offset 12"),
        ({"tail": None}, "not the one that was committed with it"),
        ({"tail": tail_of_batch(50, 3, (7, 4), SequenceNumber(11))}, "not the one that was"),
        ({"route": ROUTE._replace(source_topic_id=UUID(int=9))}, "it is of other topics"),
    ],
)
def test_a_map_goes_on_at_its_own_position_only(changed: dict[str, Any], reason: str) -> None:
    """Goal: who has moved the position otherwise has copied, or left out, what no map names."""
    known = grown_map(NAME, begun(Log()), position(12, copies(0, (0, 4))), landed((0, 4))).known
    assert breach(known, position(12)) is None
    # A command of an earlier version does not know the remote topic's id.
    unknown = replace(position(12), route=ROUTE._replace(topic_id=None))
    assert breach(known, unknown) is None
    assert reason in str(breach(known, replace(position(12), **changed)))


def test_a_map_that_begins_anew_has_nothing_of_the_former_one() -> None:
    log = Log()
    known = log.write(grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((0, 4))))
    change = new_map(
        NAME, known, position(7), Ends(Offset(7), Offset(20)), lacks_start=True, is_anew=True
    )
    assert DroppedPart(NAME, 0) in change.records
    known = log.write(change)
    assert not log.runs()
    assert known.last is not None
    assert known.last.start == (7, 20)
    assert known.head is not None
    assert known.head.lacks_start
    # Parts that are left, of a map that had too many, or that an aborted write had read: not used.
    log.write(grown_map(NAME, known, position(9, copies(7, (7, 9))), landed((20, 2))))
    assert log.runs() == [Run(Offset(7), Offset(20), 2)]


def test_a_log_that_is_shorter_begins_the_map_anew() -> None:
    """Goal: no offset is translated to a place where copies were lost."""
    log = Log()
    known = log.write(grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((50, 4))))
    behind = position(15, copies(12, (12, 15)))
    known = log.write(grown_map(NAME, known, behind, landed((52, 3))))
    assert log.runs() == [Run(Offset(12), Offset(52), 3)]
    assert known.head is not None
    assert known.head.lacks_start
    assert known.head.unproven_end == 12
    later = position(16, copies(15, (15, 16)))
    known = log.write(grown_map(NAME, known, later, landed((55, 1))))
    assert known.head is not None
    assert known.head.unproven_end == 12, "it stays"


def lost_to(known: KnownMap) -> int:
    assert known.head is not None
    return known.head.lost_to


@pytest.mark.parametrize(
    ("end", "place", "positions_end"),
    [
        # Copies were at 0 to 3, and the marker at 4: a group may have committed 4, or 5.
        (None, 2, 6),
        (None, 5, 6),
        (None, 6, 0),  # what is below the new map is not translated in any case
        # The map is older than the copies: `__mirror_offsets` has lost its end, too.
        (9, 2, 11),
    ],
)
def test_a_map_behind_a_loss_knows_where_former_positions_may_be(
    end: int | None, place: int, positions_end: int
) -> None:
    """Goal: a position of before the loss is not translated by copies that have landed since."""
    log = Log()
    known = log.write(grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((0, 4))))
    change = lost_map(known, None if end is None else Offset(end))
    assert change is not None
    log.write(change)
    known = begun(log, 12, place, lacks_start=True)
    assert lost_to(known) == positions_end
    behind = position(15, copies(12, (12, 15)))
    known = log.write(grown_map(NAME, known, behind, landed((place + 1, 3))))
    assert lost_to(known) == positions_end
    # Another loss, or another position, does not make it shorter.
    known = begun(log, 15, place + 1, lacks_start=True)
    assert lost_to(known) == max(positions_end, place + 6)


def test_a_map_that_begins_anew_in_a_whole_log_knows_of_no_loss() -> None:
    """Goal: what an operator has committed loses no copy."""
    log = Log()
    log.write(grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((0, 4))))
    assert lost_to(begun(log, 7, 5)) == 0


def test_positions_in_a_former_topic_do_not_count() -> None:
    """Goal: brokers delete groups' offsets with a topic, so all are of the one that is there."""
    log = Log()
    grown = grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((0, 4)))
    known = log.write(grown)
    start = Ends(Offset(12), Offset(0))
    for route, end in (
        (ROUTE._replace(topic_id=UUID(int=9)), 0),
        (ROUTE._replace(source_topic_id=UUID(int=9)), 6),  # the log is the same
    ):
        at = replace(position(12), route=route)
        assert lost_to(new_map(NAME, known, at, start, lacks_start=True, is_anew=True).known) == end


def test_lost_and_dropped_maps_do_not_go_on() -> None:
    log = Log()
    known = log.write(grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((0, 4))))
    change = lost_map(known, None)
    assert change is not None
    known = log.write(change)
    assert "lost" in str(breach(known, position(12)))
    assert lost_map(known, None) is None
    change = dropped_map(known)
    assert change is not None
    for record in change.records:
        log._append(*encode(record))
    assert change.records == [DroppedPart(NAME, 0), DroppedHead(NAME)]
    assert log.read().head is None
    assert breach(log.read(), position(12)) == "none is recorded"
    assert dropped_map(change.known) is None
    assert begun(log, 12, 60).head is not None
    assert not log.runs()


@pytest.mark.parametrize("spoiled", ["head", "part", "no part"])
def test_what_cannot_be_read_concerns_its_partition_alone(spoiled: str) -> None:
    """Goal: the others go on; the map begins anew, under numbers that no part has had."""
    log = Log()
    known = log.write(grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((0, 4))))
    other = new_map(
        OTHER, NO_MAP, position(3), Ends(Offset(3), Offset(9)), lacks_start=False, is_anew=False
    )
    for record in other.records:
        log._append(*encode(record))
    assert known.head is not None
    assert known.last is not None
    if spoiled == "head":
        log.spoil(known.head)
    elif spoiled == "part":
        log.spoil(MapPart(known.last))
    else:
        log._append(encode(DroppedPart(NAME, 0))[0], None)
    found = known_maps(fold_offsets(log.records))
    assert found[OTHER] == other.known
    assert found[NAME].head is None
    assert found[NAME].reason
    assert breach(found[NAME], position(12)) == found[NAME].reason
    again = begun(log, 12, 60, lacks_start=True)
    assert again.head is not None
    assert again.head.first == (0 if spoiled == "no part" else 1)
    assert not log.runs()


@pytest.mark.usefixtures("full_parts")
@pytest.mark.parametrize("damage", ["lost", "unreadable", "older"])
def test_what_is_in_front_of_a_part_that_is_lost_is_not_translated(damage: str) -> None:
    """Goal: a map goes on though it has lost a part, and is read from behind that part on."""
    log = Log()
    known, at = grown(log, 3 * FULL)
    key = encode(DroppedPart(NAME, 1))[0]
    versions = [record.value for record in log.records if record.key == key]
    log._append(key, {"lost": None, "unreadable": b"{", "older": versions[-2]}[damage])
    assert log.read() == known
    assert breach(known, position(at)) is None
    assert log.runs() == in_full(3 * FULL)[2 * FULL :]
    head = fold_offsets(log.records).headed[NAME].whole().head
    assert head is not None
    assert head.lacks_start


@pytest.mark.parametrize("damage", ["lost", "unreadable", "older"])
def test_a_map_goes_on_without_the_part_before_its_last_one(damage: str) -> None:
    """Goal: an owner adds nothing to a part that it cannot trust, and translates behind it."""
    log = Log()
    known, _ = grown(log, 250)
    assert known.before is not None
    key = encode(DroppedPart(NAME, known.before.number))[0]
    versions = [record.value for record in log.records if record.key == key]
    log._append(key, {"lost": None, "unreadable": b"{", "older": versions[-2]}[damage])
    found = log.read()
    assert found == replace(known, before=None, numbers=found.numbers)
    known, at = found, 500
    while at < 1000:
        behind = position(at + 2, copies(at, (at, at + 1)))
        change = grown_map(NAME, known, behind, landed((3 * at, 1)))
        log.add(change)
        known, at = change.known, at + 2
    assert log.read() == replace(known, numbers=log.read().numbers)
    assert log.runs() == in_full(500)[202:]


def test_a_part_whose_runs_are_damaged_gets_no_more() -> None:
    """Goal: runs that end elsewhere than recorded are neither used nor written again."""
    log = Log()
    known, at = grown(log, 250)
    assert known.before is not None
    part = known.before.runs
    damaged = known.before._replace(runs=replace(part, data=part.data[:-3] + b"\2\0\2"))
    with pytest.raises(ProtocolError, match=r"end at \(4.., 12..\)"):
        damaged.decoded()
    known = replace(known, before=damaged)
    while len(known.last.runs):  # type: ignore[union-attr]
        behind = position(at + 2, copies(at, (at, at + 1)))
        change = grown_map(NAME, known, behind, landed((3 * at, 1)))
        known, at = change.known, at + 2
    numbers = [one.chunk.number for one in change.records if isinstance(one, MapPart)]
    assert numbers == [damaged.number + 1, damaged.number + 2]


def test_a_last_part_whose_runs_are_damaged_is_not_continued() -> None:
    """Goal: the map begins anew, and names no place by what cannot be right."""
    log = Log()
    known = log.write(grown_map(NAME, begun(log), position(12, copies(0, (0, 4))), landed((0, 4))))
    assert known.last is not None
    key, value = encode(MapPart(known.last))
    assert value is not None
    log._append(key, value.replace(b"AAAI", b"AAAG"))  # three records instead of four
    assert log.read().head is None
    assert "recorded to end at (4, 4)" in str(breach(log.read(), position(12)))


@pytest.mark.parametrize("is_left", [False, True])
def test_a_map_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch, *, is_left: bool) -> None:
    """Goal: what is read of it is bounded, and what is in front of that is not translated."""
    monkeypatch.setattr(position_maps, "MOST_PARTS", 2)
    monkeypatch.setattr(position_maps, "CHUNK_RUNS", PART_RUNS + 1)
    log = Log()
    known, at = begun(log), 0
    if is_left:  # a part of a former map
        monkeypatch.setattr(position_maps, "_DROPPED", 0)
        known = begun(log)
    for number in range(4 * PART_RUNS):
        behind = position(at + 2, copies(at, (at, at + 1)))
        change = grown_map(NAME, known, behind, landed((3 * at, 1)))
        known, at = log.write(change), at + 2
        assert known.head is not None
        assert known.head.lacks_start == (number > 2 * PART_RUNS)
        assert known.head.unproven_end == 0, "what was recorded before is no loss"
    assert [run.source for run in log.runs()] == [*range(4 * PART_RUNS + 4, at, 2)]
    stored = fold_offsets(log.records).headed[NAME]
    assert len(stored.parts) == (3 if is_left else 2)
    head = stored.whole().head
    assert head is not None
    assert head.lacks_start
    assert begun(log, at, 9000).head is not None


@pytest.mark.usefixtures("full_parts")
def test_a_fence_decodes_the_end_of_a_map_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it does not block the lane's event loop for as long as a map is long."""
    log = Log()
    known, _ = grown(log, 3 * FULL)
    assert known.head is not None
    assert known.head.last > 2
    looked_at: list[int] = []
    decoded: list[bytes] = []
    chunk_of, runs_of = offset_records.decode_chunk, offset_runs.decode_runs

    def decode_chunk(name: MirrorPartition, number: int, value: bytes | None) -> EncodedChunk:
        looked_at.append(number)
        return chunk_of(name, number, value)

    def decode_runs(start: Ends, data: bytes) -> list[Run]:
        decoded.append(data)
        return runs_of(start, data)

    monkeypatch.setattr(offset_log, "decode_chunk", decode_chunk)
    monkeypatch.setattr(offset_runs, "decode_runs", decode_runs)
    stored = fold_offsets(log.records)
    assert not looked_at, "a flow of another kind has no use for it"
    assert known_maps(stored)[NAME] == known
    assert looked_at == [known.head.last, known.head.last - 1]
    assert len(decoded) == 1


class Port:
    """The target: the bounds of its logs."""

    def __init__(self, known: dict[TopicPartition, LogBounds]) -> None:
        self.known = known
        self.asked: list[Sequence[TopicPartition]] = []

    async def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        self.asked.append(keys)
        return self.known


def changes(
    port: Port,
    known: KnownMap,
    at: SourcePosition,
    *,
    compared: object = (),
    begin: Collection[MirrorPartition] = (),
    is_mapped: bool = True,
) -> tuple[MapChange | None, str | None]:
    found, unknown = asyncio.run(
        changed_maps(
            *(port, NAME.mirror, {NAME: known}, {NAME: at}, {NAME: compared}),  # type: ignore[arg-type]
            begin=begin,
            is_mapped=is_mapped,
        )
    )
    return found.get(NAME), unknown.get(NAME)


def test_what_becomes_of_a_map_when_its_partition_is_located(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Goal: a map begins at the high watermark; a flow without one makes no request for it."""
    known = grown_map(NAME, begun(Log()), position(12, copies(0, (0, 4))), landed((0, 4))).known
    port = Port({REMOTE: LogBounds(0, 0, 70, 65)})
    assert changes(port, NO_MAP, position(12), is_mapped=False) == (None, None)
    assert changes(port, known, position(12)) == (None, None)
    change, _ = changes(port, known, position(12), is_mapped=False)
    assert change is not None
    assert change.records == [DroppedPart(NAME, 0), DroppedHead(NAME)]
    change, _ = changes(port, known, position(12), compared=LostEnd("lost", end=Offset(9)))
    assert change is not None
    (head,) = change.records
    assert isinstance(head, MapHead)
    assert (head.lost, head.lost_to) == (True, 11)
    routed = RoutedLoss(TopicPartition("x", 0), "lost", proved=True)
    assert changes(port, known, position(12), compared=routed) == (None, None)
    assert not port.asked
    assert not caplog.records
    taken_over = replace(position(5), copied_to=Offset(5))
    for at, begin, lacks_start, unproven_end in (
        (position(5), [NAME], False, 0),
        (taken_over, [NAME], True, 0),
        (taken_over, [], True, 5),
        (position(5), [], True, 5),
    ):
        change, _ = changes(port, known, at, begin=begin)
        assert change is not None
        assert change.known.head is not None
        assert change.known.head.lacks_start == lacks_start
        assert change.known.head.unproven_end == unproven_end
        assert change.known.last is not None
        assert change.known.last.start == (5, 70)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    bounds: list[dict[TopicPartition, LogBounds]] = [{}, {REMOTE: LogBounds(5, -1, -1, -1)}]
    for each in bounds:
        change, why = changes(Port(each), NO_MAP, position(5))
        assert change is None
        assert "cannot read the bounds" in str(why)


def test_records_are_cut_into_batches_that_brokers_accept() -> None:
    def part(at: int) -> MapPart:
        name, start = NAME._replace(topic="t" * 200, partition=at), Ends(Offset(1), Offset(1))
        last = new_map(
            name, NO_MAP, position(1), start, lacks_start=False, is_anew=False
        ).known.last
        assert last is not None
        return MapPart(last)

    records = [part(at) for at in range(4000)]
    batches = record_batches(records, 5)
    assert len(batches) > 1
    assert all(len(batch.records) < 600_000 for batch in batches)
    found = [
        decode_record(raw) for batch in batches for raw in raw_records(batch.header, batch.records)
    ]
    assert [(one.key, one.value) for one in found] == [encode(record) for record in records]
    assert not record_batches([], 5)
