"""The record of a fetch session, against a broker that keeps its own."""

from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.requests.fetch_session import Ask, FetchSession
from twinlog.kafka.types import FetchPosition, TopicPartition

A, B, C = (TopicPartition("topic", index) for index in range(3))
POSITIONS = st.builds(FetchPosition, st.integers(0, 3), st.integers(0, 1), st.integers(0, 1))


def position_at(offset: int) -> FetchPosition:
    """A position of which only the offset is known."""
    return FetchPosition(offset)


def test_full_and_incremental_requests_follow_the_table_of_the_module() -> None:
    """The order is: all, then changes, then all again."""
    session = FetchSession()
    assert session.ask({A: position_at(0), B: position_at(0)}, 9) == Ask(
        0, 0, {A: position_at(0), B: position_at(0)}, ()
    )
    session.answered(77)
    assert session.ask({A: position_at(5), B: position_at(0)}, 9) == Ask(
        77, 1, {A: position_at(5)}, ()
    )
    session.answered(77)
    assert session.ask({A: position_at(5), C: position_at(0)}, 9) == Ask(
        77, 2, {C: position_at(0)}, (B,)
    )
    session.answered(77)
    assert session.ask({A: position_at(5), C: position_at(0)}, 9) == Ask(77, 3, {}, ())
    session.renew()
    assert session.ask({A: position_at(5), C: position_at(0)}, 9) == Ask(
        77, 0, {A: position_at(5), C: position_at(0)}, ()
    )
    session.answered(78)
    assert session.ask({A: position_at(5), C: position_at(0)}, 8) == Ask(
        78, 1, {A: position_at(5), C: position_at(0)}, ()
    )


def test_every_request_is_full_without_a_session() -> None:
    """A broker whose session cache is full gives none, and may evict one."""
    session = FetchSession()
    for _ in range(2):
        assert session.ask({A: position_at(0)}, 9) == Ask(0, 0, {A: position_at(0)}, ())
        session.answered(0)
    session.ask({A: position_at(0)}, 9)
    session.answered(77)
    session.ask({A: position_at(1)}, 9)
    session.answered(0)
    assert session.ask({A: position_at(1)}, 9) == Ask(0, 0, {A: position_at(1)}, ())


def test_session_epochs_wrap_to_one() -> None:
    """0 and -1 mean something else."""
    session = FetchSession()
    session.ask({A: position_at(0)}, 9)
    session.answered(77)
    session._epoch = (1 << 31) - 1
    session.ask({A: position_at(0)}, 9)
    session.answered(77)
    assert session.ask({A: position_at(0)}, 9).epoch == 1


def test_wanted_positions_may_change_during_a_request() -> None:
    """The caller may change its own mapping."""
    session = FetchSession()
    wanted = {A: position_at(0)}
    session.ask(wanted, 9)
    wanted[A] = position_at(5)
    session.answered(77)
    assert session.ask(wanted, 9).partitions == {A: position_at(5)}


class Broker:
    """The state that a broker keeps."""

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[int, dict[TopicPartition, FetchPosition]]] = {}
        self.next_id = 1

    def carry_out(self, ask: Ask) -> tuple[int, dict[TopicPartition, FetchPosition]] | None:
        """Return the session's id and all fetch positions; None if the two sides disagree."""
        if ask.epoch == 0:
            self.sessions.pop(ask.session_id, None)
            session_id, self.next_id = self.next_id, self.next_id + 1
            self.sessions[session_id] = 1, dict(ask.partitions)
            return session_id, dict(ask.partitions)
        if self.sessions.get(ask.session_id, (None,))[0] != ask.epoch:
            return None
        fetched = self.sessions[ask.session_id][1]
        for partition in ask.forgotten:
            del fetched[partition]
        fetched.update(ask.partitions)
        self.sessions[ask.session_id] = ask.epoch + 1, fetched
        return ask.session_id, fetched


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from([A, B, C]), POSITIONS),
        st.sampled_from(["answered", "lost before", "lost after", "evicted"]),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_broker_fetches_exactly_the_wanted_positions(
    steps: list[tuple[dict[TopicPartition, FetchPosition], str]],
) -> None:
    """Whatever is lost: an answered request fetched exactly the wanted positions."""
    session, broker = FetchSession(), Broker()
    for wanted, fate in steps:
        ask = session.ask(wanted, 9)
        if fate == "evicted":
            broker.sessions.clear()
        carried_out = None if fate == "lost before" else broker.carry_out(ask)
        if carried_out is None or fate == "lost after":
            session.renew()
            continue
        session_id, fetched = carried_out
        assert fetched == wanted
        session.answered(session_id)
