"""The table of Kafka's error codes, and the error classes that it leads to."""

import pickle

import pytest
from kafka.errors import kafka_errors

from twinlog.kafka.errors import (
    CODES,
    MAX_MESSAGE,
    MAX_SAID,
    Disconnected,
    Fenced,
    PartitionFailed,
    ProtocolError,
    Reaction,
    Refusal,
    Retriable,
    TwinlogError,
    UserError,
    check,
    code_of,
)


def test_the_table_has_every_error_code_of_kafka() -> None:
    """No code of a 4.3 broker (-1 to 133) falls through, and no name stands twice."""
    assert sorted(CODES) == list(range(-1, 134))
    names = [code.name for code in CODES.values()]
    assert len(set(names)) == len(names)


def test_errors_retriable_in_kafka_python_are_retriable() -> None:
    """The table retries at least all that kafka-python retries, and OK is 0 alone."""
    for number, error in kafka_errors.items():
        if error.retriable:
            assert code_of(number).reaction.retriable, code_of(number)
        if error.invalid_metadata and number != 13:
            assert code_of(number).reaction is Reaction.METADATA, code_of(number)
    assert [n for n, c in CODES.items() if c.reaction is Reaction.OK] == [0]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (3, Retriable),
        (6, Retriable),
        (16, Retriable),
        (45, Retriable),
        (47, Fenced),
        (82, Fenced),
        (90, Fenced),
        (29, UserError),
        (40, UserError),
        (87, PartitionFailed),
        (10, PartitionFailed),
        (42, ProtocolError),
        (9999, Retriable),
    ],
)
def test_an_error_code_raises_the_class_of_its_reaction(
    code: int, error: type[TwinlogError]
) -> None:
    with pytest.raises(error) as caught:
        check(code, "append", "because")
    assert type(caught.value) is error
    assert caught.value.code == code
    assert "because" in str(caught.value)


def test_code_0_raises_nothing() -> None:
    check(0, "append")


def test_an_unknown_error_code_causes_a_reread() -> None:
    assert code_of(9999).name == "UNKNOWN_CODE_9999"
    assert code_of(9999).reaction is Reaction.REREAD


def test_the_text_of_a_refusal_has_name_code_and_message() -> None:
    assert str(Refusal(3)) == "UNKNOWN_TOPIC_OR_PARTITION (3)"
    assert str(Refusal(40, "no such key")) == "INVALID_CONFIG (40): no such key"
    said = (
        "Request Request(processor=3, connectionId=127.0.0.1:1-127.0.0.1:2-0, "
        "session=org.apache.kafka.network.Session@1, buffer=null, "
        "envelope=Some(Request(processor=1))) needs DESCRIBE permission."
    )
    refused = "CLUSTER_AUTHORIZATION_FAILED (31): needs DESCRIBE on the cluster"
    assert str(Refusal(31, said)) == refused


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TwinlogError("it broke"), "it broke"),
        (TwinlogError("it broke", hint="mend it"), "it broke; mend it"),
        (TwinlogError("it broke", cluster="source", node=3), "cluster source: node 3: it broke"),
        (TwinlogError("it broke", topic="a", partition=0, offset=7), "a-0: it broke (offset 7)"),
        (TwinlogError("it broke", cluster="source", topic="a"), "cluster source: a: it broke"),
    ],
)
def test_error_messages_are_one_line(error: TwinlogError, text: str) -> None:
    assert str(error) == text


def test_a_listener_without_sasl_has_advice() -> None:
    """Goal: a broker answers so to a client with SASL_PLAINTEXT on a PLAINTEXT listener."""
    assert "compare security.protocol" in str(Refusal(34).error("start SASL authentication"))


def test_messages_of_a_peer_are_truncated() -> None:
    """Goal: megabytes of an answer are neither logged nor stored, for each partition again.

    This holds for a broker's error message, and for invalid bytes that an error repeats.
    """
    said = "x" * 2_000_000
    refusal = Refusal(58, said)
    assert len(str(refusal)) < MAX_SAID + 100
    assert str(refusal).endswith("x...")
    error = refusal.error("authenticate")
    assert len(str(error)) < MAX_SAID + 300
    error = ProtocolError(f"it cannot be read: {said!r}")
    assert len(str(error)) == len(pickle.loads(pickle.dumps(error)).message) == MAX_MESSAGE + 3


def test_errors_survive_pickling() -> None:
    """They cross from a Spark task to the driver with all their fields."""
    error = Disconnected("lost", hint="wait", cluster="destination", topic="a", partition=2, code=7)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is Disconnected
    assert vars(back) == vars(error)
    assert str(back) == str(error)


def test_exit_status_2_is_for_user_errors_only() -> None:
    assert UserError("x").exit_status == 2
    assert Retriable("x").exit_status == 1
