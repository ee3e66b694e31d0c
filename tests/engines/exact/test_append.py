"""The append machine: scenarios that drive it together with the plan, and its invariants."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from batch_builders import THEN, batch, holed, record
from hypothesis import given
from hypothesis import strategies as st
from scenario_files import files, run

from twinlog.engines.exact.append import (
    MAX_IN_FLIGHT,
    Misplaced,
    Outgoing,
    PartitionAppend,
    Phase,
    Plan,
    plan_of,
    position_of,
)
from twinlog.kafka.log.batch import CONTROL, TRANSACTIONAL
from twinlog.kafka.types import (
    SEQUENCE_MODULUS,
    AbortedTransaction,
    Offset,
    ProducerId,
    ProducerState,
)
from twinlog.mirror.plan import Data, Gap, Piece, plan

DATA_PRODUCER = ProducerId(7)


# ---- scenarios ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", files("append_*.txt"), ids=lambda path: path.stem)
def test_a_scenario_file_gives_the_expected_states(path: Path, pytestconfig: pytest.Config) -> None:
    """Goal: each step of the file changes the machine as the file says."""
    run(path, Driver().execute, rewrite=pytestconfig.getoption("--rewrite"))


class Driver:
    """The commands of the scenarios; each prints its result and the machine's state."""

    def __init__(self) -> None:
        self.machine = PartitionAppend(0.0)
        self.log: list[bytes] = []
        self.planned: list[Piece] = []
        self.asked: Plan

    def execute(self, words: list[str]) -> str:
        name, *arguments = words
        result = getattr(self, f"do_{name}")(arguments)
        lines = result.splitlines() if isinstance(result, str) else []
        if name not in ("source", "plan"):
            lines.append(state(self.machine))
        return "\n".join(lines) or "ok"

    # The append machine.

    def do_new(self, words: Sequence[str]) -> None:
        """`new 5`: no unguarded batch before the time 5."""
        self.machine = PartitionAppend(float(words[0]))

    def do_place(self, words: Sequence[str]) -> str:
        """`place 10 at 3 [fresh 99] [7:0:9 ...]`: log end offset, when it was read, the fresh end.

        Then the producers as described: id, epoch, last sequence, last timestamp.
        """
        log_end, _, read_at, *rest = words
        fresh_after_ms = int(rest[1]) if rest[:1] == ["fresh"] else 0
        known = [ProducerState(*map(int, one.split(":"))) for one in rest if ":" in one]
        position = position_of(Offset(number(log_end)), known, DATA_PRODUCER, fresh_after_ms)
        self.machine.place(position, float(read_at), compared=True)
        guarded = "guarded" if position.guarded else "unguarded"
        return f"epoch {position.epoch} sequence {position.sequence} {guarded}"

    def do_offer(self, words: Sequence[str]) -> None:
        """`offer data:10-14 old:15-15 gap:16-18 seen:19-20`, last included; or `offer planned`.

        Its gaps are confirmed at once, except by `offer unconfirmed gap:16-18`.
        """
        if words[0] == "planned":
            self.machine.offer(self.planned)
        else:
            self.machine.offer([piece(word) for word in words if word != "unconfirmed"])
        if words[0] != "unconfirmed":
            self.machine.confirm(plan_of(self.machine))

    def do_ask(self, _: Sequence[str]) -> None:
        """Ask whether the lane still owns the partition."""
        self.asked = plan_of(self.machine)

    def do_confirm(self, _: Sequence[str]) -> None:
        """Answer the last question."""
        self.machine.confirm(self.asked)

    def do_take(self, words: Sequence[str]) -> str:
        """`take [how many]` or `take fresh 1000`: all batches that may be sent."""
        most, fresh_after_ms = MAX_IN_FLIGHT + 1, 0
        if words[:1] == ["fresh"]:
            fresh_after_ms = int(words[1])
        elif words:
            most = int(words[0])
        sent: list[str] = []
        while len(sent) < most and (outgoing := self.machine.take(fresh_after_ms)) is not None:
            sent.append(shown_outgoing(outgoing))
        return "\n".join(sent) or "nothing"

    def do_answer(self, words: Sequence[str]) -> str | None:
        """`answer 10 15`: the oldest batches in flight get these base offsets."""
        return misplaced_batches([self.machine.answered(number(word)) for word in words])

    def do_refuse(self, _: Sequence[str]) -> None:
        """Refuse the oldest batch in flight."""
        self.machine.refused()

    def do_lose(self, words: Sequence[str]) -> None:
        """`lose 12`: the oldest batch gets no answer; it is no longer in flight at the time 12."""
        self.machine.lost(float(words[0]))

    def do_gap(self, _: Sequence[str]) -> str:
        """Print the gap that may be filled, or what it waits for."""
        gap = self.machine.gap_to_fill
        if gap is not None:
            return f"fill {gap.start}-{gap.end - 1}"
        if self.machine.unconfirmed:
            return "waits for a confirmation"
        return "waits for the lease" if self.machine.waits_for_lease else "none"

    def do_filled(self, words: Sequence[str]) -> str | None:
        """`filled 17`: the log end offset after the filling."""
        return misplaced_batches([self.machine.filled(Offset(number(words[0])))])

    def do_replace(self, _: Sequence[str]) -> None:
        self.machine.replace()

    def do_fail(self, _: Sequence[str]) -> None:
        self.machine.fail()

    def do_retry(self, _: Sequence[str]) -> None:
        self.machine.retry()

    # The source.

    def do_source(self, words: Sequence[str]) -> str:
        """`source batch:0-4 txn:9:5-6 abort:9:7 commit:9:8 holes:10-19:12,13`: add to its log."""
        self.log += [source_batch(word) for word in words]
        return ""

    def do_plan(self, words: Sequence[str]) -> str:
        """`plan 3 [9:5 ...]`: plan the source's log from there, with these aborted transactions."""
        aborted = [AbortedTransaction(*map(int, word.split(":"))) for word in words[1:]]
        self.planned = plan(memoryview(b"".join(self.log)), Offset(int(words[0])), aborted)
        return " ".join(map(shown, self.planned)) or "nothing"


def number(word: str) -> int:
    """`15`, or `2^31-3`."""
    power, _, less = word.partition("-")
    base, caret, exponent = power.partition("^")
    return (int(base) ** int(exponent) if caret else int(base)) - int(less or 0)


def piece(word: str) -> Piece:
    kind, _, extent = word.partition(":")
    start, last = map(int, extent.split("-"))
    if kind in ("data", "old"):
        timestamp = THEN if kind == "data" else 1
        records = [record(at, timestamp) for at in range(start, last + 1)]
        [made] = plan(memoryview(batch(records)), Offset(start))
        return made
    return Gap(Offset(start), Offset(last + 1), seen=kind == "seen")


def source_batch(word: str) -> bytes:
    kind, *rest = word.split(":")
    if kind == "holes":
        start, last = map(int, rest[0].split("-"))
        return holed(start, last, [(int(at), THEN) for at in rest[1].split(",")])
    if kind in ("abort", "commit"):
        key = bytes((0, 0, 0, kind == "commit"))
        marker = [record(int(rest[1]), key=key)]
        return batch(marker, attributes=CONTROL | TRANSACTIONAL, producer_id=int(rest[0]))
    start, last = map(int, rest[-1].split("-"))
    records = [record(at) for at in range(start, last + 1)]
    if kind == "txn":
        return batch(records, attributes=TRANSACTIONAL, producer_id=int(rest[0]))
    return batch(records)


def shown(one: Piece) -> str:
    kind = "data" if isinstance(one, Data) else "seen" if one.seen else "gap"
    return f"{kind}:{one.start}-{one.end - 1}"


def shown_outgoing(outgoing: Outgoing) -> str:
    data, producer_id, epoch, sequence, _ = outgoing
    assert producer_id == DATA_PRODUCER
    return f"send {data.start}-{data.end - 1} epoch {epoch} sequence {sequence}"


def misplaced_batches(results: Sequence[Misplaced | None]) -> str | None:
    wrong = [result for result in results if result is not None]
    return (
        "\n".join(f"MISPLACED expected {one.expected} found {one.found}" for one in wrong) or None
    )


def state(machine: PartitionAppend) -> str:
    words = [machine.phase.name]
    if machine.phase is Phase.APPENDING:
        words.append(f"log end {machine.log_end} planned {machine.planned_end}")
    if machine._in_flight:
        words.append(f"in flight {' '.join(map(shown, machine._in_flight))}")
    if machine._queue:
        words.append(f"queue {' '.join(map(shown, machine._queue))}")
    return ", ".join(words)


# ---- positions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_end", "producers", "epoch", "sequence", "guarded"),
    [
        (0, [], 0, 0, True),
        (5, [], 0, 5, False),
        (5, [(8, 3, 4)], 0, 5, False),
        (5, [(8, 3, 4), (7, 2, 4)], 2, 5, True),
        (5, [(7, 2, -1)], 2, 0, True),
        (0, [(7, 0, 99)], 0, 100, True),
        (SEQUENCE_MODULUS + 3, [], 0, 3, False),
        (5, [(7, 0, SEQUENCE_MODULUS - 1)], 0, 0, True),
    ],
)
def test_the_position_follows_the_producer_states(
    *,
    log_end: int,
    producers: list[tuple[int, int, int]],
    epoch: int,
    sequence: int,
    guarded: bool,
) -> None:
    """Goal: the position follows the table of DescribeProducers answers."""
    known = [ProducerState(*producer) for producer in producers]
    position = position_of(Offset(log_end), known, DATA_PRODUCER)
    assert (position.log_end, position.producer_id) == (log_end, DATA_PRODUCER)
    assert (position.epoch, position.sequence, position.guarded) == (epoch, sequence, guarded)


@pytest.mark.parametrize(
    ("log_end", "producers", "guarded"),
    [(0, [], False), (0, [(7, 2, -1)], False), (5, [(7, 2, -1)], False), (5, [(7, 2, 4)], True)],
)
def test_a_position_is_guarded_only_if_the_mirror_wrote_the_last_batch(
    *, log_end: int, producers: list[tuple[int, int, int]], guarded: bool
) -> None:
    """Goal: the broker compares the next batch only with those of the mirror's producer id."""
    known = [ProducerState(*producer) for producer in producers]
    position = position_of(Offset(log_end), known, DATA_PRODUCER, of_several_ids=True)
    assert position.guarded == guarded


# ---- invariants --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), max_size=80))
def test_invariants_hold_for_any_sequence_of_events(events: list[int]) -> None:
    """Goal: in flight and queue have no hole, bytes are counted right, a gap is never among data.

    Sent batches continue the sequence from the position, and never more than five are in flight.
    Only offsets of answered batches, up to the first other batch, count as the mirror's data alone.
    """
    machine = PartitionAppend(3.0)
    clock, expected = 0.0, 0
    own_end, own = 0, set[int]()
    compared = True
    for event in events:
        clock += 1.0
        if event == 0 and machine.phase is Phase.PLACING:
            position = position_of(
                machine.log_end, [ProducerState(DATA_PRODUCER, 0, 41)], DATA_PRODUCER
            )
            compared = not compared
            machine.place(position, clock, compared=compared)
            expected = 42
            own_end, own = machine.log_end if compared else own_end, set()
        elif event in (1, 2) and machine.phase is Phase.APPENDING:
            at = machine.planned_end
            machine.offer([piece(f"data:{at}-{at + 1}"), piece(f"data:{at + 2}-{at + 2}")])
        elif event == 3 and machine.phase is Phase.APPENDING:
            machine.offer([piece(f"seen:{machine.planned_end}-{machine.planned_end + 2}")])
        elif event in (4, 5) and (outgoing := machine.take(0)) is not None:
            assert outgoing.sequence == expected
            expected += outgoing.data.header.num_records
        elif event == 6 and machine.in_flight:
            data = machine.oldest_in_flight
            own.update(range(data.start, data.end))
            assert machine.answered(data.start) is None
        elif event == 7 and machine.in_flight:
            machine.refused()
        elif event == 8 and machine.in_flight:
            machine.lost(clock + 2)
        elif event == 9 and (gap := machine.gap_to_fill) is not None:
            assert machine.filled(Offset(gap.start + 1)) is None
        while own_end in own:
            own_end += 1
        assert machine.own_end == own_end
        check(machine)


def check(machine: PartitionAppend) -> None:
    flying, queued = list(machine._in_flight), list(machine._queue)
    assert len(flying) <= MAX_IN_FLIGHT
    assert machine.queued_bytes == sum(
        one.held for one in (*flying, *queued) if isinstance(one, Data)
    )
    assert machine.idle == (not flying and not queued)
    if machine.phase is Phase.APPENDING:
        at = machine.log_end
        for one in (*flying, *queued):
            assert one.start == at
            at = one.end
        assert at == machine.planned_end
        assert machine.position is not None
    else:
        assert not queued
        assert machine.position is None
        assert machine.take(0) is None
        assert machine.gap_to_fill is None
        assert machine.filled(Offset(0)) is None
    if machine.phase is Phase.PLACING:
        assert not flying
